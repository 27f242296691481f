"""A finished run answers for its own model and data only, and hands over its trained weights."""

import shutil

import pytest
import torch
from tests.lab.training.tasks import RECIPE, tiny_data, tiny_model, train_tiny

from rankrise.lab.training import TrainingWarning, load_weights
from rankrise.store import checkpoint_steps


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


def test_other_data_is_refused(finished):
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
