"""The tracker: right numbers, no trace in training, nothing taken twice, trouble said once."""

import functools

import numpy as np
import pytest
import torch
from tests.linalg.oracles import principal_angles
from tests.tracking.models import assert_same, in_order, select, small_model, train_step
from torch import nn

import rankrise as rr
from rankrise.tracking import Quantity, _stacks, _targets, at, every

HEADS, DIM = 3, 4


def train(model, tracker=None, *, steps=4, first=1, lr=0.05):
    optimiser = torch.optim.SGD(model.parameters(), lr)
    losses = []
    for step in range(first, first + steps):
        loss = train_step(model, optimiser, step)
        losses.append(loss.item())
        if tracker is not None:
            tracker.step(step, loss=loss)
    return losses


def heads(model, layer):
    """W_Q, W_K, W_V, W_O of an nn.MultiheadAttention by its documented layout, (heads, d, r) in float64."""
    attention = model.layers[layer].self_attn
    q, k, v = attention.in_proj_weight.detach().double().chunk(3)
    o = attention.out_proj.weight.detach().double().mT  # (heads · r, d)
    return {name: w.reshape(HEADS, DIM, -1).mT for name, w in (("q", q), ("k", k), ("v", v), ("o", o))}


def brute_force(before, now, circuit):
    a, b = circuit
    return torch.linalg.svdvals(now[a] @ now[b].mT - before[a] @ before[b].mT)[..., : 2 * DIM]


def test_every_number_against_dense_products(tmp_path):
    model = small_model()
    before = [heads(model, layer) for layer in range(2)]
    with rr.RankTracker(model, tmp_path, every=1, spectra=2) as tracker:
        train(model, tracker, steps=2)
    table = rr.load_run(tmp_path)
    for layer in range(2):
        now = heads(model, layer)
        for circuit in ("kq", "vo"):
            sigma = brute_force(before[layer], now, circuit)
            place = {"step": 2, "layer": layer, "circuit": circuit}

            def read(quantity, place=place):
                return torch.from_numpy(select(table, quantity=quantity, **place).copy()).reshape(HEADS, -1)

            tight = {"rtol": 1e-5, "atol": 1e-7}
            torch.testing.assert_close(read("spectrum"), sigma, **tight)
            torch.testing.assert_close(read("top_components"), sigma, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(read("stable_rank")[:, 0], rr.stable_rank(sigma), rtol=1e-4, atol=0)
            torch.testing.assert_close(read("effective_rank")[:, 0], rr.effective_rank(sigma), **tight)
            torch.testing.assert_close(read("frobenius_norm")[:, 0], sigma.norm(dim=-1), **tight)
            torch.testing.assert_close(read("spectral_norm")[:, 0], sigma[:, 0], rtol=1e-4, atol=0)
            assert torch.equal(read("energy_rank")[:, 0], rr.energy_rank(sigma, 0.9).double())
        for role in "qkvo":
            delta = (now[role] - before[layer][role]).movedim(0, 1).flatten(1)
            found = select(table, step=2, layer=layer, circuit=role, quantity="spectrum")
            np.testing.assert_allclose(found, torch.linalg.svdvals(delta), rtol=1e-5, atol=1e-7)
    assert select(table, step=1, quantity="spectrum").size == 0
    assert select(table, step=1, quantity="stable_rank").size == 2 * 2 * HEADS
    assert (table["head"].to_numpy()[table["circuit"].to_numpy(zero_copy_only=False) == "q"] == -1).all()


def test_training_is_bit_identical_with_and_without(tmp_path):
    alone, tracked = small_model(), small_model()
    torch.manual_seed(7)
    losses = train(alone, steps=6)
    state = torch.get_rng_state()
    torch.manual_seed(7)
    with rr.RankTracker(tracked, tmp_path, every=1, spectra=1) as tracker:
        tracker.estimate()
        assert train(tracked, tracker, steps=6) == losses
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(alone.parameters(), tracked.parameters(), strict=True):
        assert torch.equal(a, b)
        assert b.grad is None
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.filterwarnings("ignore:No tracked weight has moved:rankrise.tracking.TrackingWarning")
def test_gradients_are_left_alone(tmp_path):
    model = small_model()
    model(torch.randn(2, 5, 12)).sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    with rr.RankTracker(model, tmp_path, every=1) as tracker:
        tracker.step(10)
    for before, p in zip(grads, model.parameters(), strict=True):
        assert torch.equal(before, p.grad)
        assert p.requires_grad


@pytest.mark.parametrize("checkpoint", [3, 4, 6])
@pytest.mark.parametrize("sealed", [True, False])
def test_resumed_table_equals_the_uninterrupted_one(tmp_path, checkpoint, sealed):
    options = {"every": 1, "spectra": 2}
    whole = small_model(dropout=0.0)
    with rr.RankTracker(whole, tmp_path / "whole", **options) as tracker:
        train(whole, tracker, steps=8)

    model = small_model(dropout=0.0)
    tracker = rr.RankTracker(model, tmp_path / "cut", **options)
    train(model, tracker, steps=checkpoint)
    state = {name: w.clone() for name, w in model.state_dict().items()}
    train(model, tracker, steps=2, first=checkpoint + 1)  # past the checkpoint, then it dies
    tracker.close(seal=sealed)

    resumed = small_model(seed=99, dropout=0.0)
    resumed.load_state_dict(state)
    with rr.RankTracker(resumed, tmp_path / "cut", resume=checkpoint, exist="overwrite", **options) as tracker:
        train(resumed, tracker, steps=8 - checkpoint, first=checkpoint + 1)
    assert in_order(rr.load_run(tmp_path / "cut")).equals(in_order(rr.load_run(tmp_path / "whole")))
    overlap = [rr.tracking.final_overlap(tmp_path / name) for name in ("cut", "whole")]
    assert in_order(overlap[0]).equals(in_order(overlap[1]))


def test_final_overlap_ends_at_one(tmp_path):
    model = small_model()
    with rr.RankTracker(model, tmp_path, every=1, spectra=2, directions=2) as tracker:
        train(model, tracker, steps=6)
    table = rr.tracking.final_overlap(tmp_path)
    np.testing.assert_allclose(select(table, step=6), 1.0, rtol=1e-6)
    assert (select(table, step=2) < 1 + 1e-6).all()
    assert select(table, step=2, index=1).size == 2 * 2 * 2 * HEADS  # layers, circuits, sides


def test_final_overlap_leaves_out_layers_whose_last_measurement_failed(tmp_path, monkeypatch):
    measure = _targets.measure

    def fails_at_last(group, *arguments, **options):
        if tracker._last_step == 6 and group[0].index == 1:
            raise RuntimeError("the decomposition did not converge")
        return measure(group, *arguments, **options)

    monkeypatch.setattr(_stacks, "_GROUP_BYTES", {"cpu": 1, "cuda": 1})  # every layer is a group
    monkeypatch.setattr(_targets, "measure", fails_at_last)
    model = small_model()
    with (
        pytest.warns(rr.tracking.TrackingWarning, match="Measuring failed: the decomposition did not converge"),
        rr.RankTracker(model, tmp_path, every=1, spectra=2, directions=2) as tracker,
    ):
        train(model, tracker, steps=6)
    table = rr.tracking.final_overlap(tmp_path)
    assert set(table["layer"].to_pylist()) == {0}
    assert select(table, step=2, index=1).size == 2 * 2 * HEADS  # circuits, sides


def test_latest_is_what_was_measured_last(tmp_path):
    model = small_model()
    with rr.RankTracker(model, tmp_path, every=2, spectra=4) as tracker:
        assert tracker.latest == ()
        train(model, tracker, steps=3)
        ranks = [m for m in tracker.latest if (m.name, m.circuit) == ("stable_rank", "kq")]
    found = [value for measurement in ranks for value in measurement.values.flatten().tolist()]
    assert found == select(rr.load_run(tmp_path), step=2, quantity="stable_rank", circuit="kq").tolist()


def test_overlap_is_with_the_spectra_before(tmp_path):
    model = small_model()
    with rr.RankTracker(model, tmp_path, every=1, spectra=2, directions=2) as tracker:
        train(model, tracker, steps=6)
    table, kept = rr.load_run(tmp_path), rr.store.load_directions(tmp_path)
    assert select(table, step=2, quantity="overlap_left").size == 0
    for side in ("left", "right"):
        now, before = (kept[step][f"1.vo.{side}"].double() for step in (6, 4))
        angles = principal_angles(now, before)
        found = select(table, step=6, layer=1, circuit="vo", quantity=f"overlap_{side}", index=1)
        np.testing.assert_allclose(found, angles.cos().square().mean(-1), rtol=1e-5)


def test_no_directions(tmp_path):
    model = small_model()
    with rr.RankTracker(model, tmp_path, every=1, spectra=1, directions=0, matrices=False) as tracker:
        train(model, tracker, steps=2)
    table = rr.load_run(tmp_path)
    assert not (tmp_path / "directions").exists()
    assert set(table["quantity"].to_pylist()).isdisjoint({"overlap_left", "overlap_right", "top_components"})
    assert set(table["circuit"].to_pylist()) == {"", "kq", "vo"}
    with pytest.raises(ValueError, match="must hold directions; it has none"):
        rr.tracking.final_overlap(tmp_path)


def test_weights_that_are_not_finite_are_recorded_as_such_with_one_warning(tmp_path):
    model = small_model()
    tracker = rr.RankTracker(model, tmp_path, every=1, spectra=1)
    train(model, tracker, steps=1)
    with torch.no_grad():
        model.layers[1].self_attn.in_proj_weight[DIM, 0] = torch.nan  # head 1 of Q
    with pytest.warns(
        rr.tracking.TrackingWarning, match=r"at step 2 those of layer 1 head 1 \(kq\) and 1 more are not"
    ):
        tracker.step(2)
    tracker.step(3)  # silently
    tracker.close()
    table = rr.load_run(tmp_path)
    for quantity in ("stable_rank", "spectrum", "frobenius_norm"):
        assert np.isnan(select(table, step=2, layer=1, head=1, circuit="kq", quantity=quantity)).all()
        assert np.isfinite(select(table, step=2, layer=1, head=0, circuit="kq", quantity=quantity)).all()
        assert np.isfinite(select(table, step=2, layer=1, circuit="vo", quantity=quantity)).all()
    assert np.isnan(select(table, step=3, layer=1, circuit="q", quantity="spectrum")).all()
    assert np.isfinite(select(table, step=3, layer=1, circuit="k", quantity="spectrum")).all()


def test_changed_head_count_is_refused(tmp_path):
    model = small_model()
    tracker = rr.RankTracker(model, tmp_path, every=1, spectra=2)
    tracker.step(1)
    model.layers[0].self_attn = nn.MultiheadAttention(12, 2, batch_first=True)
    with pytest.raises(
        ValueError, match=r"must stay as they were.*2 layers of 3 × 4 .*and are 2 layers of 2 × 6, 3 × 4"
    ):
        tracker.step(2)
    model.layers[0].self_attn = nn.MultiheadAttention(12, 3, batch_first=True, kdim=7, vdim=7)
    with pytest.raises(ValueError, match="must stay as they were"):
        tracker.step(3)  # shapes are looked at every time
    tracker.close()


def test_model_is_resolved_once(tmp_path):
    calls = []

    def resolve(model):
        calls.append(1)
        return rr.heads.resolve(model)

    model = small_model()
    with rr.RankTracker(model, tmp_path, every=1, spectra=1, heads=resolve) as tracker:
        train(model, tracker, steps=3)
        assert len(calls) == 1
        model.layers[0].self_attn.note = "new"  # what the heads depend on may have changed; it has not
        train(model, tracker, steps=2, first=4)
    assert len(calls) == 2


def test_module_without_attention_is_refused(tmp_path):
    with pytest.raises(ValueError):  # noqa: PT011 - the message is the resolver's
        rr.RankTracker(nn.Linear(3, 3), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:No tracked weight has moved:rankrise.tracking.TrackingWarning")
def test_step_never_goes_back_and_is_measured_once(tmp_path):
    tracker = rr.RankTracker(small_model(), tmp_path, every=5)
    tracker.step(5)
    tracker.step(5, loss=1.0)
    with pytest.raises(
        ValueError, match=r"`step` must not go back; got 4 after 5\. Build the tracker with `resume=4, "
    ):
        tracker.step(4)
    tracker.close()
    tracker.close()
    with pytest.raises(ValueError, match="must be open; it was closed"):
        tracker.step(6)
    table = rr.load_run(tmp_path)
    assert select(table, quantity="stable_rank").size == 2 * 2 * HEADS
    assert select(table, quantity="loss").tolist() == [1.0]


@pytest.mark.parametrize("step", [True, 1.5, 200.0, 2**63, "3", -5, None])
def test_step_must_be_a_count(tmp_path, step):
    with rr.RankTracker(small_model(), tmp_path, every=1) as tracker:
        for call in (tracker.step, tracker.log):
            with pytest.raises(ValueError, match="`step` must be"):
                call(step)
        tracker.step(np.int64(1))


@pytest.mark.filterwarnings("ignore:Nothing was measured:rankrise.tracking.TrackingWarning")
def test_scalars_may_have_any_name(tmp_path):
    with rr.RankTracker(small_model(), tmp_path) as tracker:
        tracker.step(1, step=0.5, self=0.25)
        tracker.log(1, step=2.0)
        with pytest.raises(ValueError, match="`loss` must be one number"):
            tracker.step(2, loss="high")
        tracker.step(1)  # what was refused did not count
    table = rr.load_run(tmp_path)
    assert select(table, quantity="step").tolist() == [0.5, 2.0]
    assert select(table, quantity="self").tolist() == [0.25]


def test_spectra_imply_ranks(tmp_path):
    with rr.RankTracker(small_model(), tmp_path, every=3, spectra=2) as tracker:
        tracker.step(2)
    table = rr.load_run(tmp_path)
    for circuit, size in (("kq", 2 * HEADS), ("vo", 2 * HEADS), ("q", 2)):
        assert select(table, step=2, quantity="stable_rank", circuit=circuit).size == size


def test_default_device_does_not_matter(tmp_path):
    tables = []
    for name in ("cpu", "meta"):
        model = small_model(dropout=0.0)
        with torch.device(name), rr.RankTracker(model, tmp_path / name, every=1, spectra=2) as tracker:
            assert tracker.estimate().spectra_bytes > 0
            for step in range(1, 5):
                with torch.no_grad():
                    model.layers[0].self_attn.in_proj_weight.mul_(1.1)
                tracker.step(step, loss=1 / step)
        tables.append(rr.load_run(tmp_path / name))
    assert tables[0].num_rows > 0
    assert_same(tables[0], tables[1])


def test_exception_leaves_the_run_unsealed(tmp_path):
    with (
        pytest.raises(ValueError, match="must not go back"),
        rr.RankTracker(small_model(), tmp_path, every=1) as tracker,
    ):
        [tracker.step(step) for step in (1, 0)]
    assert (tmp_path / "metrics.arrows").exists()
    assert rr.load_run(tmp_path).num_rows == 2 * 2 * HEADS * 3


def test_compiled_and_wrapped_models_give_the_same_run(tmp_path):
    tables = []
    for name, wrap in (
        ("plain", lambda m: m),
        ("compiled", functools.partial(torch.compile, backend="eager")),
        ("wrapped", lambda m: nn.ModuleDict({"module": m})),
    ):
        model = small_model(dropout=0.0)
        with rr.RankTracker(wrap(model), tmp_path / name, every=1, spectra=2) as tracker:
            train(model, tracker, steps=2)
        tables.append(rr.load_run(tmp_path / name))
        assert set(rr.store.load_initial(tmp_path / name)) == set(rr.store.load_initial(tmp_path / "plain"))
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_place_of_the_initial_weights_does_not_matter(tmp_path, place):
    tables = []
    for initial in ("device", place):
        model = small_model(dropout=0.0)
        with rr.RankTracker(model, tmp_path / initial, every=1, initial=initial) as tracker:
            train(model, tracker, steps=2)
        tables.append(rr.load_run(tmp_path / initial))
    assert tables[0].equals(tables[1])


def test_own_quantity_and_schedule(tmp_path):
    model = small_model()
    mine = Quantity("double_norm", "ranks", lambda change: 2 * change.frobenius_norm)
    with rr.RankTracker(
        model, tmp_path, every=at(2), quantities=["frobenius_norm", mine], spectra=every(100)
    ) as tracker:
        train(model, tracker, steps=3)
    table = rr.load_run(tmp_path)
    np.testing.assert_array_equal(select(table, quantity="double_norm"), 2 * select(table, quantity="frobenius_norm"))
    assert set(table["step"].to_numpy()[table["circuit"].to_numpy(zero_copy_only=False) != ""]) == {2}


@pytest.mark.parametrize(
    ("measure", "index", "message"),
    [
        (lambda change: 1 / 0, None, "division by zero"),
        (lambda change: change.frobenius_norm[:2], None, r"must return the shape \(12,\) or \(12, k\); got \(2,\)"),
        (lambda change: change.sigma[..., None], None, r"must return the shape \(12,\) or \(12, k\); got \(12, 8, 1\)"),
        (lambda change: change.sigma, (1, 2), r"must return the shape \(12, 2\); got \(12, 8\)"),
        (lambda change: [1.0], None, "must return a tensor or None; got list"),
    ],
)
def test_bad_quantity_costs_only_itself(tmp_path, measure, index, message):
    model = small_model()
    bad = Quantity("bad", "ranks", measure, index)
    with (
        pytest.warns(rr.tracking.TrackingWarning, match=f"Measuring 'bad' failed: .*{message}") as record,
        rr.RankTracker(model, tmp_path, every=1, quantities=[bad, "stable_rank"], matrices=False) as tracker,
    ):
        train(model, tracker, steps=2)
    assert len(record) == 1
    table = rr.load_run(tmp_path)
    assert select(table, quantity="stable_rank").size == 2 * 2 * 2 * HEADS
    assert select(table, quantity="bad").size == 0
    with (
        pytest.raises((ValueError, ZeroDivisionError), match=message),
        rr.RankTracker(model, tmp_path / "strict", every=1, quantities=[bad], strict=True) as tracker,
    ):
        tracker.step(1)


def test_estimate_records_nothing(tmp_path):
    with rr.RankTracker(small_model(), tmp_path) as tracker:
        estimate = tracker.estimate()
    assert estimate.initial_bytes == 2 * 4 * 12 * 12 * 4
    assert 0 < estimate.ranks_bytes < estimate.spectra_bytes
    assert estimate.ranks_ms > 0
    assert estimate.spectra_ms > 0
    assert rr.load_run(tmp_path).num_rows == 0


def test_estimate_without_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKRISE_FAILPOINT", "spec.write:full")
    with pytest.warns(rr.tracking.TrackingWarning, match="the disk is full"):
        tracker = rr.RankTracker(small_model(), tmp_path)
    assert 0 < tracker.estimate().ranks_bytes < tracker.estimate().spectra_bytes


def test_bfloat16_weights(tmp_path):
    model = small_model(dtype=torch.bfloat16)
    with rr.RankTracker(model, tmp_path, every=1, spectra=1) as tracker:
        with torch.no_grad():
            model.layers[0].self_attn.in_proj_weight.mul_(1.5)
        tracker.step(1)
    ranks = select(rr.load_run(tmp_path), quantity="stable_rank", circuit="kq", layer=0)
    assert (ranks >= 1).all()
    assert not select(rr.load_run(tmp_path), quantity="stable_rank", circuit="kq", layer=1).any()
