"""Measures against brute force in float64, and the failures of others as tests."""

import itertools
import json
import math
import warnings

import numpy as np
import pytest
import torch
from tests.checkpoints import files
from tests.checkpoints.planted import brute_circuit

import rankrise as rr
from rankrise.checkpoints import CheckpointWarning, diff, diff_text, open_checkpoint, plan_diff
from rankrise.checkpoints.compare import head_table


def pair(tmp_path, base, tuned, config=files.CONFIG):
    return files.save(tmp_path / "base", base, config), files.save(tmp_path / "tuned", tuned, config)


def by_name(found, step=None):
    return {row.name: row for row in found.weights(step)}


def test_every_number_against_an_svd(tmp_path):
    base = files.weights()
    tuned = files.tuned(base, size=0.1)
    found = rr.diff(*pair(tmp_path, base, tuned))
    rows = by_name(found)
    assert rows.keys() == base.keys()
    for name, row in rows.items():
        delta = tuned[name].double() - base[name].double()
        if delta.ndim == 1:
            assert (row.status, row.kind) == ("identical", "vector")
            continue
        sigma = torch.linalg.svdvals(delta)
        assert row.norm == pytest.approx(float(delta.norm()))
        assert row.relative == pytest.approx(float(delta.norm() / base[name].double().norm()))
        assert row.stable_rank == pytest.approx(float(sigma.square().sum() / sigma[0] ** 2))
        assert row.energy_rank_99 == 2
        assert row.effective_rank == pytest.approx(float(rr.effective_rank(sigma)), rel=1e-4)
        np.testing.assert_allclose(row.spectrum, sigma, atol=1e-6 * float(sigma[0]))
        assert row.rank_above_floor == 2
        assert row.null_stable_rank > row.stable_rank
    total = math.sqrt(sum(row.norm**2 for row in rows.values()))
    assert found.totals[0].norm == pytest.approx(total)
    assert not found.is_identical


def test_the_summary_agrees_with_the_whole(tmp_path):
    base = files.weights()
    folders = pair(tmp_path, base, files.tuned(base, size=0.1, rank=3))
    full, quick = by_name(diff(*folders)), by_name(diff(*folders, summary=True))
    for name, row in quick.items():
        assert row.norm == pytest.approx(full[name].norm, rel=1e-6)
        assert row.stable_rank == (None if row.stable_rank is None else pytest.approx(full[name].stable_rank, rel=0.02))
        if row.kind == "matrix":
            assert row.rank_above_floor == full[name].rank_above_floor == 3
        assert row.spectrum == ()


@pytest.mark.parametrize("summary", [False, True])
def test_stable_rank_has_no_cap(tmp_path, summary):
    """Afterburn caps it at 10 (9.09 against 130.13)."""
    generator = torch.Generator().manual_seed(0)
    base = {"w": torch.randn(400, 500, generator=generator)}
    delta = torch.randn(400, 500, generator=generator)
    found = diff(*pair(tmp_path, base, {"w": base["w"] + delta}), summary=summary)
    sigma = torch.linalg.svdvals(delta.double())
    assert found.rows[0].stable_rank == pytest.approx(float(sigma.square().sum() / sigma[0] ** 2), rel=0.05)
    assert found.rows[0].stable_rank > 90


@pytest.mark.parametrize("size", [0.003, 0.01])
@pytest.mark.parametrize("on_grid", [False, True])
def test_planted_ranks_from_bfloat16(tmp_path, size, on_grid):
    generator = torch.Generator().manual_seed(0)
    shapes = {f"h.{n}.w.weight": (512, 384) for n in range(4)}
    base, tuned = {}, {}
    for rank, name in zip((4, 8, 16, 32), shapes, strict=True):
        weight = torch.randn(512, 384, generator=generator) / 20
        weight = weight.bfloat16().float() if on_grid else weight
        change = torch.randn(512, rank, generator=generator) @ torch.randn(rank, 384, generator=generator)
        base[name] = weight.bfloat16()
        tuned[name] = (weight + size * weight.norm() / change.norm() * change).bfloat16()
    found = diff(*pair(tmp_path, base, tuned))
    assert [row.rank_above_floor for row in found.rows] == [4, 8, 16, 32]
    assert found.rows[0].energy_rank_90 >= 4
    quick = diff(*pair(tmp_path, base, tuned), summary=True)
    assert [row.rank_above_floor for row in quick.rows] == [4, 8, 8, 8]  # a lower bound that stops at 8


def test_rounding_alone_is_below_the_floor(tmp_path):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(256, 256, generator=generator)
    folders = pair(tmp_path, {"w": weight.bfloat16()}, {"w": weight})
    for summary in (False, True):
        (row,) = diff(*folders, summary=summary).rows
        assert (row.rank_above_floor, row.status, row.dtype) == (0, "changed", "bfloat16 → float32")


def test_a_bfloat16_run_saved_in_float32_has_the_floor_of_bfloat16(tmp_path):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(256, 256, generator=generator)
    noisy = (weight * (1 + 2e-4 * torch.randn(256, 256, generator=generator))).bfloat16().float()
    for summary in (False, True):
        (row,) = diff(*pair(tmp_path, {"w": weight.bfloat16().float()}, {"w": noisy}), summary=summary).rows
        assert row.rank_above_floor == 0


def test_prefixes_do_not_make_raw_weights_the_change(tmp_path):
    """WeightWatcher: stable rank 32.7, truth 1.0."""
    base = files.weights()
    tuned = {f"base_model.model.{k}": t for k, t in files.tuned(base, rank=1).items()}
    found = diff(*pair(tmp_path, base, tuned))
    for row in found.weights():
        assert row.stable_rank is None or row.stable_rank == pytest.approx(
            1 if row.status == "changed" else 0, abs=1e-3
        )


def test_heads_that_cannot_be_told_are_left_out_with_a_reason(tmp_path):
    base = files.weights()
    folders = pair(tmp_path, base, files.tuned(base), config=None)
    found = diff(*folders)
    assert found.circuits() == []
    assert any("heads are left out: The number of heads" in note for note in found.notes)
    assert len(diff(*folders, num_heads=4).circuits()) == 16
    assert diff(*folders, heads=False).notes == ()


def test_a_gpt2_pair_is_seen_to_have_changed(tmp_path):
    """Afterburn reports "Changed params: 0" for a changed GPT-2; here every block and head shows."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=16))
    model.save_pretrained(tmp_path / "base")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "tuned")
    found = diff(tmp_path / "base", tmp_path / "tuned")
    assert found.totals[0].num_changed == found.totals[0].num_tensors == 28
    assert len(found.circuits()) == 2 * 2 * 2
    assert {row.layer for row in found.weights()} == {-1, 0, 1}


def test_identical_unchanged_empty_and_not_finite_are_labelled(tmp_path):
    base = {
        "a.weight": torch.ones(3, 4),
        "b.weight": torch.ones(3, 4),
        "c.weight": torch.ones(3, 4),
        "d.weight": torch.ones(0, 4),
        "e.weight": torch.full((2, 2), torch.nan),
        "f.weight": torch.zeros(3, 4),
        "g": torch.tensor(1.0),
    }
    tuned = base | {
        "b.weight": torch.ones(3, 4).bfloat16(),
        "c.weight": torch.tensor([[torch.inf] * 4] * 3),
        "f.weight": torch.ones(3, 4),
        "g": torch.tensor(2.0),
    }
    for summary in (False, True):
        rows = by_name(diff(*pair(tmp_path, base, tuned), summary=summary))
        assert {name: row.status for name, row in rows.items()} == {
            "a.weight": "identical",
            "b.weight": "unchanged",
            "c.weight": "not finite: tuned",
            "d.weight": "empty",
            "e.weight": "identical",
            "f.weight": "changed",
            "g": "changed",
        }
        assert rows["f.weight"].relative is None
        assert rows["f.weight"].stable_rank == pytest.approx(1.0)


def test_numbers_far_from_one(tmp_path):
    generator = torch.Generator().manual_seed(0)
    unit = torch.randn(8, 2, generator=generator) @ torch.randn(2, 6, generator=generator)
    base = {f"h.{n}.weight": torch.zeros(8, 6) for n in range(2)}
    tuned = {"h.0.weight": unit * 1e30, "h.1.weight": unit * 1e-30}
    for summary in (False, True):
        rows = diff(*pair(tmp_path, base, tuned), summary=summary).rows
        assert rows[0].stable_rank == pytest.approx(rows[1].stable_rank, rel=1e-4)
        assert rows[0].norm == pytest.approx(1e60 * rows[1].norm, rel=1e-4)


def test_large_tensors_are_read_in_blocks(tmp_path, monkeypatch):
    base = files.weights()
    folders = pair(tmp_path, base, files.tuned(base, size=0.1))
    whole, quick = diff(*folders, heads=False), diff(*folders, summary=True)
    monkeypatch.setattr("rankrise.checkpoints.delta._change.BLOCK_ELEMENTS", 50)
    monkeypatch.setattr("rankrise.checkpoints.delta._spectra.HELD_BYTES", 0)
    for before, after in ((whole, diff(*folders, heads=False)), (quick, diff(*folders, summary=True))):
        for one, other in zip(before.rows, after.rows, strict=True):
            assert one.norm == pytest.approx(other.norm, rel=1e-6)
            if one.stable_rank:
                assert one.stable_rank == pytest.approx(other.stable_rank, rel=1e-3)
            assert one.rank_above_floor == other.rank_above_floor


def test_stacked_experts_are_matrices_of_their_own_and_kernels_are_flat(tmp_path):
    base = {"h.0.mlp.experts.gate_up_proj": torch.zeros(3, 6, 4), "conv.weight": torch.zeros(4, 3, 2, 2)}
    tuned = {k: t.clone() for k, t in base.items()}
    tuned["h.0.mlp.experts.gate_up_proj"][1] = torch.eye(6, 4)
    tuned["conv.weight"][0, 0, 0, 0] = 1.0
    rows = by_name(diff(*pair(tmp_path, base, tuned)))
    assert rows["h.0.mlp.experts.gate_up_proj[1]"].stable_rank == pytest.approx(4.0)
    assert rows["h.0.mlp.experts.gate_up_proj[0]"].status == "identical"
    assert rows["conv.weight"].stable_rank == pytest.approx(1.0)


def test_eight_bits_with_scales_have_no_floor(tmp_path):
    q = torch.eye(6, 4).to(torch.float8_e4m3fn)
    base = {"h.0.weight": q, "h.0.weight_scale": torch.tensor(1.0)}
    found = diff(*pair(tmp_path, base, base | {"h.0.weight_scale": torch.tensor(2.0)}))
    (row,) = found.rows
    assert (row.norm, row.stable_rank, row.rank_above_floor) == (pytest.approx(2.0), pytest.approx(4.0), None)


MODULES = {f"model.layers.{n}.self_attn.{p}_proj": (s, 16) for n in range(2) for p, s in (("q", 16), ("v", 8))}


def test_an_adapter_is_what_it_adds_on_its_base_alone_and_against_another(tmp_path):
    base = files.weights()
    files.save(tmp_path / "base", base)
    one = files.save_peft(tmp_path / "one", MODULES)
    other = files.save_peft(tmp_path / "other", MODULES, rank=3, seed=5)

    def change(state, name, rank):
        return 4 / rank * (state[f"base_model.model.{name}.lora_B.weight"].double()
                           @ state[f"base_model.model.{name}.lora_A.weight"].double())  # fmt: skip

    on_base = diff(tmp_path / "base", tmp_path / "one")
    alone, against = diff(tmp_path / "one"), diff(tmp_path / "one", tmp_path / "other")
    for name in MODULES:
        delta = change(one, name, 2)
        row = by_name(on_base)[f"{name}.weight"]
        assert row.norm == pytest.approx(float(delta.norm()))
        assert row.relative == pytest.approx(float(delta.norm() / base[f"{name}.weight"].double().norm()))
        assert by_name(alone)[f"{name}.weight"].norm == pytest.approx(float(delta.norm()))
        assert by_name(alone)[f"{name}.weight"].relative is None
        between = change(other, name, 3) - delta
        row = by_name(against)[f"{name}.weight"]
        sigma = torch.linalg.svdvals(between)
        np.testing.assert_allclose(row.spectrum, sigma[:5], rtol=1e-6)
    merged = {k: t.double() for k, t in base.items()}
    for name in MODULES:
        merged[f"{name}.weight"] += change(one, name, 2)
    assert len(on_base.circuits()) == 16
    for row in on_base.circuits():
        delta, _ = brute_circuit(base, merged, row.layer, row.head, row.circuit)
        assert row.norm == pytest.approx(float(delta.norm()), rel=1e-6)


def test_an_identical_pair_of_adapters(tmp_path):
    for name in ("one", "two"):
        files.save_mlx(tmp_path / name, MODULES)
    found = diff(tmp_path / "one", tmp_path / "two")
    assert found.is_identical
    assert diff_text(found).startswith("identical: none of 4 weights differs")


def series(tmp_path, sizes, seeds=None):
    base = files.weights()
    files.save(tmp_path / "base", base)
    for n, size in enumerate(sizes):
        tuned = files.tuned(base, size=size, seed=1 if seeds is None else seeds[n])
        files.save(tmp_path / "run" / f"checkpoint-{100 * (n + 1)}", tuned)
    return tmp_path / "base", tmp_path / "run"


def test_a_folder_of_checkpoints_is_a_series(tmp_path):
    base, run = series(tmp_path, [0.01, 0.03, 0.04, 0.05])
    found = diff(base, run, summary=True)
    assert [step.step for step in found.steps] == [100, 200, 300, 400]
    np.testing.assert_allclose(found.curves["relative"], [0.01, 0.03, 0.04, 0.05], rtol=0.05)
    assert found.curves["overlap"][0] is None
    np.testing.assert_allclose(found.curves["overlap"][1:], 1.0, rtol=1e-3)
    assert found.stages is None
    listed = diff(base, [run / "checkpoint-300", run / "checkpoint-100"], summary=True)
    assert [step.step for step in listed.steps] == [100, 300]
    alone = diff(run, summary=True)  # the first one is the base
    assert alone.base.endswith("checkpoint-100")
    assert len(alone.steps) == 3


def test_a_file_of_another_run_is_a_jump(tmp_path):
    base, run = series(tmp_path, [0.01, 0.02, 0.03, 0.04], seeds=[1, 1, 7, 1])
    with pytest.warns(CheckpointWarning, match="the series jumps between") as caught:
        found = diff(base, run, summary=True)
    assert ["between 200 and 300" in str(w.message) for w in caught] == [True, False]
    assert sum("are these files of one run?" in note for note in found.notes) == 2


def test_a_run_that_starts_again_is_a_jump(tmp_path):
    base, run = series(tmp_path, [0.03, 0.04, 0.01])
    with pytest.warns(CheckpointWarning, match="shrinks to 25%"):
        diff(base, run, summary=True)


def test_stages_of_a_long_series(tmp_path):
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(24, 2, generator=generator), torch.randn(20, 2, generator=generator)
    left, right = (torch.linalg.qr(t).Q for t in (left, right))
    base = files.save(tmp_path / "base", {"h.0.weight": torch.zeros(24, 20)}, None)
    for n in range(40):
        second = 1 / (1 + math.exp(-(n - 20) / 1.0))
        state = {"h.0.weight": left @ torch.diag(torch.tensor([1.0, second])) @ right.T}
        files.save(tmp_path / "run" / f"checkpoint-{n}", state, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = diff(base, tmp_path / "run")
    assert [round(stage.midpoint) for stage in found.stages.stages] in ([18], [19], [20])


def test_ways_out(tmp_path):
    base = files.weights()
    hostile = "model.layers.0.<script>alert(1)</script>\x1b[2J.weight"
    tuned = files.tuned(base) | {hostile: torch.ones(3, 3), "z.weight": torch.full((2, 2), torch.inf)}
    base |= {hostile: torch.zeros(3, 3), "z.weight": torch.ones(2, 2)}
    found = diff(*pair(tmp_path, base, tuned))
    text = json.dumps(found.to_json(), allow_nan=False)
    assert json.loads(text)["totals"][0]["num_not_finite"] == 1
    table = found.to_table()
    assert table.num_rows == len(found.rows)
    assert table["relative"].null_count > 0
    found.write_parquet(tmp_path / "d.parquet")
    found.write_html(tmp_path / "d.html")
    page = (tmp_path / "d.html").read_text()
    assert "<script" not in page
    assert "\x1b" not in page
    assert page.count("<svg") >= 8
    assert "\x1b" not in diff_text(found, everything=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "d.html", "d.parquet", "tuned"]


def test_progress_ends_at_the_whole(tmp_path):
    base = files.weights()
    seen = []
    diff(*pair(tmp_path, base, files.tuned(base)), on_module=seen.append)
    assert seen[0].done == 0
    assert seen[0].remaining is None
    assert all(a.done <= b.done for a, b in itertools.pairwise(seen))
    assert 0.5 < seen[-1].done / seen[-1].total <= 1


def test_nothing_is_read_before_the_plan_is_sound(tmp_path, monkeypatch):
    base = files.weights()
    folders = pair(tmp_path, base, base | {"lm_head.weight": torch.ones(40, 12)})
    monkeypatch.setattr("rankrise.checkpoints.files._safetensors.SafetensorsFile._read", lambda *a: pytest.fail("read"))
    plan = plan_diff(*folders)
    assert plan.preflights[0].problems
    with pytest.raises(ValueError, match=r"Shapes must agree: 'lm_head\.weight'"):
        diff(plan)
    with pytest.raises(ValueError, match="A base is needed"):
        diff(folders[0])


def test_open_checkpoints_and_paths_are_the_same(tmp_path):
    base = files.weights()
    one, other = pair(tmp_path, base, files.tuned(base))
    opened = diff(open_checkpoint(one), open_checkpoint(other), summary=True)
    assert [row.norm for row in opened.rows] == [row.norm for row in diff(one, other, summary=True).rows]


def test_a_vit_saved_in_the_names_of_memory(tmp_path):
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    config = ViTConfig(num_hidden_layers=2, num_attention_heads=2, hidden_size=16, intermediate_size=24, image_size=8,
                       patch_size=4)  # fmt: skip
    model = ViTModel(config)
    model.save_pretrained(tmp_path / "base")
    state = {name: tensor + 0.01 for name, tensor in model.state_dict().items()}
    files.save(tmp_path / "tuned", state, None)
    found = diff(tmp_path / "base", tmp_path / "tuned")
    assert found.totals[0].num_changed == len(state)
    assert len(found.circuits()) == 8


def test_a_device_that_is_not_there(tmp_path):
    folders = pair(tmp_path, {"w": torch.ones(2, 2)}, {"w": torch.ones(2, 2)})
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device was found"):
            diff(*folders, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("summary", [False, True])
def test_cpu_and_gpu_agree(tmp_path, summary):
    base = files.weights()
    folders = pair(tmp_path, base, files.tuned(base, size=0.1))
    one, other = (diff(*folders, summary=summary, device=device) for device in ("cpu", "cuda"))
    for row, gpu in zip(one.rows, other.rows, strict=True):
        assert (row.name, row.status, row.rank_above_floor) == (gpu.name, gpu.status, gpu.rank_above_floor)
        if row.stable_rank:
            assert gpu.stable_rank == pytest.approx(row.stable_rank, rel=1e-3)


def test_heads_of_several_towers_are_named(tmp_path):
    shapes = {f"{tower}.layers.0.self_attn.{n}_proj.weight": (8, 8) for tower in ("text", "vision") for n in "qkvo"}
    base = files.weights(shapes=shapes)
    config = {"text_config": {"num_attention_heads": 2}, "vision_config": {"num_attention_heads": 4}}
    found = diff(*pair(tmp_path, base, files.tuned(base), config))
    lines = [(line["attention"], line["layer"], line["head"]) for line in head_table(found)]
    text, vision = "text.layers.0.self_attn", "vision.layers.0.self_attn"
    assert lines == [(text, "0", str(n)) for n in range(2)] + [(vision, "1", str(n)) for n in range(4)]
    plain = files.weights()
    assert "attention" not in head_table(diff(*pair(tmp_path / "one", plain, files.tuned(plain))))[0]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("encoder.block.0.layer.0.SelfAttention.q.weight", "attention"),
        ("encoder.block.0.layer.1.DenseReluDense.wo.weight", "mlp"),
        ("network.layers.0.fc1.weight", "mlp"),
        ("layers.0.wo.weight", "attention"),
        ("layers.0.keys_and_tokens.weight", "mlp"),
        ("h.0.attn.c_attn.weight", "attention"),
        ("layers.0.self_attn.q_proj.weight", "attention"),
        ("encoder.layer.0.attention.output.dense.weight", "attention"),
        ("encoder.layer.0.output.dense.weight", "mlp"),
    ],
)
def test_the_share_of_a_part_goes_by_whole_words_of_names(tmp_path, name, part):
    """`network` and T5's feed-forward both have the letters of a W_O in them."""
    base = {name: torch.eye(4), "embed_tokens.weight": torch.eye(4)}
    text = diff_text(diff(*pair(tmp_path, base, {n: w + 0.1 for n, w in base.items()}, None), heads=False))
    shares = next(line for line in text.splitlines() if line.startswith("where")).partition(": ")[2]
    assert sorted(share.rpartition(" ")[0] for share in shares.split(", ")) == sorted(["embeddings and heads", part])
