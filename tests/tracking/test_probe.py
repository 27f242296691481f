"""Gradients and activations through hooks, and without a trace."""

import pytest
import torch
from tests.tracking.models import select, small_model, train_step
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import rankrise as rr
from rankrise.tracking import Measurement, TrackingWarning


class LargestActivation:
    """Of the last layer, and the gradient of its first weight."""

    def attach(self, model, head_map):
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

    def attach(self, model, head_map):
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


class Attention(nn.Module):
    """Self-attention with its queries and keys in a projection that hooks can see."""

    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (self.split(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class AttentionEntropy:
    """Mean entropy of the attention of every head: all that a new quantity of activations needs."""

    def attach(self, model, head_map):
        self.layers = head_map.layers
        self.seen = {}
        self.handles = [
            model.get_submodule(f"{layer.name}.{role}_proj").register_forward_hook(self._keeper(layer.index, role))
            for layer in self.layers
            for role in "qk"
        ]

    def _keeper(self, layer, role):
        return lambda module, inputs, output: self.seen.__setitem__((layer, role), output.detach())

    def read(self, step):
        return [
            Measurement("attention_entropy", self._entropy(layer)[None], layers=(layer.index,), heads=True)
            for layer in self.layers
            if (layer.index, "k") in self.seen
        ]

    def _entropy(self, layer):
        q, k = (self.seen[layer.index, role].unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for role in "qk")
        weights = (q @ k.mT / layer.head_dim**0.5).softmax(-1)
        return torch.special.entr(weights).sum(-1).mean((0, 2))  # (heads,)

    def detach(self):
        for handle in self.handles:
            handle.remove()


@pytest.mark.parametrize("options", [{}, {"quantities": (), "heads": rr.heads.resolve}])
def test_activations_of_every_head_are_rows_like_those_of_the_weights(tmp_path, options):
    torch.manual_seed(0)
    model = nn.Sequential(Attention(8, 2), Attention(8, 2))
    x = torch.randn(3, 5, 8)
    with rr.RankTracker(model, tmp_path, every=2, probes=[AttentionEntropy()], **options) as tracker:
        for step in (1, 2):
            model(x)
            tracker.step(step)
    table = rr.load_run(tmp_path)
    assert select(table, step=1).size == 0
    for layer, inputs in enumerate((x, model[0](x))):
        module = model[layer]
        for head in range(2):
            q, k = (module.split(project(inputs))[:, head] for project in (module.q_proj, module.k_proj))
            weights = (q @ k.mT / 2).softmax(-1)
            expected = -(weights * weights.log()).sum(-1).mean()
            found = select(table, quantity="attention_entropy", layer=layer, head=head, circuit="", index=-1)
            assert found == pytest.approx([expected.item()], rel=1e-5)
    assert not model[0].q_proj._forward_hooks


class WholeMatrix:
    """Singular values of a matrix of a model without heads, and one number of the model."""

    def attach(self, model, head_map):
        assert head_map is None
        self.model = model

    def read(self, step):
        spectra = torch.stack([torch.linalg.svdvals(layer.weight.detach()) for layer in self.model])
        return [
            Measurement("spectrum", spectra, layers=(0, 1), circuit="w"),
            Measurement("norm", spectra.norm()),
        ]

    def detach(self):
        pass


def test_model_without_attention_records_scalars_and_probes(tmp_path):
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 4))
    options = {"every": 1, "quantities": (), "probes": [WholeMatrix()]}
    with rr.RankTracker(model, tmp_path, **options) as tracker:
        tracker.step(1, loss=0.5)
        assert tracker.head_map is None
        assert tracker.estimate().spectra_bytes == 0
    with rr.RankTracker(model, tmp_path, resume=1, exist="overwrite", **options) as tracker:
        tracker.step(2, loss=0.25)
    table = rr.load_run(tmp_path)
    assert select(table, quantity="loss").tolist() == [0.5, 0.25]
    for layer in range(2):
        sigma = torch.linalg.svdvals(model[layer].weight.detach()).double()
        assert select(table, step=2, quantity="spectrum", layer=layer, head=-1, circuit="w").tolist() == sigma.tolist()
    assert select(table, quantity="norm", layer=-1).size == 2


class Failing(LargestActivation):
    """Reads, and is detached, as it is told."""

    def __init__(self, read, detach=None):
        self._read, self._detach = read, detach

    def read(self, step):
        return self._read(step)

    def detach(self):
        super().detach()
        if self._detach is not None:
            raise self._detach


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (lambda step: 1 / 0, "division by zero"),
        (lambda step: [Measurement("entropy", torch.ones(3), layers=(0,))], r"must have the shape \(1\) or \(1, k\)"),
        (lambda step: [("entropy", 1.0)], "`read` must return measurements; got tuple"),
        (lambda step: [Measurement("\ud800", torch.tensor(1.0))], "text that UTF-8 can hold"),
        (lambda step: {"entropy": "high"}, "`entropy` must be one number; got str"),
    ],
)
def test_probe_that_fails_costs_only_itself(tmp_path, read, why):
    with pytest.warns(TrackingWarning, match=rf"^Reading Failing failed: .*{why}.* this is said once") as caught:
        train(tmp_path / "run", [Failing(read), LargestActivation()])
    assert len(caught) == 1
    table = rr.load_run(tmp_path / "run")
    assert select(table, quantity="activation").size == 2
    assert select(table, quantity="entropy").size == 0
    assert select(table, quantity="stable_rank", circuit="kq").size > 0
    with (
        pytest.raises((ValueError, ZeroDivisionError), match=why),
        rr.RankTracker(small_model(), tmp_path / "strict", every=1, probes=[Failing(read)], strict=True) as tracker,
    ):
        tracker.step(1)


def test_probe_that_cannot_be_detached_does_not_keep_the_run_open(tmp_path):
    probes = [LargestActivation(), Failing(lambda step: [], detach=KeyError("gone"))]
    with pytest.warns(TrackingWarning, match=r"^Detaching Failing failed: 'gone'"):
        model = train(tmp_path, probes)
    assert rr.store.is_sealed(tmp_path)
    assert not model.layers[-1]._forward_hooks


def test_head_map_without_layers_measures_nothing(tmp_path):
    model = nn.Linear(4, 3)
    options = {"every": 1, "heads": lambda model: rr.heads.HeadMap((), ()), "probes": []}
    with rr.RankTracker(model, tmp_path, **options) as tracker:
        tracker.step(1, loss=0.5)
    assert rr.load_run(tmp_path)["quantity"].to_pylist() == ["loss"]
    with pytest.raises(ValueError, match=r"it has others: 2 layers of 3 × 4 .* instead of no layers"):
        rr.RankTracker(small_model(), tmp_path, resume=1)
