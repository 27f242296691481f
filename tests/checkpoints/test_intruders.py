"""New leading directions and spikes of rank 1: found where they were planted, and not in random changes."""

import json

import pytest
import torch
from safetensors.torch import save_file

from rankrise.checkpoints import diff
from rankrise.checkpoints.delta import find_intruders

SHAPES = [(128, 96), (96, 128), (64, 256), (32, 48)]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def decaying(shape, power, seed=0):
    u, s, vh = torch.linalg.svd(random(*shape, seed=seed), full_matrices=False)
    return (u * torch.arange(1, len(s) + 1) ** -power) @ vh


def sized(change, size, base):
    return change * (size * base.norm() / change.norm())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("power", "size"),
    # A change as large as a base without leading directions is left out: some give an alarm (docs/log/checkpoints.md).
    [(0.0, 0.01), (0.0, 0.3), (0.5, 0.01), (0.5, 0.3), (0.5, 1.0)],
)
def test_a_random_change_has_none(shape, power, size):
    base = decaying(shape, power)
    assert find_intruders(base, base + sized(random(*shape, seed=1), size, base)).num == 0


@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize("strength", [1.5, 3.0])
def test_planted_ones_are_counted(shape, strength):
    base = decaying(shape, 0.3)
    left, right = (torch.linalg.qr(random(n, 2, seed=n)).Q for n in shape)
    found = find_intruders(base, base + strength * torch.linalg.matrix_norm(base, 2) * left @ right.mT)
    assert (found.num, found.num_directions) == (2, 3)
    assert found.least_cosine < 0.8 * found.null


def test_a_direction_that_grew_is_none():
    base = decaying((128, 96), 0.3)
    u, s, vh = torch.linalg.svd(base, full_matrices=False)
    grown = base + 5 * s[0] * u[:, 3:4] @ vh[3:4]
    assert find_intruders(base, grown).num == 0


def test_cosines_are_those_of_exact_decompositions():
    base = decaying((128, 96), 0.5).double()
    tuned = base + sized(random(128, 2, seed=1).double() @ random(2, 96, seed=2).double(), 0.5, base)
    found = find_intruders(base, tuned)
    span, left = (torch.linalg.svd(w)[0] for w in (base, tuned))
    cosines = (span[:, :12].mT @ left[:, : found.num_directions]).norm(dim=0)
    assert found.least_cosine == pytest.approx(float(cosines.min()), abs=1e-3)
    assert found.num == int((cosines < 0.5).sum()) > 0


def test_weights_that_are_too_small_or_zero_have_no_answer():
    assert find_intruders(torch.ones(15, 100), torch.ones(15, 100)) is None
    assert find_intruders(torch.zeros(64, 64), torch.ones(64, 64)) is None


@pytest.fixture
def found(tmp_path):
    base = {f"layers.{n}.mlp.weight": random(128, 96, seed=n) for n in range(3)} | {
        "layers.0.norm.weight": torch.ones(96)
    }
    tuned = {name: weight.clone() for name, weight in base.items()}
    tuned["layers.0.mlp.weight"] += sized(random(128, 96, seed=9), 0.2, base["layers.0.mlp.weight"])
    tuned["layers.1.mlp.weight"] += sized(
        random(128, 1, seed=9) @ random(1, 96, seed=8), 0.5, base["layers.1.mlp.weight"]
    )
    tuned["layers.0.norm.weight"] += 5
    for name, weights in (("base", base), ("tuned", tuned)):
        save_file(weights, tmp_path / f"{name}.safetensors")
    return diff(tmp_path / "base.safetensors", tmp_path / "tuned.safetensors")


def test_alarms_are_in_the_text_the_json_and_the_page(found, tmp_path):
    from rankrise.checkpoints import diff_text

    spiked = "layers.1.mlp.weight"
    assert found.alarms == {"spikes": [spiked], "intruders": [spiked]}
    assert json.loads(json.dumps(found.to_json()))["alarms"] == found.alarms
    text = diff_text(found)
    assert (
        "alarm: a spike of rank 1 in 1 of 2 matrices: one direction holds more than two thirds of the squared" in text
    )
    assert f"change, 100% in {spiked}" in text
    assert "alarm: intruder dimensions in 1 of 2 matrices: leading directions of the tuned weight" in text
    assert f"that are new to the base, 1 in {spiked}" in text
    assert "spike, 1 intruder" in text
    found.write_html(tmp_path / "d.html")
    page = (tmp_path / "d.html").read_text()
    assert "alarm: a spike of rank 1 in 1 of 2" in page
    assert "<dt>null</dt>" in page
    assert "<dt>above floor</dt>" in page
    table = found.to_table()
    assert table["has_spike"].to_pylist().count(True) == 1
    assert table["intruders"].to_pylist().count(1) == 1


def test_relative_sizes_leave_norms_out_and_repr_is_short(found):
    from rankrise.checkpoints.compare import layer_table

    rows = {row.name: row for row in found.weights()}
    assert rows["layers.0.norm.weight"].relative == pytest.approx(5)
    assert layer_table(found)[0]["relative"] == "20%"
    matrices = [row for row in rows.values() if row.kind == "matrix"]
    expected = sum(row.norm**2 for row in matrices) ** 0.5 / sum(row.base_norm**2 for row in matrices) ** 0.5
    assert found.totals[-1].relative == pytest.approx(expected)
    assert len(repr(found)) < 250
    assert "3 of 4 weights changed by 31" in repr(found)


def test_swapped_steps_get_a_hint(tmp_path):
    base = {"w.weight": random(8, 8)}
    for step in (100, 300):
        (tmp_path / f"checkpoint-{step}").mkdir()
        save_file({"w.weight": base["w.weight"] + 1e-4 * step}, tmp_path / f"checkpoint-{step}" / "model.safetensors")
    first, last = tmp_path / "checkpoint-100", tmp_path / "checkpoint-300"
    assert diff(first, last, heads=False).notes == ()
    (note,) = diff(last, first, heads=False).notes
    assert (
        note
        == "the base checkpoint-300 is a later step than checkpoint-100: if checkpoint-100 came first, swap the two"
    )
