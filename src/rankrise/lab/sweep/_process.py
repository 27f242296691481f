"""The process of one training of a sweep: reads an order from stdin, answers on stdout; all else goes to stderr."""

import json
import os
import signal
import sys
import threading
import time
from typing import Any

_PR_SET_PDEATHSIG = 1
_SECONDS = 0.5  # between two looks at the parent, where the kernel does not tell


def main() -> None:
    """Do what the order says; the answer is one JSON value."""
    answer = os.dup(1)
    os.dup2(2, 1)  # what anybody prints goes to the log and never into the answer
    order = json.load(sys.stdin)
    die_with(order["parent"])
    ending = follow(order)
    with os.fdopen(answer, "w") as file:
        json.dump(ending, file)


def die_with(parent: int) -> None:
    """Be killed when the process that started this one dies: by the kernel on Linux, elsewhere by a thread."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it died before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def follow(order: dict[str, Any]) -> dict[str, Any] | None:
    """Do the run of an order, and say what became of it; None if another process is writing it."""
    from rankrise.lab.experiments import NamedSpec, attempt_run, from_json, plan_run
    from rankrise.lab.training import PlainProgress

    run = plan_run(NamedSpec(order["name"], from_json(order["spec"])), data=order["data"], out=order["out"])
    attempt = attempt_run(run, device=order["device"], progress=PlainProgress())
    if attempt is None:
        return None
    return {"fate": attempt.fate, "message": attempt.message, "signal": attempt.signal}


if __name__ == "__main__":
    main()
