"""Mistakes that left an empty or a constant run without a word are said at the end of the training."""

import pytest
import torch
from tests.tracking.models import select, small_model, train_step

import rankrise as rr
from rankrise.tracking import TrackingWarning


def train(out, model, *, optimised=None, steps=5, **options):
    torch.manual_seed(0)  # of the dropout
    optimiser = torch.optim.SGD((model if optimised is None else optimised).parameters(), 0.05)
    with rr.RankTracker(model, out, **options) as tracker:
        for step in range(1, steps + 1):
            tracker.step(step, loss=train_step(model if optimised is None else optimised, optimiser, step))
    return rr.load_run(out)


def said(record):
    return [str(warning.message) for warning in record if warning.category is TrackingWarning]


def test_clock_that_never_strikes_is_said_and_the_end_is_measured(tmp_path):
    with pytest.warns(TrackingWarning) as record:
        table = train(tmp_path / "a", small_model(), every=200)
    assert said(record) == [
        "Nothing was measured in the 5 steps of this training, because `every` was Every(num_steps=200); the last "
        "weights were measured now, and every=1 would show curves."
    ]
    wanted = train(tmp_path / "b", small_model(), every=5, spectra=5)
    for quantity in ("stable_rank", "spectrum"):
        assert select(table, quantity=quantity, step=5).tolist() == select(wanted, quantity=quantity, step=5).tolist()


def test_measuring_at_step_zero_only_counts_as_nothing(tmp_path):
    tracker = rr.RankTracker(small_model(), tmp_path)
    tracker.step(0)
    tracker.step(1)
    with pytest.warns(TrackingWarning, match="Nothing was measured"):
        tracker.close()
    assert set(rr.load_run(tmp_path)["step"].to_pylist()) == {0, 1}


def test_training_that_was_broken_off_is_not_measured_again(tmp_path):
    tracker = rr.RankTracker(small_model(), tmp_path)
    tracker.step(5)
    tracker.close(seal=False)  # a warning would be an error here
    assert rr.load_run(tmp_path).num_rows == 0


def test_weights_that_never_moved_are_said(tmp_path):
    with pytest.warns(TrackingWarning) as record:
        train(tmp_path, small_model(), optimised=small_model(), every=1)
    assert said(record) == [
        "No tracked weight has moved in 5 steps: the tracker must be built before training, on the model whose "
        "parameters the optimiser updates."
    ]


def test_tracker_built_after_training_is_said(tmp_path):
    model = small_model()
    optimiser = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(5):
        train_step(model, optimiser, step)
    tracker = rr.RankTracker(model, tmp_path, every=5)
    tracker.step(5)
    with pytest.warns(TrackingWarning, match="No tracked weight has moved in 5 steps"):
        tracker.close()


def test_one_layer_that_moves_is_enough(tmp_path):
    model = small_model()
    for weight in model.layers[0].parameters():
        weight.requires_grad_(False)
    train(tmp_path, model, every=1)  # a warning would be an error here


def test_warm_up_from_a_rate_of_zero_is_no_mistake(tmp_path):
    with rr.RankTracker(small_model(), tmp_path, every=1) as tracker:
        tracker.step(1)
        tracker.step(2)
