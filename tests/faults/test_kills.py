"""Signals to a tracked loop at any time: killed, stopped and continued, ended while it seals. No row is lost."""

import os
import random
import signal
import time

import pytest
from tests.faults.loop import is_done, live, lost
from tests.processes import exit_code, start, wait

import rankrise as rr
from rankrise.store._failpoints import RUN_FAILPOINTS, VARIABLE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*was cut off", "ignore:.*is started over"),
]


def signal_after(seconds, pid, number):
    """Wait, and send the signal if the process still runs. Return whether it was sent in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        time.sleep(0.001)
    os.kill(pid, number)
    return True


@pytest.fixture(scope="module")
def seconds(tmp_path_factory):
    """How long an uninterrupted loop takes."""
    begun = time.monotonic()
    assert exit_code(lambda: live(tmp_path_factory.mktemp("timed") / "run")) == 0
    return time.monotonic() - begun


@pytest.mark.parametrize("seed", range(10))
def test_killed_again_and_again_at_random_times(tmp_path, whole, seconds, seed, record_property):
    folder, generator, num_killed = tmp_path / "run", random.Random(seed), 0
    for _ in range(12):
        pid = start(lambda: live(folder))
        signal_after(generator.uniform(0.0, 0.6) * seconds, pid, signal.SIGKILL)
        code = wait(pid)
        assert code in (0, -signal.SIGKILL)
        num_killed += code == -signal.SIGKILL
        if rr.store.has_run(folder):
            rr.load_run(folder)  # readable as it lies there
        if is_done(folder):
            break
    else:
        live(folder)
    assert num_killed > 0
    assert lost(folder, whole) == 0
    assert not list(tmp_path.rglob(".tmp-*"))
    record_property("kills survived", num_killed)
    record_property("rows", whole.num_rows)


def test_stopped_and_continued(tmp_path, whole, seconds):
    folder, generator, num_stopped = tmp_path / "run", random.Random(0), 0
    pid = start(lambda: live(folder))
    while signal_after(generator.uniform(0.02, 0.2) * seconds, pid, signal.SIGSTOP):
        os.waitpid(pid, os.WUNTRACED)
        num_stopped += 1
        if rr.store.has_run(folder) and rr.store.is_locked(folder):
            rr.load_run(folder)
            with pytest.raises(ValueError, match="must have one writer"):
                rr.store.resume_run(folder, step=0)
        os.kill(pid, signal.SIGCONT)
    assert wait(pid) == 0
    assert num_stopped > 0
    assert lost(folder, whole) == 0


@pytest.mark.parametrize(
    "failpoint",
    [f for f in RUN_FAILPOINTS if f.startswith("parquet")] + ["manifest.write@2", "manifest.rename@2", "seal.remove"],
)
def test_terminated_while_it_seals(tmp_path, whole, failpoint):
    folder = tmp_path / "run"

    def child():
        os.environ[VARIABLE] = f"{failpoint}:terminate"
        live(folder)

    assert exit_code(child) == -signal.SIGTERM
    assert lost(folder, whole) == 0  # all rows are there, sealed or not
    if not is_done(folder):
        live(folder)
    assert is_done(folder)
    assert lost(folder, whole) == 0
