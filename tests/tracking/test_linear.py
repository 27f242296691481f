"""`scope="linear"` and `weights=True`: what a run then holds, against dense singular values; resuming; refusals."""

import json

import pyarrow.compute as pc
import pytest
import torch
from torch import nn

import rankrise as rr
from rankrise.runs import open_run
from rankrise.tracking import TrackingWarning


def block(seed=0):
    torch.manual_seed(seed)
    return nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=16)


def values(path, circuit, quantity):
    table = rr.load_run(path)
    return table.filter((pc.field("circuit") == circuit) & (pc.field("quantity") == quantity)).to_pylist()


def test_the_change_of_an_mlp(tmp_path):
    model = block()
    with rr.RankTracker(model, out=tmp_path / "a", every=1, spectra=1, scope="linear") as tracker:
        delta = torch.randn(16, 8)
        with torch.no_grad():
            model.linear1.weight += delta
        tracker.step(1)
    rows = values(tmp_path / "a", "linear1", "spectrum")
    exact = torch.linalg.svdvals(delta.double())
    torch.testing.assert_close(torch.tensor([r["value"] for r in rows]).double(), exact, rtol=1e-5, atol=1e-5)
    assert {(row["layer"], row["head"]) for row in rows} == {(0, -1)}
    assert [row["value"] for row in values(tmp_path / "a", "linear2", "frobenius_norm")] == [0.0]
    recorded = open_run(tmp_path / "a").path("spectrum", "linear1")
    torch.testing.assert_close(torch.from_numpy(recorded.values[0, 0, 0]), exact, rtol=1e-5, atol=1e-5)


def test_a_lora_on_the_mlp_is_visible(tmp_path):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(block(), peft.LoraConfig(r=2, target_modules=["linear1"]))
    with rr.RankTracker(model, out=tmp_path / "a", every=1, spectra=1, scope="linear") as tracker:
        with torch.no_grad():
            model.base_model.model.linear1.lora_B["default"].weight += torch.randn(16, 2)
        tracker.step(1)
    sigma = [row["value"] for row in values(tmp_path / "a", "linear1", "spectrum")]
    assert sum(value > 1e-6 * sigma[0] for value in sigma) == 2


def test_experts_are_counted_as_heads(tmp_path):
    model = nn.Module()
    model.experts = nn.Module()
    model.experts.up = nn.Parameter(torch.randn(3, 4, 2))
    with pytest.warns(TrackingWarning, match="No attention is read, only whole matrices: "):
        tracker = rr.RankTracker(model, out=tmp_path / "a", every=1, spectra=1, scope="linear")
    with torch.no_grad():
        model.experts.up[1, 0, 0] += 2
        model.experts.up[2] = torch.nan
    with pytest.warns(TrackingWarning, match=r"those of layer -1 head 2 \(experts\.up\) are not"):
        tracker.step(1)
    tracker.close()
    rows = values(tmp_path / "a", "experts.up", "spectral_norm")
    assert [(row["head"], round(row["value"], 5)) for row in rows[:2]] == [(0, 0.0), (1, 2.0)]
    assert rows[2]["value"] != rows[2]["value"]


def test_a_run_without_linear_weights_has_no_new_field(tmp_path):
    rr.RankTracker(block(), out=tmp_path / "a", every=1).close()
    assert not {"scope", "linear"} & json.loads((tmp_path / "a" / "spec.json").read_text()).keys()


@pytest.mark.parametrize(("before", "after"), [("linear", "attention"), ("attention", "linear")])
def test_resuming_with_another_scope_is_refused(tmp_path, before, after):
    rr.RankTracker(block(), out=tmp_path / "a", every=1, scope=before).close(seal=False)
    with pytest.raises(ValueError, match="must have the linear weights of the run"):
        rr.RankTracker(block(), out=tmp_path / "a", every=1, scope=after, resume=1)


def test_a_resumed_run_goes_on(tmp_path):
    model = block()
    with rr.RankTracker(model, out=tmp_path / "a", every=1, spectra=1, scope="linear") as tracker:
        for step in (1, 2):
            with torch.no_grad():
                model.linear1.weight += 0.1 * torch.randn(16, 8)
            tracker.step(step)
            if step == 1:
                state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    whole = values(tmp_path / "a", "linear1", "stable_rank")
    again = block(seed=1)
    again.load_state_dict(state)
    with rr.RankTracker(
        again, out=tmp_path / "a", every=1, spectra=1, scope="linear", resume=1, exist="overwrite"
    ) as tracker:
        again.load_state_dict(model.state_dict())
        tracker.step(2)
    assert values(tmp_path / "a", "linear1", "stable_rank") == whole


def test_a_weight_that_goes_away_is_refused(tmp_path):
    model = block()
    with rr.RankTracker(model, out=tmp_path / "a", every=1, scope="linear") as tracker:
        model.more = nn.Linear(8, 8)
        with pytest.raises(ValueError, match="'more' of layer 0 has changed"):
            tracker.step(1)


def test_an_unknown_scope_names_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"`scope` must be one of attention, linear; got 'linaer'\. Did you mean"):
        rr.RankTracker(block(), out=tmp_path / "a", scope="linaer")


def test_the_weights_themselves(tmp_path):
    model = block()
    with rr.RankTracker(model, out=tmp_path / "a", every=1, spectra=10, weights=True) as tracker:
        tracker.step(1)
    key, query = tracker.head_map.layers[0].factors("kq", model.get_parameter)
    sigma = torch.linalg.svdvals((key @ query.mT).detach().double())
    norms = [row["value"] for row in values(tmp_path / "a", "kq", "weight_spectral_norm")]
    ranks = [row["value"] for row in values(tmp_path / "a", "kq", "weight_stable_rank")]
    torch.testing.assert_close(torch.tensor(norms).double(), sigma[:, 0], rtol=1e-5, atol=0)
    torch.testing.assert_close(torch.tensor(ranks).double(), rr.stable_rank(sigma), rtol=1e-5, atol=0)
    rr.RankTracker(block(), out=tmp_path / "b", every=1).close()
    assert not {"weight_spectral_norm", "weight_stable_rank"} & set(
        json.loads((tmp_path / "b" / "spec.json").read_text())["quantities"]
    )
