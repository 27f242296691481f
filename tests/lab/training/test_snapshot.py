"""What a model draws is saved with the checkpoint, and is none of the user's numbers."""

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
from torch import nn

from rankrise.store import load_run


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.network = nn.Dropout(0.3), tiny_model()

    def forward(self, x):
        return self.network(self.drop(x))


def train_dropped(out, config=RECIPE, *, n=None):
    data = tiny_data() if n is None else BreaksAt(tiny_data(), n)
    return train_tiny(out, config, model=Dropped(), data=data, checkpoint_every=4)


def test_dropout_resumes_in_mid_epoch_bit_for_bit(tmp_path):
    torch.manual_seed(1)
    train_dropped(tmp_path / "whole")
    torch.manual_seed(2)  # of the user: it decides nothing
    for n in (7, 6):  # from 4, from 8
        with pytest.raises(Interrupted):
            train_dropped(tmp_path / "cut", n=n)
        torch.rand(3)
    train_dropped(tmp_path / "cut")
    assert_same_outcome(outcome(tmp_path / "whole"), outcome(tmp_path / "cut"))


def test_global_generator_is_left_alone(tmp_path):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with pytest.raises(Interrupted):
        train_dropped(tmp_path, n=6)
    train_dropped(tmp_path)
    train_dropped(tmp_path)
    assert torch.equal(before, torch.get_rng_state())


def test_seed_of_the_recipe_decides_what_is_drawn(tmp_path):
    from dataclasses import replace

    class SameOrder(BreaksAt):
        def train_batches(self, **options):
            return self._data.train_batches(**options | {"seed": 0})

    def losses(seed):
        config = replace(RECIPE, seed=seed, epochs=1)
        data = SameOrder(tiny_data(), None)
        train_tiny(tmp_path / str(seed), config, model=Dropped(), data=data)
        return [row["value"] for row in load_run(tmp_path / str(seed)).to_pylist() if row["quantity"] == "loss"]

    assert losses(1) != losses(2)
