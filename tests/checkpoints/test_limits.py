"""Names and numbers at the edge of what can be written, matched in time, or squared."""

import json
import struct
import time

import pytest
import torch
from tests.checkpoints import files
from typer.testing import CliRunner

from rankrise.checkpoints import diff, open_checkpoint, plan_diff
from rankrise.cli import app


def named(path, text):
    """A safetensors file with one 2 × 2 tensor whose name is given as JSON."""
    header = f'{{"{text}": {{"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}}}'
    return files.raw(path, header.encode(), struct.pack("<4f", *range(4)))


@pytest.mark.parametrize(
    "text", [r"a\ud800b.weight", r"a\udfff", "ln" * 251, f"layers.{'1' * 5000}.w", "layers." * 100_000]
)
def test_names_that_cannot_be_written_or_are_too_long_are_refused(tmp_path, text):
    path = named(tmp_path / "x.safetensors", text)
    with pytest.raises(ValueError, match="must have names of tensors in Unicode, up to 500 characters") as caught:
        open_checkpoint(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    torch.save({json.loads(f'"{text}"'): torch.ones(2, 2)}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match=r"up to 500 characters|must hold tensors"):
        open_checkpoint(tmp_path / "x.pt", allow_torch_load=True)


@pytest.mark.parametrize("text", ["a" * 500, r"\ud83d\ude00.weight", "größe.权重", f"layers.{'1' * 400}.w"])
def test_long_and_foreign_names_are_rows(tmp_path, text):
    one, other = (named(tmp_path / name / "model.safetensors", text) for name in ("base", "tuned"))
    (row,) = diff(one, other).rows
    assert (row.name, row.status) == (json.loads(f'"{text}"'), "identical")


@pytest.mark.parametrize("name", ["a\x9b31mb\u202e.weight", "a\x1b[2J", "größe"])
def test_json_on_a_terminal_is_ascii(tmp_path, name):
    folders = [files.save(tmp_path / side, {name: torch.eye(3) * n}, None) for n, side in ((1, "base"), (2, "tuned"))]
    for options in ((), ("--dry-run",)):
        done = CliRunner().invoke(app, ["diff", *map(str, folders), "--json", *options])
        assert done.stdout.isascii()
        assert done.exit_code == 0
    assert json.loads(CliRunner().invoke(app, ["diff", *map(str, folders), "--json"]).stdout)["rows"][0]["name"] == name
    shown = CliRunner().invoke(app, ["diff", *map(str, folders)]).stdout
    assert all(c.isprintable() or c == "\n" for c in shown)


def test_a_pattern_on_the_longest_names_takes_no_time(tmp_path):
    files.save_peft(tmp_path, {"a" * 450 + str(n): (4, 4) for n in range(10)}, alpha_pattern={".*a.*x": 4})
    began = time.process_time()
    assert len(open_checkpoint(tmp_path).deltas) == 10
    assert time.process_time() - began < 5


@pytest.mark.parametrize("options", [{"lora_alpha": 10**400}, {"alpha_pattern": {"c": 10**400}}])
def test_an_alpha_that_is_no_float(tmp_path, options):
    files.save_peft(tmp_path, {"c": (6, 4)}, **options)
    with pytest.raises(ValueError, match=r"10{19}.* is no number for lora_alpha\. Mend its config"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("total", [10**400, -(10**400), float("nan"), 1e30])
def test_an_index_with_an_absurd_total_is_noted(tmp_path, total):
    files.save_shards(tmp_path, files.weights())
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files.write_index(tmp_path, index["weight_map"], total)
    (note,) = plan_diff(tmp_path, tmp_path).preflights[0].notes[:1]
    assert note.startswith("the index states a false number of bytes and the tensors have")


@pytest.mark.parametrize("summary", [False, True])
def test_a_change_too_large_for_float32(tmp_path, summary, monkeypatch):
    """±3e38 are finite, and their difference is not."""
    signs = torch.tensor([[1.0, -1.0, 1.0]]).T @ torch.tensor([[1.0, 1.0, -1.0, 1.0]])
    base = {"h.0.weight": -3e38 * signs, "b": torch.full((3,), -3e38)}
    tuned = {"h.0.weight": 3e38 * signs, "b": torch.full((3,), 3e38)}
    for dtype in (torch.float32, torch.bfloat16):
        for side, state in (("base", base), ("tuned", tuned)):
            files.save(tmp_path / side, {name: t.to(dtype) for name, t in state.items()}, None)
        for elements in (2**24, 4):
            monkeypatch.setattr("rankrise.checkpoints.delta._change.BLOCK_ELEMENTS", elements)
            vector, matrix = diff(tmp_path / "base", tmp_path / "tuned", summary=summary).rows
            assert (vector.status, matrix.status) == ("changed", "changed")
            assert matrix.norm == pytest.approx(6e38 * 12**0.5, rel=1e-2)
            assert matrix.relative == pytest.approx(2.0)
            assert matrix.stable_rank == pytest.approx(1.0, rel=1e-4)
            assert matrix.rank_above_floor is None


@pytest.mark.parametrize("summary", [False, True])
def test_a_change_too_large_for_float32_in_some_rows(tmp_path, summary, monkeypatch):
    base = torch.cat([torch.zeros(3, 4), torch.full((1, 4), -3e38)])
    files.save(tmp_path / "base", {"h.0.weight": base}, None)
    files.save(tmp_path / "tuned", {"h.0.weight": torch.cat([1e38 * torch.eye(3, 4), -base[3:]])}, None)
    monkeypatch.setattr("rankrise.checkpoints.delta._change.BLOCK_ELEMENTS", 4)
    (row,) = diff(tmp_path / "base", tmp_path / "tuned", summary=summary).rows
    change = torch.cat([1e38 * torch.eye(3, 4).double(), torch.full((1, 4), 6e38, dtype=torch.float64)])
    assert row.norm == pytest.approx(float(change.norm()))
    assert row.spectral_norm == pytest.approx(float(torch.linalg.svdvals(change)[0]), rel=1e-3)


def test_weights_too_large_for_the_quick_floor_have_none(tmp_path):
    for side, size in (("base", 0.0), ("tuned", 1e30)):
        files.save(tmp_path / side, {"h.0.weight": size * torch.eye(3, 4)}, None)
    (row,) = diff(tmp_path / "base", tmp_path / "tuned", summary=True).rows
    assert (row.stable_rank, row.rank_above_floor) == (pytest.approx(3.0), None)


@pytest.mark.parametrize("summary", [False, True])
def test_a_change_too_large_to_square_is_labelled(tmp_path, summary):
    for side, size in (("base", 1.0), ("tuned", 1e300)):
        files.save(tmp_path / side, {"h.0.weight": torch.full((3, 4), size, dtype=torch.float64)}, None)
    (row,) = diff(tmp_path / "base", tmp_path / "tuned", summary=summary).rows
    assert row.status == "not finite: the change squared"
    (same,) = diff(tmp_path / "tuned", tmp_path / "tuned", summary=summary).rows
    assert same.status == "identical"
