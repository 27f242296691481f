"""A run is begun once and resumed only with what it began with."""

import functools
import json
import os
import signal

import pytest
import torch
from tests.processes import exit_code
from tests.tracking.models import assert_same, small_model
from torch import nn

import rankrise as rr
from rankrise.store._failpoints import VARIABLE
from rankrise.tracking import RunDirectoryError, TrackingWarning, _tracked_run

OPTIONS = {"every": 1, "config": {"lr": 0.1}}


def trained():
    """The model of the run at a checkpoint: the same shape, other weights."""
    return small_model(seed=1)


@pytest.fixture
def run(tmp_path):
    with rr.RankTracker(small_model(), tmp_path, **OPTIONS) as tracker:
        tracker.step(1)
    return tmp_path


def test_spec_says_what_was_asked_for(run):
    spec = json.loads((run / "spec.json").read_text())
    assert spec["every"] == "Every(num_steps=1)"
    assert spec["spectra"] == "Every(num_steps=10)"
    assert spec["config"] == {"lr": 0.1}
    assert [layer["num_heads"] for layer in spec["layers"]] == [3, 3]
    assert json.loads((run / "env.json").read_text())["packages"]["torch"]


def test_existing_run_is_refused_with_the_ways_out(run):
    ways = (
        r"Pass `exist=\"resume\"` to go on with it, `exist=\"overwrite\"` to replace it, or `exist=\"new\"` to write to"
    )
    with pytest.raises(ValueError, match=rf"must not hold a run yet; it holds a finished one\. {ways} .*-2\."):
        rr.RankTracker(small_model(), run)
    rr.RankTracker(trained(), run, resume=1, **OPTIONS).close(seal=False)
    with pytest.raises(ValueError, match="it holds an unfinished one"):
        rr.RankTracker(small_model(), run)


def test_new_is_the_next_free_folder(tmp_path):
    outs = []
    for _ in range(3):
        with rr.RankTracker(small_model(), tmp_path / "mine", exist="new", every=1) as tracker:
            tracker.step(1)
        outs.append(tracker.out.name)
    assert outs == ["mine", "mine-2", "mine-3"]
    assert [rr.load_run(tmp_path / out).num_rows for out in outs] == [36, 36, 36]
    with pytest.raises(ValueError, match=r'With `exist="new"` training must begin at step 0; it is resumed at step 5'):
        rr.RankTracker(small_model(), tmp_path / "mine", exist="new", resume=5)


def test_overwrite_replaces_the_run(run):
    (run / "notes.txt").write_text("mine")
    with rr.RankTracker(trained(), run, exist="overwrite", every=2, spectra=2) as tracker:
        tracker.step(2)
    assert set(rr.load_run(run)["step"].to_pylist()) == {2}
    assert rr.store.load_spec(run)["every"] == "Every(num_steps=2)"
    rr.store.verify_run(run)
    assert (run / "notes.txt").read_text() == "mine"  # files of the user stay


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_overwriting_that_is_killed_leaves_no_mixture(run, monkeypatch):
    def overwrite():
        monkeypatch.setattr(rr.store._writing, "save_tensors_in", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        rr.RankTracker(trained(), run, exist="overwrite")

    assert exit_code(overwrite) == -signal.SIGKILL
    assert not rr.store.has_run(run)
    rr.RankTracker(small_model(), run).close()  # the folder is free


def test_resume_goes_on_where_the_run_ends(run):
    before = rr.load_run(run)
    with rr.RankTracker(trained(), run, exist="resume", **OPTIONS) as tracker:
        with pytest.raises(ValueError, match="`step` must not go back; got 0 after 1"):
            tracker.step(0)
        tracker.step(2)
    assert_same(rr.load_run(run).slice(0, before.num_rows), before)
    assert set(rr.load_run(run)["step"].to_pylist()) == {1, 2}


def test_resume_begins_where_there_is_no_run(tmp_path):
    with rr.RankTracker(small_model(), tmp_path / "mine", exist="resume", every=1) as tracker:
        tracker.step(1)
    assert set(rr.load_run(tmp_path / "mine")["step"].to_pylist()) == {1}


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("exist", ["error", "resume"])
def test_nothing_is_dropped_without_consent(tmp_path, sealed, exist):
    tracker = rr.RankTracker(small_model(), tmp_path, every=1, spectra=2)
    for step in range(1, 3):
        tracker.step(step)
    tracker.close(seal=sealed)
    before, files = rr.load_run(tmp_path), sorted(path.name for path in tmp_path.rglob("*"))
    message = r'at step 1 must not drop rows .* at 1 later step, to step 2\. Pass `exist="overwrite"` to drop them'
    with pytest.raises(ValueError, match=message):
        rr.RankTracker(trained(), tmp_path, every=1, spectra=2, resume=1, exist=exist)
    assert_same(rr.load_run(tmp_path), before)
    assert sorted(path.name for path in tmp_path.rglob("*")) == files
    assert rr.store.is_sealed(tmp_path) == sealed
    with rr.RankTracker(trained(), tmp_path, every=1, spectra=2, resume=1, exist="overwrite") as tracker:
        assert tracker.num_dropped_steps == 1
    assert set(rr.load_run(tmp_path)["step"].to_pylist()) == {1}


def test_unknown_exist_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`exist` must be"):
        rr.RankTracker(small_model(), tmp_path, exist="append")


def test_resume_needs_a_run(tmp_path):
    with pytest.raises(
        ValueError, match=r"To resume at step 7, .* must hold the run with its initial weights; there is none"
    ):
        rr.RankTracker(small_model(), tmp_path / "nothing", resume=7)


def test_resume_at_zero_begins_or_starts_over(run, tmp_path):
    rr.RankTracker(small_model(), tmp_path / "new", resume=0).close()
    with pytest.raises(ValueError, match="at step 0 must not drop rows unless you allow it"):
        rr.RankTracker(small_model(), run, resume=0, **OPTIONS)
    assert rr.load_run(run).num_rows > 0
    with pytest.raises(
        ValueError, match=r"At step 0 the model must have the weights that .* began with; it has others"
    ):
        rr.RankTracker(trained(), run, resume=0, exist="overwrite", **OPTIONS)
    with pytest.warns(TrackingWarning, match=r"is started over: 36 rows to step 1 were dropped"):
        rr.RankTracker(small_model(), run, resume=0, exist="overwrite", **OPTIONS).close()
    assert rr.load_run(run).num_rows == 0


def test_initial_weights_are_never_taken_again(run):
    saved = rr.store.load_initial(run)
    rr.RankTracker(trained(), run, resume=1, **OPTIONS).close()
    for name, weight in rr.store.load_initial(run).items():
        assert torch.equal(weight, saved[name])


def test_other_heads_are_refused(run):
    before = rr.load_run(run)
    with pytest.raises(
        ValueError,
        match=r"it has others: 2 layers of 2 × 6 .* instead of 2 layers of 3 × 4 .*; "
        r"layer 0 \('layers\.0\.self_attn'\) has num_heads 2 instead of 3\. Choose",
    ):
        rr.RankTracker(small_model(heads=2), run, resume=1)
    assert rr.store.is_sealed(run)  # nothing was touched
    assert rr.load_run(run).equals(before)


def test_other_names_are_refused_by_name(run):
    with pytest.raises(ValueError, match=r"layer 0 \('0\.layers\.0\.self_attn'\) has name .* instead of 'layers\.0\."):
        rr.RankTracker(nn.Sequential(trained()), run, resume=1, **OPTIONS)


@pytest.mark.parametrize("fold_first", [False, True])
def test_other_reading_of_the_weights_is_refused(tmp_path, fold_first):
    fold = functools.partial(rr.heads.resolve, fold_norm=True)
    first, second = (fold, None) if fold_first else (None, fold)
    rr.RankTracker(small_model(), tmp_path, heads=first).close()
    with pytest.raises(ValueError, match=r"read in the same way.*layer 0 .* has norm of 'q' .* instead of"):
        rr.RankTracker(trained(), tmp_path, heads=second, resume=1)


def test_other_options_are_said(run):
    with pytest.warns(TrackingWarning, match=r"options .*: `every` was Every\(num_steps=1\) and is .*`directions`"):
        rr.RankTracker(trained(), run, resume=1, **OPTIONS | {"every": 2, "directions": 1}).close()


def test_resume_with_the_initial_weights_is_said(run):
    with pytest.warns(TrackingWarning, match=r"At step 1 the model has exactly the weights .*Was the checkpoint"):
        rr.RankTracker(small_model(), run, resume=1, **OPTIONS).close()


def test_weights_that_were_not_saved_are_named(run, monkeypatch):
    monkeypatch.setattr(_tracked_run, "load_initial", lambda _: {"other": torch.ones(1)})
    with pytest.raises(ValueError, match=r"must be among those .* began with; 'layers\.0\.self_attn\.\S+' is not"):
        rr.RankTracker(trained(), run, resume=1, **OPTIONS)


@pytest.mark.parametrize("sealed", [True, False])
def test_step_of_the_checkpoint_is_not_measured_again(tmp_path, sealed):
    tracker = rr.RankTracker(small_model(), tmp_path, every=1, spectra=2)
    for step in range(3):
        tracker.step(step)
    tracker.close(seal=sealed)
    before = rr.load_run(tmp_path)
    with rr.RankTracker(trained(), tmp_path, every=1, spectra=2, resume=2) as tracker:
        tracker.step(2)
    assert_same(rr.load_run(tmp_path), before)


def test_starting_over_measures_step_zero_again(tmp_path):
    tracker = rr.RankTracker(small_model(), tmp_path, every=1)
    tracker.step(0)
    tracker.close(seal=False)
    before = rr.load_run(tmp_path)
    with (
        pytest.warns(TrackingWarning, match="is started over"),
        rr.RankTracker(small_model(), tmp_path, every=1, resume=0, exist="overwrite") as tracker,
    ):
        tracker.step(0)
    assert_same(rr.load_run(tmp_path), before)


@pytest.mark.parametrize("name", ["file", "file/run", "file/a/run"])
def test_file_in_the_way_is_refused(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"`out` must be a folder, there or to be made; .*file is a file"):
        rr.RankTracker(small_model(), tmp_path / name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resume": True}, r"`resume` must be a whole number; got True \(bool\)"),
        ({"resume": "3"}, r"`resume` must be a whole number; got '3' \(str\)"),
        ({"directions": 2.5}, r"`directions` must be a whole number; got 2\.5"),
        ({"directions": -1}, "`directions` must be at least 0; got -1"),
        ({"every": True}, "`every` must be a whole number; got True"),
        ({"every": 0}, "`every` must be at least 1; got 0"),
        ({"quantities": "spectrum"}, r"`quantities` must be a list; got 'spectrum'\. Pass \['spectrum'\]"),
        ({"config": [1]}, "`config` must be a mapping; got list"),
        ({"sinks": rr.tracking.WandbSink}, "`sinks` must be a list of sinks; got <class"),
        ({"sinks": [rr.tracking.WandbSink]}, "A sink must be an object with .* got <class"),
        ({"sinks": ["wandb"]}, "A sink must be an object with .* got 'wandb'"),
        ({"model": "model"}, r"`model` must be a torch\.nn\.Module; got str"),
    ],
)
def test_options_of_another_kind_are_named(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        rr.RankTracker(**{"model": small_model(), "out": tmp_path} | options)
    assert list(tmp_path.iterdir()) == []


def test_negative_resume_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`resume` must be at least 0; got -1"):
        rr.RankTracker(small_model(), tmp_path, resume=-1)


def test_config_must_go_through_json(tmp_path):
    with pytest.raises(ValueError, match=r"`config` must go through JSON; .*Pass numbers"):
        rr.RankTracker(small_model(), tmp_path, config={"device": torch.device("cpu")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [{"needs_folder": True}, {"strict": True}])
def test_folder_that_cannot_be_written_has_an_error_of_its_own(tmp_path, monkeypatch, options):
    monkeypatch.setenv(VARIABLE, "spec.write:full")
    with pytest.raises(
        RunDirectoryError, match=r"^Opening the run directory .* failed: the disk is full\. Make room\.$"
    ):
        rr.RankTracker(small_model(), tmp_path, **options)
    with pytest.warns(
        TrackingWarning, match=r"^Opening the run directory .* Training goes on without it; this is said"
    ):
        assert not rr.RankTracker(small_model(), tmp_path).is_recording
