"""Signals to a tracked loop at any time: killed, stopped and continued, ended while it seals. No row is lost."""

import os
import random
import signal
import threading
import time

import pytest
from tests.faults.loop import checkpoint_step, is_done, live, lost
from tests.processes import exit_code, start, wait

import rankrise as rr
from rankrise.store._failpoints import RUN_FAILPOINTS, VARIABLE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*was cut off", "ignore:.*is started over"),
]


def kill_after(seconds):
    """SIGKILL this process in a while, from a thread that the loop cannot hold up."""

    def wait_and_kill():
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait_and_kill, daemon=True).start()


@pytest.mark.parametrize("seed", range(8))
def test_killed_again_and_again_at_random_times(tmp_path, whole, seed, record_property):
    """Each life of the loop ends a random moment after a random step, or while it begins."""
    folder, generator, num_killed = tmp_path / "run", random.Random(seed), 0
    for _ in range(12):
        last = checkpoint_step(folder) + generator.randint(0, 12)
        seconds = generator.uniform(0, 0.02)

        def life(last=last, seconds=seconds):
            if last == checkpoint_step(folder):
                kill_after(seconds)
            live(folder, after_step=lambda step: kill_after(seconds) if step == last else None)

        code = exit_code(life)
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


def test_stopped_and_continued(tmp_path, whole, record_property):
    """Stopped a moment after every fourth step: it can be read, holds its lock, and goes on."""
    folder, num_stopped = tmp_path / "run", 0
    receive, send = os.pipe()

    def after_step(step):
        if step % 4 == 0:
            os.write(send, b".")

    pid = start(lambda: live(folder, after_step=after_step))
    os.close(send)
    while os.read(receive, 1):
        os.kill(pid, signal.SIGSTOP)
        if os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]):
            num_stopped += 1
            if rr.store.is_locked(folder):
                rr.load_run(folder)
                with pytest.raises(ValueError, match="must have one writer"):
                    rr.store.resume_run(folder, step=0)
            os.kill(pid, signal.SIGCONT)
    os.close(receive)
    assert wait(pid) == 0
    assert num_stopped > 1
    assert lost(folder, whole) == 0
    record_property("stops survived", num_stopped)


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
