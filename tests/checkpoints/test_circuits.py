"""The rounding floor of a head's circuits: planted ranks come back, rounding and untouched heads count as nothing."""

import pytest
import torch
from tests.checkpoints import files
from tests.checkpoints.planted import brute_circuit

from rankrise.checkpoints import diff

WIDTH, HEADS, HEAD = 256, 4, 64
CONFIG = {"model_type": "llama", "num_attention_heads": HEADS, "num_key_value_heads": 2, "tie_word_embeddings": False}
SHAPES = {
    f"model.layers.0.self_attn.{role}_proj.weight": (HEAD * (2 if role in "kv" else HEADS), WIDTH) for role in "qkvo"
}
QUERY, KEY, VALUE, OUTPUT = SHAPES


def ranks(tmp_path, base, tuned):
    folders = [files.save(tmp_path / side, state, CONFIG) for side, state in (("base", base), ("tuned", tuned))]
    rows = diff(*folders).circuits()
    assert all(row.rank_lower is None or row.rank_lower <= row.rank_above_floor for row in rows)
    return {c: [row.rank_above_floor for row in rows if row.circuit == c] for c in ("kq", "vo")}, rows


def planted(rank, size, *, on_grid):
    """Base and tuned in float32; keys and values are left alone, and so is the query of head 0."""
    generator = torch.Generator().manual_seed(rank)
    base = {name: 0.05 * weight for name, weight in files.weights(rank, SHAPES).items()}
    if on_grid:
        base = {name: weight.bfloat16().float() for name, weight in base.items()}
    tuned = {name: weight.clone() for name, weight in base.items()}
    for name in (QUERY, OUTPUT):
        left, right = (torch.randn(n, rank, generator=generator, dtype=torch.float64) for n in SHAPES[name])
        change = left @ right.mT
        tuned[name] = (base[name] + size * base[name].norm() / change.norm() * change).float()
    tuned[QUERY][:HEAD] = base[QUERY][:HEAD]
    return base, tuned


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("on_grid", [False, True])
@pytest.mark.parametrize("size", [0.003, 0.03, 3.0])
@pytest.mark.parametrize("rank", [2, 4])
def test_planted_ranks_of_heads(tmp_path, rank, size, on_grid, dtype):
    base, tuned = planted(rank, size, on_grid=on_grid)
    found, rows = ranks(tmp_path, *({n: w.to(dtype) for n, w in side.items()} for side in (base, tuned)))
    assert found == {"kq": [0, rank, rank, rank], "vo": [rank] * 4}
    assert [row.status for row in rows if row.circuit == "kq"] == ["unchanged", "changed", "changed", "changed"]
    if dtype == torch.bfloat16 and size < 0.01:
        assert rows[1].energy_rank_99 > 4 * rank  # without a floor, rounding reads as learning


def test_rounding_alone_is_below_the_floor_of_every_head(tmp_path):
    base = files.weights(0, SHAPES)
    found, rows = ranks(tmp_path, base, {name: weight.bfloat16() for name, weight in base.items()})
    assert found == {"kq": [0] * 4, "vo": [0] * 4}
    assert {row.status for row in rows} == {"changed"}


def test_a_head_with_nan_does_not_take_the_floor_from_the_others(tmp_path):
    base, tuned = planted(2, 0.03, on_grid=False)
    tuned[QUERY][-1, 0] = float("nan")
    found, _ = ranks(tmp_path, base, tuned)
    assert found["kq"] == [0, 2, 2, None]


def test_an_adapter_has_no_rounding_of_its_own(tmp_path):
    base = files.save(tmp_path / "base", files.weights(0, SHAPES), CONFIG)
    files.save_peft(tmp_path / "adapter", {QUERY.removesuffix(".weight"): SHAPES[QUERY]}, rank=3)
    rows = [row for row in diff(base, tmp_path / "adapter").circuits() if row.circuit == "kq"]
    assert [(row.rank_above_floor, row.energy_rank_99) for row in rows] == [(None, 3)] * HEADS


def test_heads_with_grouped_attention_against_brute_force(tmp_path):
    base = files.weights()
    tuned = files.tuned(base, size=0.2)
    found = diff(files.save(tmp_path / "base", base), files.save(tmp_path / "tuned", tuned))
    rows = found.circuits()
    assert len(rows) == 2 * 4 * 2
    for row in rows:
        delta, product = brute_circuit(base, tuned, row.layer, row.head, row.circuit)
        sigma = torch.linalg.svdvals(delta)
        assert row.norm == pytest.approx(float(delta.norm()), rel=1e-5)
        assert row.relative == pytest.approx(float(delta.norm() / product.norm()), rel=1e-5)
        assert row.stable_rank == pytest.approx(float(sigma.square().sum() / sigma[0] ** 2), rel=1e-4)
        assert len(row.spectrum) == 8


def test_every_tower_is_cut_by_its_own_config(tmp_path):
    names = ("vision_model.encoder.layers.0", "model.layers.0")  # the second as Qwen2-VL names its text model on disk
    state = {f"{path}.self_attn.{role}_proj.weight": torch.randn(16, 16) for path in names for role in "qkvo"}
    config = {"text_config": {"num_attention_heads": 2}, "vision_config": {"num_attention_heads": 4}}
    for side, size in (("base", 0.0), ("tuned", 0.1)):
        files.save(tmp_path / side, {name: weight * (1 + size) for name, weight in state.items()}, config)
    found = diff(tmp_path / "base", tmp_path / "tuned")
    counts = {name: len({row.head for row in found.circuits() if row.name == name + ".self_attn"}) for name in names}
    assert counts == {"vision_model.encoder.layers.0": 4, "model.layers.0": 2}
    note = "heads: the number of heads is read from 'text_config', which the names of the weights do not say"
    assert found.notes == (note,)
