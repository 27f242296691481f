"""Kills, full disks, damage, signals and NaN: the run goes on to what it would have been, or says what is wrong."""

import contextlib
import dataclasses
import json
import os
import random
import resource
import signal
import threading
import time
import warnings

import pytest
from tests.lab.training.tasks import (
    RECIPE,
    BreaksAt,
    Interrupted,
    assert_same_outcome,
    outcome,
    tiny_data,
    tiny_model,
    train_tiny,
)
from tests.processes import exit_code

from rankrise.lab.training import TrainingWarning
from rankrise.store import checkpoint_steps, find_checkpoint, has_run, is_sealed, load_run
from rankrise.store._failpoints import CHECKPOINT_FAILPOINTS, RUN_FAILPOINTS, VARIABLE
from rankrise.tracking import TrackingWarning

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*fork:DeprecationWarning", "ignore:.*is started over.*:rankrise.tracking.TrackingWarning"
)


@pytest.fixture(autouse=True)
def _hits_count_from_zero(monkeypatch):
    monkeypatch.setattr("rankrise.store._failpoints._hits", {})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    train_tiny(folder, checkpoint_every=4)
    return outcome(folder)


def train_until(folder, failpoint):
    os.environ[VARIABLE] = failpoint
    train_tiny(folder, checkpoint_every=4)


# Kills


@pytest.mark.parametrize(
    "failpoint",
    [*CHECKPOINT_FAILPOINTS, *(pytest.param(f"{f}@2", marks=pytest.mark.slow) for f in CHECKPOINT_FAILPOINTS)],
)
def test_killed_while_saving(tmp_path, whole, failpoint):
    assert exit_code(lambda: train_until(tmp_path / "run", f"{failpoint}:kill")) == -signal.SIGKILL
    train_tiny(tmp_path / "run", checkpoint_every=4)
    assert_same_outcome(outcome(tmp_path / "run"), whole)
    assert not [p for p in tmp_path.rglob("*") if p.name.startswith((".tmp", ".trash"))]


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", RUN_FAILPOINTS)
def test_killed_while_recording(tmp_path, whole, failpoint):
    assert exit_code(lambda: train_until(tmp_path / "run", f"{failpoint}:kill")) == -signal.SIGKILL
    train_tiny(tmp_path / "run", checkpoint_every=4)
    assert_same_outcome(outcome(tmp_path / "run"), whole)


def kill_after(seconds):
    """SIGKILL this process in a while, from a thread that Python cannot hold up."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def wait():
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 30))])
def test_killed_again_and_again_at_random_times(tmp_path, whole, seed):
    chance = random.Random(seed)

    def life():
        kill_after(chance.uniform(0.02, 0.25))
        train_tiny(tmp_path / "run", checkpoint_every=4)

    for _ in range(20):
        code = exit_code(life)
        chance.random()  # the child's draw is not seen here
        assert code in (0, -signal.SIGKILL)
        if code == 0:
            break
    train_tiny(tmp_path / "run", checkpoint_every=4)
    assert_same_outcome(outcome(tmp_path / "run"), whole)


# Disks


class RoomAgain(BreaksAt):
    """Data before whose batch number `at` the disk recovers."""

    def __init__(self, data, monkeypatch, *, at):
        super().__init__(data, at)
        self._monkeypatch = monkeypatch

    def train_batches(self, **options):
        for batch in self._data.train_batches(**options):
            self._left -= 1
            if self._left == 0:
                self._monkeypatch.delenv(VARIABLE)
            yield batch


@pytest.mark.parametrize("action", ["full", "readonly"])
def test_checkpoint_that_cannot_be_saved_is_said_once_and_tried_again(tmp_path, whole, monkeypatch, action):
    monkeypatch.setenv(VARIABLE, f"checkpoint_optimiser.write@2:{action}")
    folder = tmp_path / "run"
    with pytest.warns(TrainingWarning) as caught:
        train_tiny(folder, data=RoomAgain(tiny_data(), monkeypatch, at=13), checkpoint_every=4)  # 8 and 12 are refused
    assert len(caught) == 1
    assert "The checkpoint of step 8 could not be saved" in str(caught[0].message)
    assert "the last good one is of step 4. Training goes on and tries again; make room." in str(caught[0].message)
    assert_same_outcome(outcome(folder), whole)
    assert sorted(checkpoint_steps(folder)) == [4, 15]


def test_old_checkpoint_that_cannot_be_removed_is_no_failure_to_save(tmp_path, whole, monkeypatch):
    monkeypatch.setenv(VARIABLE, "prune.rename:readonly")
    train_tiny(tmp_path, checkpoint_every=4)  # warnings are errors
    assert sorted(checkpoint_steps(tmp_path)) in ([4, 8, 12, 15], [8, 12, 15])
    assert_same_outcome(outcome(tmp_path), whole)


@pytest.mark.parametrize("place", ["block.write", "block.half"])
def test_rows_that_a_full_disk_refuses_are_written_when_there_is_room(tmp_path, whole, monkeypatch, place):
    monkeypatch.setenv(VARIABLE, f"{place}@3:full")
    with (
        pytest.warns(TrackingWarning, match="Recording to the run directory failed: the disk is full"),
        pytest.warns(TrainingWarning, match=r"step 4 could not be saved .* \(rows of the table could not be written\)"),
    ):
        train_tiny(tmp_path, data=RoomAgain(tiny_data(), monkeypatch, at=10), checkpoint_every=4)
    assert_same_outcome(outcome(tmp_path), whole)
    assert json.loads((tmp_path / "MANIFEST.json").read_text())["num_lost_blocks"] == 0


def test_rows_that_were_never_written_end_the_run_unsealed(tmp_path, whole, monkeypatch):
    monkeypatch.setenv(VARIABLE, "block.write@3:full")
    with (
        pytest.warns(TrackingWarning, match="the disk is full"),
        pytest.warns(TrainingWarning),
        pytest.raises(OSError, match=r"end of the run in .* could not be saved \(rows of the table could not"),
    ):
        train_tiny(tmp_path, checkpoint_every=4)
    monkeypatch.delenv(VARIABLE)
    train_tiny(tmp_path, checkpoint_every=4)
    assert_same_outcome(outcome(tmp_path), whole)


def test_end_that_cannot_be_saved_is_an_error(tmp_path, whole, monkeypatch):
    monkeypatch.setenv(VARIABLE, "checkpoint_model.sync@4:full")
    with pytest.raises(
        OSError, match=r"The end of the run in .* could not be saved \(No space left on device\)\. Make"
    ):
        train_tiny(tmp_path, checkpoint_every=4)
    monkeypatch.delenv(VARIABLE)
    assert not is_sealed(tmp_path)
    train_tiny(tmp_path, checkpoint_every=4)
    assert_same_outcome(outcome(tmp_path), whole)


@pytest.mark.filterwarnings("ignore:.*Sealing the run directory failed:rankrise.tracking.TrackingWarning")
def test_run_that_cannot_be_sealed_is_an_error(tmp_path, whole, monkeypatch):
    monkeypatch.setenv(VARIABLE, "parquet.write:full")
    with pytest.raises(OSError, match=r"is trained, but could not be sealed\. Make room, and run it again"):
        train_tiny(tmp_path, checkpoint_every=4)
    monkeypatch.delenv(VARIABLE)
    train_tiny(tmp_path, checkpoint_every=4)
    assert_same_outcome(outcome(tmp_path), whole)


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ("full", r"the disk is full\. Make room\.$"),
        ("readonly", r"the folder cannot be written \(Read-only file system\)\. Choose another `out`\.$"),
    ],
)
def test_run_that_cannot_be_begun_is_one_error_with_its_cause(tmp_path, monkeypatch, action, why):
    monkeypatch.setenv(VARIABLE, f"initial.write:{action}")
    with pytest.raises(OSError, match=rf"^Opening the run directory .* failed: {why}"):
        train_tiny(tmp_path / "run")
    monkeypatch.delenv(VARIABLE)
    assert train_tiny(tmp_path / "run").status == "finished"  # nobody holds it


def test_files_that_may_not_grow(tmp_path, whole):
    """The kernel's own limit: the optimiser's file is the largest."""

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        train_tiny(tmp_path / "probe", checkpoint_every=4)
        size = {p.name: p.stat().st_size for p in (tmp_path / "probe").rglob("*.safetensors")}
        limit = size["optimiser.safetensors"] - 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with contextlib.suppress(OSError):
                train_tiny(tmp_path / "run", checkpoint_every=4)
                os._exit(3)  # the end cannot be saved
        said = [str(w.message) for w in caught if w.category is TrainingWarning]
        assert len(said) == 1, said
        assert "The checkpoint of step 4 could not be saved" in said[0]

    assert exit_code(limited) == 0
    assert checkpoint_steps(tmp_path / "run") == []
    train_tiny(tmp_path / "run", checkpoint_every=4)
    assert_same_outcome(outcome(tmp_path / "run"), whole)


# Damage


def cut_off(folder):
    with pytest.raises(Interrupted):
        train_tiny(folder, data=BreaksAt(tiny_data(), 9), checkpoint_every=4)
    assert sorted(checkpoint_steps(folder)) == [4, 8]


def damage(folder, step, file, how):
    path = folder / "checkpoints" / f"step-{step:09d}" / file
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 4
        path.write_bytes(content)


@pytest.mark.parametrize("how", ["missing", "truncated", "flipped"])
@pytest.mark.parametrize("file", ["model.safetensors", "optimiser.safetensors", "state.json", "MANIFEST.json"])
def test_damaged_checkpoint_falls_back_and_says_so(tmp_path, whole, file, how):
    cut_off(tmp_path)
    damage(tmp_path, 8, file, how)
    with pytest.warns(TrainingWarning, match=r"step-000000008 is skipped: .* Training goes on from step 4\."):
        train_tiny(tmp_path, checkpoint_every=4)
    assert_same_outcome(outcome(tmp_path), whole)
    assert sorted(checkpoint_steps(tmp_path)) == [12, 15]


def test_damaged_checkpoint_is_not_counted_among_the_two(tmp_path, whole):
    cut_off(tmp_path)
    damage(tmp_path, 8, "model.safetensors", "flipped")
    with pytest.warns(TrainingWarning), pytest.raises(Interrupted):
        train_tiny(tmp_path, data=BreaksAt(tiny_data(), 6), checkpoint_every=9)  # saves step 9
    assert sorted(checkpoint_steps(tmp_path)) == [4, 9]


def test_no_good_checkpoint_starts_over_and_says_so(tmp_path, whole):
    cut_off(tmp_path)
    for step in (4, 8):
        damage(tmp_path, step, "model.safetensors", "truncated")
    with (
        pytest.warns(TrackingWarning, match=r"is started over: \d+ rows to step 9 were dropped"),
        pytest.warns(TrainingWarning, match=r"008 is skipped: .*004 is skipped: .* from the beginning, as no other"),
    ):
        train_tiny(tmp_path, checkpoint_every=4)
    assert_same_outcome(outcome(tmp_path), whole)


def test_checkpoints_without_their_run_are_refused(tmp_path):
    cut_off(tmp_path)
    (tmp_path / "MANIFEST.json").unlink()
    with pytest.raises(ValueError, match=r"To resume at step 8, .* must hold the run with its initial weights"):
        train_tiny(tmp_path)


def test_one_process_for_a_run(tmp_path):
    ready, done = tmp_path / "ready", tmp_path / "done"

    class Waits(BreaksAt):
        def train_batches(self, **options):
            ready.touch()
            while not done.exists():
                time.sleep(0.01)
            return self._data.train_batches(**options)

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if train_tiny(tmp_path / "run", data=Waits(tiny_data(), 0)).status == "finished" else 2
        finally:
            os._exit(code)
    while not ready.exists():
        time.sleep(0.01)
    with pytest.raises(ValueError, match=rf"must have one writer; .* is being written by process {pid}"):
        train_tiny(tmp_path / "run")
    done.touch()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# Signals


class Signals(BreaksAt):
    """Data that send signals to their own process before a batch."""

    def __init__(self, data, n, *numbers):
        super().__init__(data, n)
        self._numbers = numbers

    def train_batches(self, **options):
        for batch in self._data.train_batches(**options):
            self._left -= 1
            if self._left == 0:
                for number in self._numbers:
                    os.kill(os.getpid(), number)
            yield batch


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("n", [1, 5, 7])
def test_signal_saves_and_stops_after_the_step(tmp_path, whole, number, n):
    before = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
    result = train_tiny(tmp_path, data=Signals(tiny_data(), n, number))
    assert (result.status, result.step, result.signal) == ("stopped", n, number)
    name = signal.Signals(number).name
    assert result.message == (
        f"Stopped by {name} after step {n} of 15. The last good checkpoint is of step {n}. Run it again to go on."
    )
    assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)] == before
    assert not is_sealed(tmp_path)
    train_tiny(tmp_path, checkpoint_every=4)
    assert_same_outcome(outcome(tmp_path), whole)


def test_signal_at_the_last_step_finishes(tmp_path, whole):
    result = train_tiny(tmp_path, data=Signals(tiny_data(), 15, signal.SIGTERM))
    assert (result.status, result.signal) == ("finished", signal.SIGTERM)
    assert_same_outcome(outcome(tmp_path), whole)


def test_second_ctrl_c_aborts_at_once(tmp_path, whole):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train_tiny(tmp_path, data=Signals(tiny_data(), 7, signal.SIGINT, signal.SIGINT), checkpoint_every=4)
    assert signal.getsignal(signal.SIGINT) is before
    assert checkpoint_steps(tmp_path) == [4]
    train_tiny(tmp_path, checkpoint_every=4)
    assert_same_outcome(outcome(tmp_path), whole)


def test_no_handlers_outside_the_main_thread(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(train_tiny(tmp_path)))
    thread.start()
    thread.join()
    assert results[0].status == "finished"


def test_stop_that_cannot_be_saved_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "checkpoint.begin:full")
    with pytest.warns(TrainingWarning, match=r"checkpoint of step 3 could not be saved .*; there is none before it"):
        result = train_tiny(tmp_path, data=Signals(tiny_data(), 3, signal.SIGTERM))
    assert (result.status, result.step) == ("stopped", 3)
    assert "No checkpoint was saved here." in result.message


# NaN


class Poisoned(BreaksAt):
    """Data with a NaN in one batch."""

    def train_batches(self, **options):
        for batch in self._data.train_batches(**options):
            self._left -= 1
            yield batch._replace(inputs=batch.inputs * float("nan")) if self._left == 0 else batch


def test_loss_that_is_not_finite_stops(tmp_path):
    result = train_tiny(tmp_path, data=Poisoned(tiny_data(), 7), checkpoint_every=1)
    assert (result.status, result.step) == ("diverged", 7)
    assert result.message == (
        "The loss was no longer finite at step 7. The last good checkpoint is of step 6. "
        "Try a smaller learning rate, a longer warm-up, or fp32."
    )
    checkpoint, skipped = find_checkpoint(tmp_path)
    assert (checkpoint.step, skipped) == (6, [])
    assert all(t.isfinite().all() for t in (*checkpoint.model.values(), *checkpoint.optimiser.values()))
    assert not is_sealed(tmp_path)
    assert has_run(tmp_path)
    assert load_run(tmp_path)["step"].to_pylist()[-1] == 7


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    """The loss of step 7 is finite, its update is not."""
    model = tiny_model()
    calls = []

    def poison(gradient):
        calls.append(gradient)
        return gradient * float("inf") if len(calls) == 7 else gradient

    model.classifier.weight.register_hook(poison)
    result = train_tiny(tmp_path, model=model, checkpoint_every=1)
    assert result.status == "diverged"
    assert "at step 7" in result.message
    assert find_checkpoint(tmp_path)[0].step == 6


def test_infinite_rate_diverges_without_a_checkpoint(tmp_path):
    result = train_tiny(tmp_path, dataclasses.replace(RECIPE, optimiser="sgd", learning_rate=1e30))
    assert result.status == "diverged"
    assert "No checkpoint was saved here." in result.message
