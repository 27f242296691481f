"""Hardware and versions, to be kept beside every number."""

import functools
import importlib.metadata
import os
import platform
import sys
from pathlib import Path

_PACKAGES = ("torch", "numpy", "scipy", "safetensors", "pyarrow", "matplotlib", "transformers", "peft", "lightning")

# torch can use an accelerator under Linux only where one of these device files exists:
# NVIDIA (also in a container), AMD, NVIDIA under WSL, NVIDIA Jetson.
_ACCELERATOR_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/nvmap")
_THREAD_VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")  # MKL's own variable wins


def environment() -> dict[str, object]:
    """Describe the machine and the software a result was made with.

    The record contains no user names, host names or paths, because it is meant to be published.

    `threads` and `accelerator` are what torch uses. A process that has imported torch asks torch. Another process
    reads both from the system where the system tells them for certain (Linux on x86 without an accelerator), because
    importing torch takes over a second; elsewhere it imports torch and asks.

    Returns:
        A flat dictionary that goes through JSON: versions, processor, cores, threads, accelerator and its memory.
        A package that is not installed is None.

    >>> environment()["python"].count(".")
    2
    """
    import rankrise

    threads = None if "torch" in sys.modules else _threads_without_torch()
    return {
        "rankrise": rankrise.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        **(_ask_torch() if threads is None else {"threads": threads, "accelerator": None}),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _ask_torch() -> dict[str, object]:
    import torch

    record: dict[str, object] = {"threads": torch.get_num_threads(), "accelerator": None}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        record["accelerator"] = properties.name
        record["accelerator_memory_gib"] = round(properties.total_memory / 2**30, 1)
        record["cuda"] = torch.version.cuda
    elif torch.backends.mps.is_available():
        record["accelerator"] = "MPS"
    return record


def _threads_without_torch() -> int | None:
    """Return the number of threads torch will start with; None where only torch knows, or an accelerator may be there.

    On x86 torch takes the number from MKL: as many threads as asked for, but at most one for each physical core that
    this process may use.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64" or any(map(os.path.exists, _ACCELERATOR_FILES)):
        return None
    if any(name.startswith(("MKL_", "OMP_", "KMP_")) and name not in _THREAD_VARIABLES for name in os.environ):
        return None  # one of the rarer settings of MKL or OpenMP, which may change the rule
    try:
        cores = len({_core_of(cpu) for cpu in os.sched_getaffinity(0)})
    except OSError:
        return None
    for name in _THREAD_VARIABLES:
        wanted = os.environ.get(name, "").partition(",")[0].strip()  # OpenMP allows a list, one number for each level
        if wanted.isdecimal() and int(wanted) > 0:
            return min(int(wanted), cores)
    return cores


def _core_of(cpu: int) -> str:
    """Return the logical processors that share a physical core with this one."""
    return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()


@functools.cache  # a process that writes many runs would parse the metadata of every package for each of them
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
