"""All faults are slow tests, except where a child process is killed on purpose."""

import subprocess

import pytest
from tests.faults.loop import live

import rankrise as rr


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The table of a loop that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    live(folder)
    return rr.load_run(folder)


@pytest.fixture
def disk(tmp_path):
    """A disk of two megabytes, where this machine lets a test mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
