"""Trouble with the disk or a dashboard: said once, and training goes on; raised when strict."""

import contextlib
import copy
import ctypes
import json
import multiprocessing
import os
import pickle
import resource
import signal
import warnings

import pytest
import torch
from tests.processes import exit_code
from tests.tracking.models import in_order, select, small_model, train_step

import rankrise as rr
from rankrise.store._failpoints import RUN_FAILPOINTS, VARIABLE
from rankrise.tracking import TrackingWarning

STEPS = 6


def train(out, *, steps=STEPS, **options):
    model = small_model(dropout=0.0)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with rr.RankTracker(model, out, every=1, spectra=2, **options) as tracker:
        for step in range(1, steps + 1):
            tracker.step(step, loss=train_step(model, optimiser, step))
    return model


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    return train(out), rr.load_run(out)


def warned(record):
    return [str(w.message) for w in record if issubclass(w.category, TrackingWarning)]


@pytest.mark.parametrize(
    "failpoint", [f for f in RUN_FAILPOINTS if f.endswith((".write", ".rename", ".half", ".remove"))]
)
def test_full_disk_anywhere_is_said_once_and_training_goes_on(tmp_path, whole, monkeypatch, failpoint):
    monkeypatch.setenv(VARIABLE, f"{failpoint}:full")
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        model = train(tmp_path)
    messages = warned(record)
    assert messages
    assert len(messages) == len(set(messages)) <= 3
    assert all("the disk is full. Make room. Training goes on" in message for message in messages)
    for a, b in zip(model.parameters(), whole[0].parameters(), strict=True):
        assert torch.equal(a, b)
    if rr.store.has_run(tmp_path):
        rows = set(map(str, rr.load_run(tmp_path).to_pylist()))
        assert rows <= set(map(str, whole[1].to_pylist()))


@pytest.mark.parametrize(
    "failpoint", ["spec.write", "initial.write", "block.half", "directions.sync", "parquet.rename"]
)
def test_strict_raises(tmp_path, monkeypatch, failpoint):
    monkeypatch.setenv(VARIABLE, f"{failpoint}:readonly")
    with pytest.raises(OSError, match="Read-only file system"):
        train(tmp_path, strict=True)


def obey_permissions():
    """Give up the right of root to write anywhere, in this process; others have no such right."""
    if os.geteuid() == 0:
        version, no_rights = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert ctypes.CDLL(None).capset(version, no_rights) == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_read_only_folder(tmp_path):
    def child():
        obey_permissions()
        with pytest.warns(TrackingWarning, match="the folder cannot be written"):
            train(tmp_path / "run")

    tmp_path.chmod(0o555)
    assert exit_code(child) == 0
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("limit", [2_000, 40_000])
def test_file_size_limit(tmp_path, whole, limit):
    def child():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        with warnings.catch_warnings(record=True) as record:
            warnings.simplefilter("always")
            train(tmp_path)
        messages = warned(record)
        assert messages
        assert len(messages) == len(set(messages))
        assert "size limit" in messages[0] or "too large" in messages[0].lower(), messages

    assert exit_code(child) == 0
    if rr.store.has_run(tmp_path):
        table = rr.load_run(tmp_path)
        assert table.num_rows > 0
        assert set(map(str, table.to_pylist())) <= set(map(str, whole[1].to_pylist()))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    "failpoint", ["manifest.done", "block.half@3", "directions.rename@2", "stream.rename", "seal.remove"]
)
def test_killed_then_resumed_from_a_checkpoint(tmp_path, whole, failpoint):
    checkpoint = tmp_path / "checkpoint.pt"

    def live(failpoint=None):
        if failpoint:
            os.environ[VARIABLE] = f"{failpoint}:kill"
        model = small_model(dropout=0.0)
        done = 0
        if checkpoint.exists():
            done = 2
            model.load_state_dict(torch.load(checkpoint, weights_only=True))
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        with rr.RankTracker(model, tmp_path / "run", every=1, spectra=2, resume=done, exist="overwrite") as tracker:
            for step in range(done + 1, STEPS + 1):
                tracker.step(step, loss=train_step(model, optimiser, step))
                if step == 2:
                    torch.save(model.state_dict(), checkpoint)

    assert exit_code(lambda: live(failpoint)) == -signal.SIGKILL
    with warnings.catch_warnings(action="ignore"):  # of what was cut off
        table = rr.load_run(tmp_path / "run") if rr.store.has_run(tmp_path / "run") else []
    has_rows = len(table) > 0 and not checkpoint.exists()
    with pytest.warns(TrackingWarning, match="is started over") if has_rows else contextlib.nullcontext():
        live()
    assert in_order(rr.load_run(tmp_path / "run")).equals(in_order(whole[1]))


def test_two_trackers_on_one_folder(tmp_path):
    tracker = rr.RankTracker(small_model(), tmp_path)
    with pytest.raises(ValueError, match=r"must have one writer; a tracker in this process still holds"):
        rr.RankTracker(small_model(), tmp_path, resume=0)
    tracker.close()


def test_tracker_that_is_forgotten_leaves_the_folder(tmp_path):
    descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    tracker = rr.RankTracker(small_model(), tmp_path)
    assert tracker
    del tracker
    rr.RankTracker(small_model(), tmp_path, resume=0).close()
    if descriptors:
        assert len(os.listdir("/proc/self/fd")) == descriptors


class Memory:
    """A sink that remembers, or fails."""

    def __init__(self, fails=False):
        self.logged, self.closed, self.fails = [], 0, fails

    def log(self, step, values):
        if self.fails:
            raise ConnectionError("no dashboard")
        self.logged.append((step, dict(values)))

    def close(self):
        self.closed += 1


def test_sinks_get_scalars_and_a_summary_of_every_layer(tmp_path):
    sink = Memory()
    train(tmp_path, steps=2, sinks=[sink])
    steps = [step for step, _ in sink.logged]
    assert steps == sorted(steps)
    assert set(steps) == {1, 2}
    first, second = ({k: v for at, values in sink.logged if at == step for k, v in values.items()} for step in (1, 2))
    assert "loss" in sink.logged[0][1]
    shown = {f"rankrise/L{layer:02d}/{circuit}/stable_rank/{what}" for layer in (0, 1) for circuit in ("kq", "vo")
             for what in ("mean", "min", "max")}  # fmt: skip
    assert first.keys() == second.keys() == {"loss", *shown}
    heads = select(rr.load_run(tmp_path), step=2, layer=1, circuit="vo", quantity="stable_rank")
    assert second["rankrise/L01/vo/stable_rank/mean"] == pytest.approx(heads.mean(), rel=1e-15)
    assert second["rankrise/L01/vo/stable_rank/max"] == heads.max()
    assert sink.closed == 1


@pytest.mark.filterwarnings("ignore:No tracked weight has moved:rankrise.tracking.TrackingWarning")
def test_scalars_are_written_in_blocks_and_all_of_them(tmp_path, monkeypatch):
    appended = []
    append = rr.store.Run.append
    monkeypatch.setattr(rr.store.Run, "append", lambda *args, **kw: (appended.append(1), append(*args, **kw))[1])
    with rr.RankTracker(small_model(), tmp_path, every=1000) as tracker:
        for step in range(1, 1000):
            tracker.step(step, loss=1 / step)
        assert len(appended) < 100
        tracker.step(1000, loss=0.0)
        assert (rr.load_run(tmp_path)["quantity"].to_numpy() == "loss").sum() == 1000  # written with the measurement
        tracker.log(1001, loss=0.0)
    assert (rr.load_run(tmp_path)["quantity"].to_numpy() == "loss").sum() == 1001


@pytest.mark.filterwarnings("ignore:No tracked weight has moved:rankrise.tracking.TrackingWarning")
def test_spectra_are_synced(tmp_path, monkeypatch):
    calls = []
    append, sync = rr.store.Run.append, rr.store.Run.sync

    def spy(run, block, **options):
        calls.append(max(block["step"].to_pylist()))
        append(run, block, **options)

    monkeypatch.setattr(rr.store.Run, "append", spy)
    monkeypatch.setattr(rr.store.Run, "sync", lambda run: calls.append("sync") or sync(run))
    with rr.RankTracker(small_model(), tmp_path, every=1, spectra=2) as tracker:
        for step in (1, 2, 3):
            tracker.step(step)
    assert calls == [1, 2, "sync", 3]


@pytest.mark.filterwarnings("ignore:No tracked weight has moved:rankrise.tracking.TrackingWarning")
def test_rows_that_a_full_disk_refuses_are_written_when_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr("rankrise.store._failpoints._hits", {})
    monkeypatch.setenv(VARIABLE, "block.half@2:full")
    tracker = rr.RankTracker(small_model(), tmp_path, every=1)
    tracker.step(1)
    with pytest.warns(TrackingWarning, match="Recording to the run directory failed"):
        tracker.step(2)
    tracker.step(3)
    assert tracker.has_late_rows
    monkeypatch.delenv(VARIABLE)
    tracker.step(4)
    assert not tracker.has_late_rows
    tracker.close()
    table = rr.load_run(tmp_path)
    assert table["step"].to_pylist() == sorted(table["step"].to_pylist())
    assert set(table["step"].to_pylist()) == {1, 2, 3, 4}
    assert json.loads((tmp_path / "MANIFEST.json").read_text())["num_lost_blocks"] == 0


def test_failing_sink_is_dropped_once(tmp_path):
    sink = Memory(fails=True)
    with pytest.warns(TrackingWarning, match=r"Memory failed: no dashboard\. It gets nothing more") as record:
        train(tmp_path, sinks=[sink])
    assert len(warned(record)) == 1
    assert rr.load_run(tmp_path).num_rows > 0
    with pytest.raises(ConnectionError):
        train(tmp_path / "strict", sinks=[Memory(fails=True)], strict=True)


@pytest.mark.filterwarnings("ignore:No tracked weight has moved:rankrise.tracking.TrackingWarning")
def test_sinks_go_on_when_the_disk_does_not(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "spec.write:full")
    sink = Memory()
    with pytest.warns(TrackingWarning, match="the disk is full"):
        train(tmp_path, steps=2, sinks=[sink])
    assert "rankrise/L01/vo/stable_rank/max" in sink.logged[1][1]


# Other processes


def use_up(tracker):
    """Everything a loop does with a tracker, as a data loader's worker could by mistake."""
    with tracker:
        tracker.step(7, loss=1.0)
        tracker.log(8, loss=2.0)
        tracker.flush(sync=True)
        assert not tracker.is_recording
    tracker.close(seal=True)


def fork_by_os(function):
    assert exit_code(function) == 0


def fork_by_multiprocessing(function):
    process = multiprocessing.get_context("fork").Process(target=function)
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.filterwarnings("ignore:No tracked weight has moved:rankrise.tracking.TrackingWarning")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("fork", [fork_by_os, fork_by_multiprocessing])
def test_tracker_does_nothing_in_a_forked_child(tmp_path, fork):
    class Dashboard:
        def log(self, step, values):
            with (tmp_path / "dashboard").open("a") as file:
                file.write(f"{step}\n")

        def close(self):
            self.log("closed", {})

    model, folder = small_model(), tmp_path / "run"
    with rr.RankTracker(model, folder, every=1, sinks=[Dashboard()]) as tracker:
        tracker.step(1)
        tracker.log(2, loss=0.5)
        tracker.log(2, accuracy=0.25)  # waits in memory when the child is made
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        shown = (tmp_path / "dashboard").read_text()
        fork(lambda: use_up(tracker))
        fork(lambda: None)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
        assert (tmp_path / "dashboard").read_text() == shown
        assert tracker.is_recording
        tracker.step(3)
    table = rr.load_run(folder)
    assert rr.store.is_sealed(folder)
    assert (select(table, quantity="loss").tolist(), select(table, quantity="accuracy").tolist()) == ([0.5], [0.25])
    assert sorted(set(table["step"].to_pylist())) == [1, 2, 3]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_tracker_cannot_be_copied_or_pickled(tmp_path, duplicate):
    with rr.RankTracker(small_model(), tmp_path, every=1) as tracker:
        with pytest.raises(TypeError, match=r"^A RankTracker cannot be copied or pickled, because a run .*; build a"):
            duplicate(tracker)
        tracker.step(1)
    assert rr.store.is_sealed(tmp_path)


def test_strict_tracker_whose_last_rows_are_refused_is_closed_unsealed(tmp_path, monkeypatch):
    model = small_model()
    tracker = rr.RankTracker(model, tmp_path, every=1, strict=True)
    tracker.step(1)
    tracker._pending.add(1, {"loss": 0.5})
    monkeypatch.setenv(VARIABLE, "block.write:full")
    with pytest.raises(OSError, match="No space left"):
        tracker.close()
    monkeypatch.delenv(VARIABLE)
    assert not rr.store.is_sealed(tmp_path)
    assert not rr.store.is_locked(tmp_path)
