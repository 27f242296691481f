"""The entropy of every head in the table of a run, and training without a trace of it."""

import numpy as np
import pytest
import torch
from tests.tracking.models import data, select, small_model, train_step
from torch import nn

import rankrise as rr
from rankrise.gauges import attention_entropy
from rankrise.lab.models import GPTConfig, ToyHeadConfig, build_model
from rankrise.tracking import TrackingWarning
from rankrise.tracking.probes import EntropyProbe

QUANTITIES = ("attention_entropy", "attention_entropy_share", "entropy_floor", "max_logit")


def train(out, probes, *, steps=4, model=None, **options):
    model = small_model() if model is None else model
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(0)
    with rr.RankTracker(model, out, every=1, probes=probes, **options) as tracker:
        losses = [(train_step(model, optimiser, step), tracker.step(step))[0].item() for step in range(1, steps + 1)]
    return model, losses, torch.rand(3)


@pytest.mark.parametrize("is_fixed", [True, False])
def test_training_is_the_same_to_the_bit(tmp_path, is_fixed):
    """The model has dropout: one random number drawn, or one module left in another mode, would show."""
    plain, losses, drawn = train(tmp_path / "plain", [])
    probe = EntropyProbe(torch.randn(3, 5, 12) if is_fixed else None)
    probed, same_losses, same_drawn = train(tmp_path / "probed", [probe])
    assert losses == same_losses
    assert torch.equal(drawn, same_drawn)
    for a, b in zip(plain.parameters(), probed.parameters(), strict=True):
        assert torch.equal(a, b)
    assert all(module.training for module in probed.modules())
    assert not probed._forward_pre_hooks
    table = rr.load_run(tmp_path / "probed")
    for quantity in QUANTITIES:
        assert select(table, quantity=quantity, circuit="kq").size == 4 * 2 * 3
        assert np.isfinite(select(table, quantity=quantity)).all()


@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize("is_fixed", [True, False])
def test_rows_are_the_means_over_samples_and_queries(tmp_path, is_fixed, rows):
    model = small_model(dropout=0.0)
    x = data(1, model)[:3]
    probe = EntropyProbe(x, rows=rows) if is_fixed else EntropyProbe(samples=3, rows=rows)
    with rr.RankTracker(model, tmp_path, every=1, probes=[probe]) as tracker:
        model.train()
        if not is_fixed:
            model(data(1, model))
        tracker.step(1)
    attention, normed = model.layers[0].self_attn, model.layers[0].norm1(x)
    q, k, _ = torch.nn.functional.linear(normed, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
    q, k = (part.unflatten(-1, (3, 4)).transpose(1, 2) for part in (q, k))
    expected = attention_entropy(q.double(), k.double(), rows=rows)
    found = [select(rr.load_run(tmp_path), quantity=name, layer=0) for name in QUANTITIES]
    means = [value.mean((0, 2)).numpy() for value in (expected.entropy, expected.share, expected.floor)]
    for mine, theirs in zip(found, [*means, expected.max_logit.amax((0, 2)).numpy()], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    np.testing.assert_allclose(found[0], found[1] * np.log(5), atol=1e-5)


def test_causal_rows_with_one_key_are_left_out(tmp_path):
    model = build_model(GPTConfig(vocab_size=16, context=6, width=16, num_layers=2, num_heads=2, head_dim=8), seed=0)
    tokens = torch.arange(12).reshape(2, 6)
    for parameter in (block.attn.qkv.weight for block in model.blocks):
        nn.init.zeros_(parameter)
    with rr.RankTracker(model, tmp_path, every=1, probes=[EntropyProbe(tokens)]) as tracker:
        tracker.step(0)
    table = rr.load_run(tmp_path)
    np.testing.assert_allclose(select(table, quantity="attention_entropy_share"), 1, atol=1e-6)
    expected = np.log(np.arange(2, 7)).mean()
    np.testing.assert_allclose(select(table, quantity="attention_entropy"), expected, atol=1e-6)
    np.testing.assert_allclose(select(table, quantity="entropy_floor"), expected, atol=1e-6)


def test_probe_has_its_own_clock_and_dashboards_get_its_numbers(tmp_path):
    probe = EntropyProbe(torch.randn(3, 5, 12), every=2)
    _, _, _ = train(tmp_path, [probe])
    assert select(rr.load_run(tmp_path), quantity="max_logit").size == 2 * 2 * 3
    with rr.RankTracker(small_model(), tmp_path / "again", every=1, probes=[probe]) as tracker:
        tracker.step(0)
        assert "rankrise/L01/kq/attention_entropy_share/min" in tracker.summary


def test_compiled_model_is_read_uncompiled_and_not_compiled_again(tmp_path):
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph

    model = small_model(dropout=0.0)
    whole = torch.compile(model, backend=backend)
    x = torch.randn(3, 5, 12)
    with rr.RankTracker(whole, tmp_path, every=1, probes=[EntropyProbe(x)]) as tracker:
        for step in (1, 2):
            whole(x)
            tracker.step(step)
            if step == 1:
                num_graphs = len(compiled)
    assert num_graphs == len(compiled) > 0
    assert select(rr.load_run(tmp_path), quantity="max_logit").size == 2 * 2 * 3


def test_training_batch_is_read_under_its_own_autocast(tmp_path):
    model = small_model(dropout=0.0)
    seen = []
    handle = model.layers[0].linear1.register_forward_hook(lambda m, i, out: seen.append((m.training, out.dtype)))
    with rr.RankTracker(model, tmp_path, every=1, probes=[EntropyProbe()]) as tracker:
        tracker.step(0)  # no batch was seen yet
        with torch.autocast("cpu", torch.bfloat16):
            model(data(1, model))
        tracker.step(1)
    handle.remove()
    assert seen == [(True, torch.bfloat16), (False, torch.bfloat16)]
    assert sorted(set(rr.load_run(tmp_path)["step"].to_pylist())) == [0, 1]
    assert select(rr.load_run(tmp_path), step=0, quantity="max_logit").size == 0


def test_keywords_and_keyword_batches(tmp_path):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = small_model(dropout=0.0)

        def forward(self, x, *, flip=None, scale=1.0):
            return self.encoder(scale * (x if flip is None else flip))

    x = torch.randn(4, 5, 12)
    tables = []
    for n, inputs in enumerate(({"x": x, "flip": -x, "scale": 2.0}, [x], None)):
        model = Wrapped()
        with rr.RankTracker(model, tmp_path / str(n), every=1, probes=[EntropyProbe(inputs)]) as tracker:
            model(x, flip=-x, scale=2.0)
            tracker.step(1)
        tables.append(select(rr.load_run(tmp_path / str(n)), quantity="attention_entropy"))
    np.testing.assert_array_equal(tables[0], tables[2])
    assert (tables[0] != tables[1]).all()


def test_models_that_cannot_be_seen_are_refused_before_training(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = transformers.GPT2Model(transformers.GPT2Config(**sizes, attn_implementation="eager"))
    with pytest.raises(ValueError, match=r'h\.0\.attn of the 1 .* attn_implementation="sdpa"'):
        rr.RankTracker(model, tmp_path / "eager", probes=[EntropyProbe(torch.zeros(1, 4, dtype=torch.long))])
    with pytest.raises(ValueError, match="EntropyProbe needs the heads of the model"):
        rr.RankTracker(nn.Linear(2, 2), tmp_path / "none", quantities=(), probes=[EntropyProbe(torch.zeros(1, 2))])
    toy = build_model(ToyHeadConfig(dim=4, head_dim=4), seed=0)
    with rr.RankTracker(toy, tmp_path / "toy", every=1, probes=[EntropyProbe()]) as tracker:
        toy(torch.randn(2, 3, 4))
        with pytest.warns(TrackingWarning, match="Reading EntropyProbe failed: Attention must be computed by torch's"):
            tracker.step(1)


@pytest.mark.parametrize("options", [{"samples": 0}, {"rows": 0}, {"every": 0}])
def test_options_are_checked(options):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be .*1"):
        EntropyProbe(**options)
