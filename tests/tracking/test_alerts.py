"""Alerts: planted faults are found once, ordinary traces are not, and a resumed run raises what a whole one raises."""

import json

import numpy as np
import pytest
import torch
from tests.tracking.models import assert_same, small_model

import rankrise as rr
from rankrise.tracking import Alert, RankCollapse, RankOneSpike, StalledHead, Trace, TrackingWarning

ALERTS = (RankCollapse(window=3), RankOneSpike(window=3), StalledHead(window=3))
STEPS = 12


def grow(model, step, *, fault=""):
    """Training with a change of full rank in every head; layer 1, head 2 has the fault from step 8 on."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            for weight in (layer.self_attn.in_proj_weight, layer.self_attn.out_proj.weight):
                noise = 0.05 * torch.randn(weight.shape, generator=generator)
                if fault == "stalled" and number == 1 and step >= 8:
                    if weight.shape[0] > 12:
                        noise.reshape(3, 3, 4, 12)[:, 2] = 0.0  # q, k, v of head 2
                    else:
                        noise.reshape(12, 3, 4)[:, 2] = 0.0
                weight += noise
        if fault in ("spike", "collapse") and step == 8:
            query, key, _ = model.layers[1].self_attn.in_proj_weight.reshape(3, 3, 4, 12)
            for head in (2,) if fault == "spike" else (0, 1, 2):
                query[head] += 6.0 * torch.outer(torch.eye(4)[0], torch.ones(12))
                key[head] += 6.0 * torch.outer(torch.eye(4)[0], torch.ones(12))


def run(out, *, fault="", steps=range(1, STEPS + 1), model=None, **options):
    model = small_model() if model is None else model
    options = {"every": 1, "spectra": 1, "directions": 0, "matrices": False, "alerts": ALERTS, **options}
    with rr.RankTracker(model, out, **options) as tracker:
        for step in steps:
            grow(model, step, fault=fault)
            tracker.step(step)
    return rr.open_run(out)


@pytest.mark.parametrize(
    ("fault", "name", "place", "text"),
    [
        ("stalled", "stalled_head", (1, 2, ""), "layer 1 head 2 has stopped learning"),
        ("spike", "rank_one_spike", (1, 2, "kq"), "the change of layer 1 head 2 (kq) has a spike of rank 1"),
        ("collapse", "rank_collapse", (1, -1, "kq"), "the change of layer 1 (kq) has collapsed from"),
    ],
)
def test_a_planted_fault_is_said_once(tmp_path, fault, name, place, text):
    told = []
    with pytest.warns(TrackingWarning) as record:
        found = run(tmp_path, fault=fault, on_alert=told.append)
    alerts = [alert for alert in found.alerts() if alert.name == name]
    assert [(alert.layer, alert.head, alert.circuit) for alert in alerts] == [place]
    assert 8 <= alerts[0].step <= 10
    assert text in alerts[0].sentence
    assert alerts[0].sentence in {str(warning.message) for warning in record}
    assert tuple(told) == found.alerts()
    assert f"alert: {alerts[0].sentence}" in repr(found)


def test_training_without_a_fault_raises_nothing(tmp_path):
    assert run(tmp_path).alerts() == ()  # a warning would be an error here


@pytest.mark.filterwarnings("ignore::rankrise.tracking.TrackingWarning")
@pytest.mark.parametrize("checkpoint", [3, 8, 10])
def test_a_resumed_run_raises_what_an_uninterrupted_one_raises(tmp_path, checkpoint):
    whole = run(tmp_path / "whole", fault="stalled")
    assert whole.alerts()
    model = small_model()
    run(tmp_path / "cut", fault="stalled", steps=range(1, 11), model=model)
    resumed = small_model()
    for step in range(1, checkpoint + 1):
        grow(resumed, step, fault="stalled")
    run(
        tmp_path / "cut", fault="stalled", steps=range(checkpoint + 1, STEPS + 1), model=resumed, resume=checkpoint,
        exist="overwrite",
    )  # fmt: skip
    assert_same(rr.load_run(tmp_path / "cut"), rr.load_run(tmp_path / "whole"))
    assert rr.open_run(tmp_path / "cut").alerts() == whole.alerts()


@pytest.mark.filterwarnings("ignore::rankrise.tracking.TrackingWarning")
def test_alerts_are_in_the_block_of_their_measurement(tmp_path, monkeypatch):
    blocks = []
    append = rr.store.Run.append
    monkeypatch.setattr(
        rr.store.Run, "append", lambda self, block, **options: (blocks.append(block), append(self, block, **options))
    )
    run(tmp_path, fault="spike")
    (block,) = [block for block in blocks if "rank_one_spike" in block["quantity"].to_pylist()]
    assert "stable_rank" in block["quantity"].to_pylist()  # a killed process loses both or neither
    assert set(block["step"].to_pylist()) == {8}


@pytest.mark.filterwarnings("ignore::rankrise.tracking.TrackingWarning")
def test_what_the_callable_raises_ends_the_training_and_nothing_is_lost(tmp_path):
    def stop(alert):
        raise KeyboardInterrupt(alert.sentence)

    with pytest.raises(KeyboardInterrupt, match="spike of rank 1"):
        run(tmp_path, fault="spike", on_alert=stop)
    assert [alert.name for alert in rr.open_run(tmp_path).alerts()] == ["rank_one_spike"]


class Always:
    """A rule of the user's own."""

    name, quantities, window = "always", ("stable_rank",), 1

    def find(self, trace: Trace):
        return [trace.alert(self.name, 0, 1, 0, 2.0, 1.0)]


@pytest.mark.filterwarnings("ignore::rankrise.tracking.TrackingWarning")
def test_own_rule(tmp_path):
    found = run(tmp_path, alerts=[Always()], steps=range(1, 4))
    assert found.alerts() == (Alert("always", 1, 0, 1, "kq", 2.0, 1.0),)
    assert found.alerts()[0].sentence == "At step 1 `always` was found at layer 0 head 1 (kq): 2, against 1."
    assert json.loads((tmp_path / "spec.json").read_text())["alerts"] == ["always"]


def test_a_rule_that_fails_costs_only_itself(tmp_path):
    class Bad(Always):
        def find(self, trace):
            raise KeyError("x")

    with pytest.warns(TrackingWarning, match="Looking for 'always' failed"):
        found = run(tmp_path, alerts=[Bad()], steps=range(1, 4))
    assert found.alerts() == ()
    assert found.has("stable_rank", "kq")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alerts": RankCollapse()}, "`alerts` must be a list of rules"),
        ({"alerts": ["rank_collapse"]}, r"An alert must be an object with `find\(trace\)`"),
        ({"on_alert": "print"}, "`on_alert` must be a function of an alert; got 'print'"),
        ({"alerts": [RankCollapse]}, r"An alert must be an object with `find\(trace\)`"),
        ({"alerts": [StalledHead(), StalledHead(window=9)]}, "'stalled_head' is given twice"),
        ({"alerts": [RankCollapse()], "quantities": ["stable_rank"]}, "needs the quantity 'effective_rank', which is"),
        ({"alerts": [RankCollapse()], "quantities": []}, "needs the quantity 'effective_rank', which is not measured"),
    ],
)
def test_alerts_that_cannot_work_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        rr.RankTracker(small_model(), tmp_path, **options)


def trace(**values):
    """A trace of the given quantities, (n, 2, layers, heads)."""
    first = next(iter(values.values()))
    return Trace(tuple(range(len(first))), tuple(range(first.shape[2])), values)


def test_heads_that_are_not_there_or_not_finite_are_no_alert():
    norms = np.cumsum(np.ones((6, 2, 2, 4)), axis=0)
    norms[:, :, 1, 2:] = np.nan  # layer 1 has two heads
    assert list(StalledHead().find(trace(frobenius_norm=norms))) == []
    norms[3:] = np.nan  # the weights are no longer finite
    assert list(StalledHead().find(trace(frobenius_norm=norms))) == []
    ranks = np.full((5, 2, 2, 4), np.nan)
    assert list(RankCollapse().find(trace(effective_rank=ranks, frobenius_norm=ranks))) == []


def over_time(values):
    """The same number in all heads at every measurement."""
    return np.tile(np.asarray(values)[:, None, None, None], (2, 2, 4))


def test_what_has_just_begun_to_be_learned_is_noise_and_no_collapse_nor_spike():
    begins = {"effective_rank": over_time([7.0, 2.0, 1.8, 1.6]), "frobenius_norm": over_time([0.05, 0.25, 0.45, 0.6])}
    assert list(RankCollapse().find(trace(**begins))) == []
    trained = begins | {"frobenius_norm": over_time([0.5, 0.55, 0.6, 6.0])}
    assert len(list(RankCollapse().find(trace(**trained)))) == 4
    grows = {"stable_rank": over_time([1.9, 1.4, 1.2, 1.1]), "spectral_norm": over_time([0.01, 0.04, 0.2, 0.9])}
    assert list(RankOneSpike().find(trace(**grows))) == []


def test_a_spike_of_a_change_that_had_low_rank_before_is_said():
    found = {"stable_rank": over_time([1.2, 1.2, 1.2, 1.01]), "spectral_norm": over_time([1.9, 1.9, 2.0, 24.6])}
    assert len(list(RankOneSpike().find(trace(**found)))) == 2 * 2 * 4


def test_nothing_is_said_of_a_head_when_all_heads_stand_still():
    norms = np.ones((6, 2, 2, 4))
    assert list(StalledHead().find(trace(frobenius_norm=norms))) == []
