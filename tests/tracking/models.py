"""A small transformer with dropout, a training loop whose data are a function of the step, and reading of tables."""

import numpy as np
import pyarrow.compute as pc
import torch
from torch import nn


def small_model(seed=0, *, layers=2, width=12, heads=3, dropout=0.1, dtype=torch.float32):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=dropout, batch_first=True, norm_first=True)
        return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(dtype)


def data(step, model):
    parameter = next(model.parameters())
    generator = torch.Generator().manual_seed(step)
    width = model.get_submodule("layers.0.linear1").in_features if not hasattr(model, "width") else model.width
    return torch.randn(4, 5, width, generator=generator).to(parameter.dtype)


def train_step(model, optimiser, step):
    """One update; dropout draws from the global generator."""
    model.train()
    x = data(step, model)
    loss = (model(x) - x.flip(1)).square().mean()
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    return loss


def select(table, **values):
    """Rows with the given values, as a numpy array of their numbers in order."""
    for name, value in values.items():
        table = table.filter(pc.field(name) == value)
    return table["value"].to_numpy()


def in_order(table):
    """The table without the order of recording."""
    return table.sort_by([(name, "ascending") for name in ("step", "quantity", "circuit", "layer", "head", "index")])


def assert_same(first, second):
    """The same rows in the same order, NaN where NaN was."""
    assert first.drop_columns("value").equals(second.drop_columns("value"))
    np.testing.assert_array_equal(first["value"].to_numpy(), second["value"].to_numpy())
