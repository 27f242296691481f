"""A run is begun once and resumed only with what it began with."""

import json

import pytest
import torch
from tests.tracking.models import small_model

import rankrise as rr


@pytest.fixture
def run(tmp_path):
    with rr.RankTracker(small_model(), tmp_path, every=1, config={"lr": 0.1}) as tracker:
        tracker.step(1)
    return tmp_path


def test_spec_says_what_was_asked_for(run):
    spec = json.loads((run / "spec.json").read_text())
    assert spec["every"] == "Every(num_steps=1)"
    assert spec["spectra"] == "Every(num_steps=10)"
    assert spec["config"] == {"lr": 0.1}
    assert [layer["num_heads"] for layer in spec["layers"]] == [3, 3]
    assert json.loads((run / "env.json").read_text())["packages"]["torch"]


def test_existing_run_needs_resume(run):
    with pytest.raises(
        ValueError, match=r"must not hold a finished run; it does\. Pass `resume=<step of the checkpoint>`"
    ):
        rr.RankTracker(small_model(), run)
    rr.RankTracker(small_model(), run, resume=1).close(seal=False)
    with pytest.raises(ValueError, match=r"must not hold an unfinished run; it does\. Pass `resume="):
        rr.RankTracker(small_model(), run)


def test_resume_needs_a_run(tmp_path):
    with pytest.raises(
        ValueError, match=r"To resume at step 7, .* must hold the run with its initial weights; there is none"
    ):
        rr.RankTracker(small_model(), tmp_path / "nothing", resume=7)


def test_resume_at_zero_begins_or_starts_over_what_was_cut_off(run, tmp_path):
    rr.RankTracker(small_model(), tmp_path / "new", resume=0).close()
    with pytest.raises(ValueError, match="must not hold a finished run; it does"):
        rr.RankTracker(small_model(), run, resume=0)
    assert rr.load_run(run).num_rows > 0
    rr.RankTracker(small_model(), run, resume=1).close(seal=False)  # cut off
    with pytest.raises(
        ValueError, match=r"At step 0 the model must have the weights that .* began with; it has others"
    ):
        rr.RankTracker(small_model(seed=1), run, resume=0)
    rr.RankTracker(small_model(), run, resume=0).close()
    assert rr.load_run(run).num_rows == 0


def test_initial_weights_are_never_taken_again(run):
    saved = rr.store.load_initial(run)
    rr.RankTracker(small_model(seed=1), run, resume=1).close()
    for name, weight in rr.store.load_initial(run).items():
        assert torch.equal(weight, saved[name])


def test_other_heads_are_refused(run):
    with pytest.raises(ValueError, match=r"it has others: 2 layers of 2 × 6 .* instead of 2 layers of 3 × 4"):
        rr.RankTracker(small_model(heads=2), run, resume=1)
    rr.RankTracker(small_model(), run, resume=1).close()  # the lock was given back


def test_negative_resume_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`resume` must be the step of a checkpoint, 0 or more; got -1"):
        rr.RankTracker(small_model(), tmp_path, resume=-1)


def test_config_must_go_through_json(tmp_path):
    with pytest.raises(ValueError, match=r"`config` must go through JSON; .*Pass numbers"):
        rr.RankTracker(small_model(), tmp_path, config={"device": torch.device("cpu")})
    assert list(tmp_path.iterdir()) == []
