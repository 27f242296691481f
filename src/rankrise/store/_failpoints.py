"""Places where a test can make a write fail, or kill the process, by an environment variable.

`RANKRISE_FAILPOINT=block.half:kill` kills the process (SIGKILL) when half of a block is written, and `:terminate` ends
it (SIGTERM); `:full` raises "no space left on device" there, `:readonly` "read-only file system", and `:interrupt` what
Ctrl-C raises. `block.half@3:kill` waits for the third time. Outside of tests the variable is not set, and a failpoint
costs one look into the environment.
"""

import errno
import os
import signal

VARIABLE = "RANKRISE_FAILPOINT"
_SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM}
_ERRORS = {"full": errno.ENOSPC, "readonly": errno.EROFS}
_FILES = ("spec", "env", "initial", "manifest", "stream", "directions", "parquet")
_CHECKPOINT_FILES = ("checkpoint_model", "checkpoint_optimiser", "checkpoint_state", "checkpoint_manifest")
_STAGES = ("write", "sync", "rename", "done")
RUN_FAILPOINTS = tuple(
    [f"{file}.{stage}" for file in _FILES for stage in _STAGES]
    + ["block.write", "block.half", "block.sync", "seal.remove"]
)
CHECKPOINT_FAILPOINTS = tuple(
    [f"{file}.{stage}" for file in _CHECKPOINT_FILES for stage in _STAGES]
    + ["checkpoint.begin", "checkpoint.rename", "checkpoint.sync", "checkpoint.done", "prune.rename", "prune.remove"]
)
ADAPTER_FAILPOINTS = tuple(
    [f"{file}.{stage}" for file in ("adapter_model", "adapter_config", "adapter_report") for stage in _STAGES]
    + ["adapter.begin", "adapter.rename", "adapter.sync", "adapter.done"]
)
REPORT_FAILPOINTS = tuple(
    f"{file}.{stage}" for file in ("figure", "report", "durations", "verdicts") for stage in _STAGES
)
FAILPOINTS = RUN_FAILPOINTS + CHECKPOINT_FAILPOINTS + ADAPTER_FAILPOINTS + REPORT_FAILPOINTS
_hits: dict[str, int] = {}


def failpoint(name: str) -> None:
    """Fail here if the environment asks for it.

    Raises:
        OSError: "no space left" or "read-only", when asked for.
        KeyboardInterrupt: When asked for.
    """
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    assert name in FAILPOINTS, name
    place, _, action = wanted.partition(":")
    place, _, count = place.partition("@")
    if place != name:
        return
    _hits[wanted] = _hits.get(wanted, 0) + 1
    if _hits[wanted] < int(count or 1):
        return
    if action in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[action])
    if action == "interrupt":
        raise KeyboardInterrupt
    code = _ERRORS[action]
    raise OSError(code, os.strerror(code), name)
