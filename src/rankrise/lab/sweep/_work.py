"""What a worker does with one run: theory inside the worker, a training in a process of its own.

The process of a training leads a process group of its own, writes what it says to `log.txt` of the run, and is killed
by the kernel when its worker dies, so that nothing is left behind.
"""

import json
import os
import subprocess
import sys
import time

from rankrise.lab.experiments import Attempt, PlannedRun, attempt_run, kind_of, look_again, to_json
from rankrise.store import UntrustedFolder

LOG = "log.txt"


class RunDiedError(RuntimeError):
    """The process of a run ended without saying what became of the run."""


def perform(run: PlannedRun, device: str | None) -> Attempt | None:
    """Do one run in a worker; None if another process is writing it.

    Args:
        run: The run as it was planned; a run that has been finished since is skipped.
        device: Where a network is trained; the best there is unless given.

    Raises:
        RunDiedError: The process of a training died; Dask then tries the run again.
    """
    run = look_again(run)
    if run.state == "done":
        return Attempt(run, "skipped")
    if kind_of(run.spec).is_network and not run.problem:
        return _in_a_process(run, device)
    return attempt_run(run, device=device)


def _in_a_process(run: PlannedRun, device: str | None) -> Attempt | None:
    """Do a run in a process of its own, and read from a pipe what became of it."""
    order = {
        "parent": os.getpid(),
        "name": run.name,
        "spec": to_json(run.spec),
        "data": None if run.data is None else str(run.data),
        "out": str(run.folder.parent.parent),
        "device": device,
    }
    begun = time.monotonic()
    with UntrustedFolder(run.folder, create=True) as folder, os.fdopen(folder.open_to_write(LOG), "ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "rankrise.lab.sweep._process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env=os.environ | _gpu_of_this_worker(device),
        )
        answer, _ = child.communicate(json.dumps(order).encode())
    if child.returncode != 0 or not answer:
        raise RunDiedError(
            f"Its process was ended by signal {-child.returncode}"
            if child.returncode < 0
            else f"Its process ended with code {child.returncode}; {run.folder / LOG} says why"
        )
    ending = json.loads(answer)
    if ending is None:
        return None
    return Attempt(run, ending["fate"], ending["message"], time.monotonic() - begun, ending["signal"])


def _gpu_of_this_worker(device: str | None) -> dict[str, str]:
    """One GPU for each worker of this machine, in turn, unless somebody has chosen one."""
    import torch
    from distributed import get_worker

    number = get_worker().name
    if device not in (None, "cuda") or "CUDA_VISIBLE_DEVICES" in os.environ or type(number) is not int:
        return {}
    count = torch.cuda.device_count()
    return {"CUDA_VISIBLE_DEVICES": str(number % count)} if count > 1 else {}
