"""What is wrong with the arguments is said in a sentence, before a folder is begun."""

import dataclasses
import signal

import pytest
import torch
from tests.lab.training.tasks import RECIPE, Wrapped, tiny_data, tiny_model, train_tiny
from tests.processes import exit_code
from torch import nn
from torch.utils.data import TensorDataset

from rankrise.lab.data import from_tensors
from rankrise.lab.training import train


class Classes(nn.Module):
    """Gives what it is made of, whatever it is given."""

    def __init__(self, outputs):
        super().__init__()
        self.weight, self.outputs = nn.Parameter(torch.ones(1)), outputs

    def forward(self, x):
        return self.weight * self.outputs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "vit"}, r"`model` must be a torch.nn.Module; got str"),
        (
            {"dataset": TensorDataset(torch.zeros(3))},
            r"`dataset` must be a rankrise.lab.data.Dataset; got TensorDataset\. ",
        ),
        ({"config": {"epochs": 2}}, r"`config` must be a TrainingConfig; got dict"),
        ({"out": None}, r"`out` must be the path of a folder; got None"),
        ({"checkpoint_every": 0}, r"`checkpoint_every` must be at least 1; got 0"),
        ({"checkpoint_every": 2.5}, r"`checkpoint_every` must be a whole number; got 2.5"),
        ({"checkpoint_seconds": -1}, r"`checkpoint_seconds` must be a number of at least 0; got -1"),
        ({"checkpoint_seconds": float("nan")}, r"`checkpoint_seconds` must be a number of at least 0; got nan"),
        (
            {"model": tiny_model().bfloat16()},
            r"`model` must be in float32; 'embed.weight' is in bfloat16\. Call `model",
        ),
        (
            {"model": nn.Linear(3, 10)},
            r"`model` must take the inputs of `dataset`, \(2, 1, 8, 8\), to what .*it fails: mat",
        ),
        (
            {"model": Classes(torch.zeros(3, 10))},
            r"its task 'classify' needs; it fails: Expected input batch_size \(3\)",
        ),
        ({"model": Classes(torch.zeros(2, 3))}, r"its task 'classify' needs; it fails: Target \d+ is out of bounds"),
        ({"config": dataclasses.replace(RECIPE, batch_size=81)}, r"at most the number of training samples, 80; got 81"),
    ],
)
def test_refusals(tmp_path, arguments, message):
    given = {"model": tiny_model(), "dataset": tiny_data(), "config": RECIPE, "out": tmp_path / "run"} | arguments
    with pytest.raises(ValueError, match=message):
        train(given.pop("model"), given.pop("dataset"), given.pop("config"), device="cpu", **given)
    assert list(tmp_path.iterdir()) == []


def test_own_tensors(tmp_path):
    images, labels = torch.randn(48, 1, 8, 8), torch.arange(48) % 10
    data = from_tensors((images[:32], labels[:32]), (images[32:], labels[32:]), task="classify")
    assert train_tiny(tmp_path, data=data).status == "finished"


class Slow(Wrapped):
    """Gets a signal while it is moved to the device."""

    number = signal.SIGINT

    def to(self, device):
        if device != "cpu":
            signal.raise_signal(self.number)
        return self


def test_ctrl_c_before_the_first_step_ends_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train_tiny(tmp_path / "run", data=Slow(tiny_data()))
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_sigterm_before_the_first_step_ends_at_once(tmp_path):
    class Ended(Slow):
        number = signal.SIGTERM

    assert exit_code(lambda: train_tiny(tmp_path / "run", data=Ended(tiny_data()))) == -signal.SIGTERM
