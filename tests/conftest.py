"""Shared by all tests: hypothesis is reproducible, no test waits for the disk or writes to the user's cache folder."""

import os
import signal
from pathlib import Path

import hypothesis
import pytest

# A forked child has none of the threads that torch started in its parent, and would wait for them for ever.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell lets what it starts in the background ignore Ctrl-C, which the tests of interrupts send to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Commands under test would train on real data sets if they saw the data folder of whoever runs the tests. It is set
# aside for the tests that ask for it; the new name also reaches the workers of pytest-xdist.
if "RANKRISE_DATA" in os.environ:
    os.environ["DATA_FOLDER_OF_THE_TESTS"] = os.environ.pop("RANKRISE_DATA")

hypothesis.settings.register_profile("rankrise", derandomize=True, deadline=None)
hypothesis.settings.load_profile("rankrise")


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """`fsync` guards against a power failure, which no test can cause. `fstat` also refuses a closed descriptor.

    Tests that start a process of their own run the real `fsync` there.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="session", autouse=True)
def cache_folder_of_the_tests(tmp_path_factory):
    """A cache folder of this session, also for the processes that tests start: the user's own is left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def data_folder():
    """The folder of real data sets that `RANKRISE_DATA` named when the tests were started."""
    folder = os.environ.get("DATA_FOLDER_OF_THE_TESTS")
    if folder is None:
        pytest.skip("set RANKRISE_DATA to a folder with the data sets of docs/data.md")
    return Path(folder)
