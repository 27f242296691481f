"""Gradients and activations through hooks, and without a trace."""

import pytest
import torch
from tests.tracking.models import select, small_model, train_step

import rankrise as rr


class LargestActivation:
    """Of the last layer, and the gradient of its first weight."""

    def attach(self, model):
        self.activation = self.gradient = 0.0
        layer = model.layers[-1]
        self.handles = [
            layer.register_forward_hook(self._see),
            layer.linear1.weight.register_hook(self._see_gradient),
        ]

    def _see(self, module, inputs, output):
        self.activation = output.detach().abs().max().item()

    def _see_gradient(self, gradient):
        self.gradient = gradient.norm().item()

    def read(self, step):
        return {"activation": self.activation, "gradient": self.gradient}

    def detach(self):
        for handle in self.handles:
            handle.remove()


class Broken(LargestActivation):
    """Cannot be attached."""

    def attach(self, model):
        raise KeyError("no such layer")


def test_probe_that_cannot_be_attached_leaves_the_folder_and_the_model(tmp_path):
    model = small_model()
    with pytest.raises(KeyError, match="no such layer") as caught:  # kept, and with it every frame
        rr.RankTracker(model, tmp_path, probes=[LargestActivation(), Broken()])
    assert not model.layers[-1]._forward_hooks
    rr.RankTracker(model, tmp_path, resume=0).close()
    assert caught


def train(out, probes):
    model = small_model()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(0)
    with rr.RankTracker(model, out, every=2, probes=probes) as tracker:
        for step in range(1, 5):
            train_step(model, optimiser, step)
            tracker.step(step)
    return model


def test_probe(tmp_path):
    plain = train(tmp_path / "plain", [])
    probed = train(tmp_path / "probed", [LargestActivation()])
    for a, b in zip(plain.parameters(), probed.parameters(), strict=True):
        assert torch.equal(a, b)
    table = rr.load_run(tmp_path / "probed")
    for name in ("activation", "gradient"):
        values = select(table, quantity=name)
        assert values.size == 2
        assert (values > 0).all()
    assert not probed.layers[-1]._forward_hooks
