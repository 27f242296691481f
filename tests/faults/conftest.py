"""All faults are slow tests, except where a child process is killed on purpose."""

import pytest
from tests.faults.loop import live

import rankrise as rr


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The table of a loop that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    live(folder)
    return rr.load_run(folder)
