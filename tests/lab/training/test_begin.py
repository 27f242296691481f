"""A run that was cut off and resumed equals one that was not, bit for bit; a finished one answers for its own model."""

import dataclasses
import shutil
import signal

import numpy as np
import pytest
import torch
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

from rankrise.lab.data import DataConfig, from_tensors, load_dataset
from rankrise.lab.training import TrainingConfig, TrainingWarning, _snapshot, load_weights, mean_loss, train
from rankrise.store import Run, checkpoint_steps, is_sealed, load_run

pytestmark = pytest.mark.filterwarnings("ignore:.*is started over.*:rankrise.tracking.TrackingWarning")

RECIPES = {
    "adam": RECIPE,
    "adamw, clipped": dataclasses.replace(RECIPE, optimiser="adamw", weight_decay=0.1, clip_norm=0.1),
    "sgd": dataclasses.replace(RECIPE, optimiser="sgd", learning_rate=0.1),
    "momentum": dataclasses.replace(RECIPE, optimiser="sgd", learning_rate=0.1, momentum=0.9),
    "accumulated": dataclasses.replace(RECIPE, accumulate=4, evaluate_every=2),
    "bf16": dataclasses.replace(RECIPE, precision="bf16", schedule="constant"),
}


def train_with_breaks(folder, config, breaks, *, augment=(), every=4):
    for n in breaks:
        with pytest.raises(Interrupted):
            train_tiny(folder, config, data=BreaksAt(tiny_data(augment=augment), n), checkpoint_every=every)
    return train_tiny(folder, config, data=tiny_data(augment=augment), checkpoint_every=every)


@pytest.mark.parametrize("name", RECIPES)
def test_resumed_in_mid_epoch(tmp_path, name):
    whole = train_with_breaks(tmp_path / "whole", RECIPES[name], [], augment=("crop",))
    resumed = train_with_breaks(tmp_path / "resumed", RECIPES[name], [6, 5], augment=("crop",))  # from 4, from 8
    assert_same_outcome(outcome(tmp_path / "whole"), outcome(tmp_path / "resumed"))
    assert whole == dataclasses.replace(resumed, message=whole.message)
    assert whole.status == "finished"


@pytest.mark.parametrize("breaks", [[0], [3], [5], [10], [14], [1, 1, 1], [4, 0, 0, 4, 1]])
def test_cut_off_anywhere(tmp_path, breaks):
    train_with_breaks(tmp_path / "whole", RECIPE, [])
    train_with_breaks(tmp_path / "resumed", RECIPE, breaks)
    assert_same_outcome(outcome(tmp_path / "whole"), outcome(tmp_path / "resumed"))


def test_how_often_it_is_saved_changes_nothing(tmp_path):
    train_with_breaks(tmp_path / "seldom", RECIPE, [], every=None)
    train_with_breaks(tmp_path / "often", RECIPE, [], every=1)
    assert_same_outcome(outcome(tmp_path / "seldom"), outcome(tmp_path / "often"))


def test_regression(tmp_path):
    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = tiny_model().encoder

        def forward(self, x):
            return self.encoder(x)

    data = load_dataset(DataConfig("teacher", samples=32, tokens=3, dim=8), root=None)
    config = TrainingConfig(epochs=2, batch_size=16, learning_rate=1e-2)
    model = Head()
    result = train(model, data, config, out=tmp_path / "run", device="cpu")
    batches = list(data.test_batches(batch_size=64))
    assert len(batches) == 1
    with torch.no_grad():
        expected = mean_loss("regress", model(batches[0].inputs), batches[0].targets)
    assert result.test_loss == pytest.approx(float(expected), rel=1e-6)
    assert (result.test_accuracy, result.train_accuracy) == (None, None)


def test_finished_run_is_not_touched(tmp_path):
    first = train_tiny(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    again = train_tiny(tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
    assert again.message == f"Was finished before, after 15 steps in {tmp_path}."
    assert dataclasses.replace(again, message=first.message) == first
    with pytest.raises(ValueError, match=r"must not hold another finished run; `training.epochs` was 3 and is 4\."):
        train_tiny(tmp_path, dataclasses.replace(RECIPE, epochs=4))


def test_other_recipe_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        train_tiny(tmp_path, data=BreaksAt(tiny_data(), 5), checkpoint_every=4, spec={"name": "mine"})
    other = dataclasses.replace(RECIPE, learning_rate=1.0, betas=(0.5, 0.5))
    with pytest.raises(ValueError, match=r"by its own recipe; `learning_rate` was 0.003 and is 1.0; `betas` was"):
        train_tiny(tmp_path, other, spec={"name": "mine"})
    with pytest.raises(ValueError, match=r"must go on as it began; `name` was 'mine' and is 'yours'"):
        train_tiny(tmp_path, spec={"name": "yours"})
    assert train_tiny(tmp_path, spec={"name": "mine"}).status == "finished"


def test_other_model_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        train_tiny(tmp_path, data=BreaksAt(tiny_data(), 5), checkpoint_every=4)
    model = tiny_model()
    model.classifier = torch.nn.Linear(8, 11)
    with pytest.raises(ValueError, match=r"tensors of the checkpoint at step 4; 'classifier.bias' differs"):
        train_tiny(tmp_path, model=model)


def test_other_data_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        train_tiny(tmp_path, data=BreaksAt(tiny_data(), 5), checkpoint_every=4)
    data = {
        "train": (torch.zeros(80, 1, 8, 8), torch.arange(80) % 10),
        "test": (torch.zeros(50, 1, 8, 8), torch.arange(50) % 10),
    }
    for other, what in (
        (tiny_data(seed=1), "its samples are others"),
        (tiny_data(augment=("crop",)), "its samples are others"),
        (from_tensors(**data, task="classify"), "its samples are others"),
        (
            load_dataset(DataConfig("digits", num_train=96, num_test=40), root=None),
            "`num_train` was 80 and is 96; `num_test` was 50 and is 40",
        ),
    ):
        with pytest.raises(ValueError, match=rf"must have the data it began with; {what}\. Restore the data"):
            train_tiny(tmp_path, data=other)
    assert train_tiny(tmp_path).status == "finished"


def test_rounding_of_another_machine_is_the_same_data(tmp_path, monkeypatch):
    with pytest.raises(Interrupted):
        train_tiny(tmp_path, data=BreaksAt(tiny_data(), 5), checkpoint_every=4)
    data = tiny_data()
    numbers = data.fingerprint()
    monkeypatch.setattr(data, "fingerprint", lambda: tuple(x * (1 + 1e-7) for x in numbers))
    assert train_tiny(tmp_path, data=data).status == "finished"


def test_stopped_twice_keeps_the_scores(tmp_path):
    class Signals(BreaksAt):
        def train_batches(self, **options):
            for batch in self._data.train_batches(**options):
                self._left -= 1
                if self._left == 0:
                    signal.raise_signal(signal.SIGTERM)
                yield batch

    first = train_tiny(tmp_path, data=Signals(tiny_data(), 6))
    again = train_tiny(tmp_path, data=Signals(tiny_data(), 1))
    assert (first.status, first.step, again.status, again.step) == ("stopped", 6, "stopped", 7)
    assert first.test_loss is not None
    assert dataclasses.replace(again, step=6, message=first.message) == first


def test_rows_are_on_the_disk_before_a_checkpoint(tmp_path, monkeypatch):
    done = []
    sync, save = Run.sync, _snapshot.save_checkpoint
    monkeypatch.setattr(Run, "sync", lambda run: (done.append("sync"), sync(run))[1])
    monkeypatch.setattr(
        _snapshot, "save_checkpoint", lambda folder, state: (done.append(state.step), save(folder, state))[1]
    )
    train_tiny(tmp_path, dataclasses.replace(RECIPE, num_spectra=0), checkpoint_every=4)
    assert done == ["sync", 4, "sync", 8, "sync", 12, "sync", 15]


def test_seed_of_the_recipe_reaches_the_order(tmp_path):
    class Noted(BreaksAt):
        def train_batches(self, **options):
            seeds.append((options["seed"], options["epoch"]))
            return self._data.train_batches(**options)

    seeds = []
    train_tiny(tmp_path, dataclasses.replace(RECIPE, seed=7), data=Noted(tiny_data(), None))
    assert seeds == [(7, 0), (7, 1), (7, 2)]


def test_other_conditions_are_said(tmp_path, monkeypatch):
    with pytest.raises(Interrupted):
        train_tiny(tmp_path, data=BreaksAt(tiny_data(), 5), checkpoint_every=4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    with pytest.warns(TrainingWarning, match=r"other conditions: `threads` was \d+ and is 77\. The last bits"):
        train_tiny(tmp_path)


def test_two_checkpoints_are_kept_and_the_run_is_sealed(tmp_path):
    train_tiny(tmp_path, checkpoint_every=2)
    assert sorted(checkpoint_steps(tmp_path)) == [14, 15]
    assert is_sealed(tmp_path)


def test_time_of_saving(tmp_path):
    train_tiny(tmp_path, checkpoint_seconds=0.0)  # more seldom than every step: saving takes time
    steps = sorted(checkpoint_steps(tmp_path))
    assert len(steps) == 2
    assert steps[-1] == 15


def test_what_is_recorded(tmp_path):
    result = train_tiny(tmp_path, dataclasses.replace(RECIPE, evaluate_every=2))
    table = load_run(tmp_path)
    rows = {}
    for row in table.to_pylist():
        rows.setdefault(row["quantity"], set()).add(row["step"])
    assert rows["loss"] == set(range(1, 16))
    assert rows["learning_rate"] == {*range(2, 16, 2), 15}  # whenever ranks are measured, but for step 0
    assert rows["train_loss"] == rows["train_accuracy"] == {5, 10, 15}
    assert rows["test_loss"] == rows["test_accuracy"] == {10, 15}
    assert rows["stable_rank"] == {*range(0, 16, 2), 15}
    assert rows["spectrum"] == {4, 8, 15}
    losses = [r["value"] for r in table.to_pylist() if r["quantity"] == "loss"]
    means = [r["value"] for r in table.to_pylist() if r["quantity"] == "train_loss"]
    np.testing.assert_allclose(means, np.reshape(losses, (3, 5)).mean(1), rtol=1e-6)
    assert result.train_loss == means[-1]


def test_the_rate_is_recorded_whenever_ranks_are_measured(tmp_path):
    train_tiny(tmp_path, dataclasses.replace(RECIPE, track_every=7))
    steps = {"learning_rate": set(), "stable_rank": set()}
    for row in load_run(tmp_path).to_pylist():
        steps.get(row["quantity"], set()).add(row["step"])
    assert steps["learning_rate"] == {4, 7, 8, 14, 15}  # by `track_every`, with the spectra, at the end
    assert steps["stable_rank"] == steps["learning_rate"] | {0}


def test_global_state_is_left_alone(tmp_path):
    torch.manual_seed(7)
    before = torch.get_rng_state(), torch.get_float32_matmul_precision(), torch.get_default_dtype()
    train_tiny(tmp_path, dataclasses.replace(RECIPE, precision="tf32"))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (torch.get_float32_matmul_precision(), torch.get_default_dtype())


@pytest.mark.parametrize(
    ("batch_size", "message"),
    [(81, r"at most the number of training samples, 80; got 81\. Choose a smaller batch")],
)
def test_batches_that_do_not_fit(tmp_path, batch_size, message):
    with pytest.raises(ValueError, match=message):
        train_tiny(tmp_path / "run", dataclasses.replace(RECIPE, batch_size=batch_size))
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_that_is_not_here(tmp_path):
    with pytest.raises(ValueError, match=r"`device` must be here; got 'cuda', and PyTorch finds no GPU\. Use 'cpu'"):
        train(tiny_model(), tiny_data(), RECIPE, out=tmp_path / "run", device="cuda")
    with pytest.raises(ValueError, match=r"`device` must be like 'cpu', .* got 'gpu'"):
        train(tiny_model(), tiny_data(), RECIPE, out=tmp_path / "run", device="gpu")


def test_spec_that_is_no_json(tmp_path):
    with pytest.raises(ValueError, match=r"`spec` must go through JSON; Object of type Tensor"):
        train_tiny(tmp_path / "run", spec={"w": torch.ones(1)})


# Finished runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    model = tiny_model()
    return folder, model, train_tiny(folder, model=model)


def test_trained_weights_are_loaded(finished):
    folder, trained, first = finished
    model = tiny_model()
    again = train_tiny(folder, model=model)
    assert (again.status, again.step, again.test_loss) == ("finished", first.step, first.test_loss)
    for name, tensor in trained.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_load_weights(finished):
    folder, trained, _ = finished
    model = tiny_model(seed=5)
    model.load_state_dict(load_weights(folder))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), trained.parameters(), strict=True))


def test_load_weights_of_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must hold a good checkpoint; it has none\.$"):
        load_weights(tmp_path)


def test_other_models_are_refused(finished):
    folder, trained, _ = finished
    name = "'encoder.layers.0.self_attn.in_proj_weight'"
    for model in (tiny_model(seed=1), trained):
        with pytest.raises(ValueError, match=rf"weights that the finished run in .* began with; .* weights in {name}"):
            train_tiny(folder, model=model)
    with pytest.raises(ValueError, match=rf"began with; it has no {name}\. Build it as before, or choose another"):
        train_tiny(folder, model=torch.nn.Linear(3, 3))
    wider = tiny_model()
    wider.classifier = torch.nn.Linear(8, 11)
    with pytest.raises(ValueError, match=r"tensors of the checkpoint at step 15; 'classifier.bias' differs"):
        train_tiny(folder, model=wider)


def test_other_data_than_that_of_a_finished_run_is_refused(finished):
    folder = finished[0]
    with pytest.raises(ValueError, match=r"must have the data it began with; its samples are others\. Restore"):
        train_tiny(folder, data=tiny_data(seed=1))


def test_deleted_checkpoint_is_said(finished, tmp_path):
    folder, _, first = finished
    copy = shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(copy / "checkpoints")
    model = tiny_model()
    with pytest.warns(
        TrainingWarning, match=r"^The run in .* has no checkpoint any more, so `model` keeps its initial"
    ):
        again = train_tiny(copy, RECIPE, model=model)
    assert again.test_loss == first.test_loss
    assert checkpoint_steps(copy) == []
    assert torch.equal(model.classifier.weight, tiny_model().classifier.weight)
