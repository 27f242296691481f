"""Ctrl-C before and after every call of a tracked loop to the system: a loop that is run again, or that goes on after
it as in a notebook, comes to a whole table. Clocks that jump change nothing."""

import os
import random
import time

import pytest
import torch
from tests.faults.loop import live, lost, tiny_model
from tests.tracking.models import train_step

import rankrise as rr
from rankrise.store._failpoints import RUN_FAILPOINTS, VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*was cut off", "ignore:.*is started over")]
CALLS = (
    "open",
    "write",
    "pwrite",
    "rename",
    "unlink",
    "ftruncate",
    "mkdir",
    "fchmod",
    "dup",
    "fsync",
    "listdir",
    "rmdir",
)
STEPS = 6


class Interrupt:
    """Counts the calls to the system, and raises `KeyboardInterrupt` before or after one of them."""

    def __init__(self, patch, at=None, *, after=False):
        self.count = 0
        self._at, self._after = at, after
        for name in CALLS:
            patch.setattr(os, name, self._wrap(getattr(os, name)))

    def _wrap(self, call):
        def wrapped(*args, **options):
            self.count += 1
            is_here = self.count == self._at
            if is_here and not self._after:
                raise KeyboardInterrupt
            result = None
            try:
                result = call(*args, **options)
            finally:
                if is_here:
                    if result is not None and call.__name__ in ("open", "dup"):
                        os.close(result)  # an interrupt at this place loses the descriptor; the kernel would keep it
                    raise KeyboardInterrupt
            return result

        return wrapped


def num_calls(folder, run):
    with pytest.MonkeyPatch.context() as patch:
        counter = Interrupt(patch)
        run(folder)
        return counter.count


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    folder = tmp_path_factory.mktemp("short") / "run"
    live(folder, steps=STEPS)
    return rr.load_run(folder)


def in_notebook(folder):
    """A cell for each step, which the user starts again after an interrupt of the loop, and one that closes.

    Returns:
        The steps of the cells that were interrupted; None if it was the first cell.
    """
    model, cut = tiny_model(), []
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    try:
        tracker = rr.RankTracker(
            model, folder, every=1, spectra=5, directions=2, strict=True, resume=0, exist="overwrite"
        )
    except KeyboardInterrupt:
        return None
    for step in range(1, STEPS + 1):
        loss = train_step(model, optimiser, step)
        try:
            tracker.step(step, loss=loss)
        except KeyboardInterrupt:
            cut.append(step)
    try:
        tracker.close()
    except KeyboardInterrupt:
        cut.append("close")
    return cut


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_interrupted_at_every_call_and_run_again(tmp_path, short, after, record_property):
    count = num_calls(tmp_path / "counted", lambda folder: live(folder, steps=STEPS))
    assert count > 80
    for at in range(1, count + 1):
        folder = tmp_path / f"{at}"
        with pytest.MonkeyPatch.context() as patch:
            Interrupt(patch, at, after=after)
            with pytest.raises(KeyboardInterrupt):
                live(folder, steps=STEPS)
        if not (rr.store.has_run(folder) and rr.store.is_sealed(folder)):
            live(folder, steps=STEPS)
        assert rr.store.is_sealed(folder), at
        assert lost(folder, short) == 0, at
    record_property("interrupts survived", count)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_interrupted_at_every_call_and_gone_on(tmp_path, short, after, record_property):
    count = num_calls(tmp_path / "counted", in_notebook)
    wanted = set(map(str, short.to_pylist()))
    for at in range(1, count + 1):
        folder = tmp_path / f"{at}"
        with pytest.MonkeyPatch.context() as patch:
            Interrupt(patch, at, after=after)
            cut = in_notebook(folder)
        if cut is None:
            continue
        rows = rr.load_run(folder).to_pylist()  # warnings are errors: nothing is torn
        assert set(map(str, rows)) <= wanted, at
        assert len(rows) == len(set(map(str, rows))), at
        missing = {row["step"] for row in short.to_pylist() if str(row) not in set(map(str, rows))}
        assert missing <= set(cut), at
        if "close" not in cut:
            assert rr.store.is_sealed(folder), at
    record_property("interrupts survived", count)


@pytest.mark.parametrize("failpoint", RUN_FAILPOINTS)
def test_interrupted_at_every_failpoint(tmp_path, whole, monkeypatch, failpoint):
    monkeypatch.setattr("rankrise.store._failpoints._hits", {})
    folder = tmp_path / "run"
    monkeypatch.setenv(VARIABLE, f"{failpoint}:interrupt")
    with pytest.raises(KeyboardInterrupt):
        live(folder)
    monkeypatch.delenv(VARIABLE)
    live(folder)
    assert lost(folder, whole) == 0


@pytest.mark.parametrize("seed", range(3))
def test_clocks_that_jump(tmp_path, whole, monkeypatch, seed):
    """The clock of the day goes back and forth by years; the files of the run get dates to match."""
    generator, folder = random.Random(seed), tmp_path / "run"

    def jump(_):
        for path in folder.rglob("*"):
            os.utime(path, (day(), day()))

    def day():
        return generator.uniform(0, 2**32)

    monkeypatch.setattr(time, "time", day)
    monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * day()))
    live(folder, after_step=jump)
    assert lost(folder, whole) == 0
