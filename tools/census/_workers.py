"""Examinations in child processes, each with limits of its own: a type that hangs or grows costs only itself."""

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# Far more than any type needs (10 processor seconds at most), so that a busy machine changes no result.
CPU_SECONDS = 300
WALL_SECONDS = 3600.0
BYTES = 6 << 30


@dataclass
class _Child:
    pid: int
    name: str
    start: float
    received: bytes = b""


def run_all(
    names: Sequence[str], examine: Callable[[str], dict[str, Any]], *, workers: int = 2
) -> Iterator[dict[str, Any]]:
    """Yield what `examine` returns for every name, in the order in which they finish.

    The children are forked, so that they share what this process has imported.

    Args:
        names: What to examine.
        examine: Returns plain values. A child that dies or takes too long is tried once more when all others are done;
            if it fails again, its outcome is "crashed".
        workers: Number of children at a time.
    """
    queue = list(reversed(names))
    tried_again: set[str] = set()
    running: dict[int, _Child] = {}
    while queue or running:
        while queue and len(running) < workers:
            running |= _begin(queue.pop(), examine)
        ready, _, _ = select.select(list(running), [], [], 1.0)
        for descriptor in list(running):
            child = running[descriptor]
            chunk = os.read(descriptor, 1 << 20) if descriptor in ready else None
            child.received += chunk or b""
            late = time.monotonic() - child.start > WALL_SECONDS
            if chunk == b"" or late:
                del running[descriptor]
                record, why = _end(descriptor, child, late=late)
                if record is not None:
                    yield record
                elif child.name in tried_again:
                    yield {"model_type": child.name, "outcome": "crashed", "why": why}
                else:
                    tried_again.add(child.name)
                    queue.insert(0, child.name)


def _begin(name: str, examine: Callable[[str], dict[str, Any]]) -> dict[int, _Child]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_child(name, examine, writer)
    os.close(writer)
    return {reader: _Child(pid, name, time.monotonic())}


def _be_child(name: str, examine: Callable[[str], dict[str, Any]], writer: int) -> None:
    """Write what `examine` returns to the pipe and leave the process, whatever happens."""
    with contextlib.suppress(BaseException):
        resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        with os.fdopen(writer, "wb") as out:
            out.write(json.dumps(examine(name)).encode())
    os._exit(0)


def _end(descriptor: int, child: _Child, *, late: bool) -> tuple[dict[str, Any] | None, str]:
    """Return what a child has written, or None and why there is nothing."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    os.close(descriptor)
    try:
        return json.loads(child.received), ""
    except ValueError:
        late = late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU)
        return None, f"it took more than {CPU_SECONDS} processor seconds" if late else "its process died"
