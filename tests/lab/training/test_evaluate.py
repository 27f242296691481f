"""Scores against the sums written out: a last short batch counts by its rows, and dropout is off."""

import pytest
import torch
from tests.lab.training.tasks import Wrapped
from torch import nn
from torch.nn.functional import cross_entropy

from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.models import GPTConfig, ToyHeadConfig, ViTConfig, build_model
from rankrise.lab.training import TrainingConfig, train
from rankrise.lab.training._evaluate import build_evaluation
from rankrise.lab.training._processes import Processes

TASKS = {  # each with 40 test samples: two batches of 16 and one of 8
    "classify": (
        DataConfig("digits", num_train=48, num_test=40),
        ViTConfig(image_size=8, num_channels=1, num_layers=1, num_heads=2, head_dim=4, width=8, mlp_width=8),
    ),
    "next_token": (
        DataConfig("synthetic_text", num_train=48, num_test=40, context=8, num_classes=8),
        GPTConfig(vocab_size=8, context=8, num_layers=1, num_heads=2, head_dim=4, width=8, mlp_width=8),
    ),
    "regress": (
        DataConfig("teacher", samples=48, num_test=40, tokens=3, dim=6),
        ToyHeadConfig(dim=6, head_dim=6, init_scale=0.3),
    ),
}
CONFIG = TrainingConfig(epochs=2, batch_size=16, learning_rate=1e-2)


class Dropped(nn.Module):
    """A network behind dropout, which must be off when it is tested."""

    def __init__(self, network):
        super().__init__()
        self.network, self.drop = network, nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.network(x))


def make(task):
    data, model = TASKS[task]
    return Dropped(build_model(model)), load_dataset(data, root=None)


def by_hand(model, data):
    """(mean loss, share correct) over the test set in one piece, in float64."""
    (batch,) = data.test_batches(batch_size=40)
    model.eval()
    with torch.no_grad():
        outputs = model(batch.inputs).double()
    if data.task == "regress":
        return float((outputs - batch.targets).square().sum() / 2 / 40), None
    outputs, targets = outputs.flatten(0, -2), batch.targets.flatten()
    return float(cross_entropy(outputs, targets)), float((outputs.argmax(-1) == targets).double().mean())


@pytest.mark.parametrize("task", TASKS)
def test_test_scores(tmp_path, task):
    model, data = make(task)
    result = train(model, data, CONFIG, out=tmp_path, device="cpu")
    assert model.training
    loss, accuracy = by_hand(model, data)
    assert result.test_loss == pytest.approx(loss, rel=1e-5)
    assert result.test_accuracy == (None if accuracy is None else pytest.approx(accuracy))


def test_train_accuracy(tmp_path):
    class Remembered(Dropped):
        def forward(self, x):
            outputs = self.network(x)
            if self.training:
                seen.append(outputs.detach().argmax(-1))
            return outputs

    class Told(Wrapped):
        def train_batches(self, **options):
            for batch in self._data.train_batches(**options):
                told.append(batch.targets)
                yield batch

    seen, told = [], []
    data, model = TASKS["classify"]
    config = TrainingConfig(epochs=2, batch_size=16, learning_rate=1e-2, accumulate=2)
    result = train(
        Remembered(build_model(model)), Told(load_dataset(data, root=None)), config, out=tmp_path, device="cpu"
    )
    right = (torch.cat(seen)[-48:] == torch.cat(told)[-48:]).double().mean()
    assert 0 < right < 1
    assert result.train_accuracy == pytest.approx(float(right))


def test_processes_add_up_what_they_tested():
    """Two processes, played one after the other: each has its share of the sums, the second gets both."""
    shares = []

    class Two(Processes):
        def add_up(self, totals):
            shares.append(totals)
            return sum(shares)

    model, data = make("next_token")
    for rank in (0, 1):
        scores = build_evaluation(model, data, CONFIG, device=torch.device("cpu"), processes=Two(rank, 2))()
    loss, accuracy = by_hand(model, data)
    assert float(scores["test_loss"]) == pytest.approx(loss, rel=1e-5)
    assert float(scores["test_accuracy"]) == pytest.approx(accuracy)
