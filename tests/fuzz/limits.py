"""What reading one received file may cost, and how that is measured."""

import resource
import sys
from pathlib import Path

CPU_SECONDS = 10
MOST_BYTES = 500 * 2**20  # of a whole process, with PyTorch and Arrow


def peak_bytes():
    """The most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def limit_memory():
    """Let an allocation fail that would pass the limit, before it takes the machine down."""
    if sys.platform == "linux":
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + MOST_BYTES,) * 2)
