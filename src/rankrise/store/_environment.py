"""Hardware and versions, to be kept beside every number."""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path

_PACKAGES = ("torch", "numpy", "scipy", "safetensors", "pyarrow", "matplotlib", "transformers", "peft", "lightning")


def environment() -> dict[str, object]:
    """Describe the machine and the software a result was made with.

    No user names, host names or paths: the record is meant to be published.

    Returns:
        A flat dictionary that goes through JSON: versions, processor, cores, threads, accelerator and its memory.
        A package that is not installed is None.

    >>> environment()["python"].count(".")
    2
    """
    import torch

    import rankrise

    record: dict[str, object] = {
        "rankrise": rankrise.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": None,
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        record["accelerator"] = properties.name
        record["accelerator_memory_gib"] = round(properties.total_memory / 2**30, 1)
        record["cuda"] = torch.version.cuda
    elif torch.backends.mps.is_available():
        record["accelerator"] = "MPS"
    record["packages"] = {name: _version(name) for name in _PACKAGES}
    return record


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
