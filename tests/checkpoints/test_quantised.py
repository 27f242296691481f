"""Quantised checkpoints: read where number and scale are the weight, refused by name where that is not known."""

import pytest
import torch
from tests.checkpoints import files

from rankrise.checkpoints import diff, match_checkpoints, open_checkpoint

FP8 = torch.eye(6, 4).to(torch.float8_e4m3fn)
STACK = torch.ones(3, 6, 4).to(torch.float8_e4m3fn)
ONE = torch.tensor(1.0)


def method(name):
    return files.CONFIG | {"quantization_config": {"quant_method": name}}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"h.0.w1.weight": FP8, "h.0.w1.qscale_weight": ONE}, r"with 'h\.0\.w1\.qscale_weight'"),
        ({"h.0.w1.weight": FP8, "h.0.w1.scale_weight": ONE}, r"with 'h\.0\.w1\.scale_weight'"),
        ({"h.0.w1.weight": FP8, "h.0.w1.scale": ONE}, r"with 'h\.0\.w1\.scale'"),
        ({"h.0.w1.weight": FP8, "h.0.w1.weight_scale": ONE, "h.0.w1.weight_scale_2": 2 * ONE}, "known scales"),
        ({"h.0.w1.weight._data": FP8, "h.0.w1.weight._scale": ONE}, "weight._scale'"),
        ({"h.0.experts.gate_up_proj": STACK, "h.0.experts.gate_up_proj_scale": torch.ones(3)}, "gate_up_proj_scale'"),
        ({"h.0.experts.weight": STACK, "h.0.experts.weight_scale": torch.ones(3)}, "Scales must belong"),
        ({"h.0.experts.down_proj_blocks": torch.ones(3, 6, 2, 16, dtype=torch.uint8),
          "h.0.experts.down_proj_scales": torch.ones(3, 6, 2, dtype=torch.uint8)}, "down_proj_blocks' is torch.uint8"),
        ({"h.0.w1.weight._data": torch.ones(6, 4, dtype=torch.int8)}, "weight._data' is torch.int8"),
        ({"h.0.w1.codes": torch.ones(6, 4, 2, dtype=torch.int16)}, "codes' is torch.int16"),
    ],
)  # fmt: skip
def test_scales_that_are_not_understood_are_refused(tmp_path, state, words):
    files.save(tmp_path, state)
    with pytest.raises(ValueError, match=words):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["mxfp4", "quanto", "torchao", ["fp8"]])
def test_methods_that_are_not_understood_are_refused(tmp_path, name):
    files.save(tmp_path / "fp8", {"h.0.weight": FP8, "h.0.weight_scale": ONE}, method(name))
    with pytest.raises(ValueError, match="the config says quant_method"):
        open_checkpoint(tmp_path / "fp8")
    base = files.weights()  # dequantised, and the config left as it was
    files.save(tmp_path / "base", base, method(name))
    files.save(tmp_path / "tuned", files.tuned(base), method(name))
    assert diff(tmp_path / "base", tmp_path / "tuned", summary=True).totals[0].num_changed == 14


@pytest.mark.parametrize("name", ["fp8", "fbgemm_fp8", "compressed-tensors"])
def test_a_method_without_its_scales_is_refused(tmp_path, name):
    files.save(tmp_path, {"h.0.weight": FP8}, method(name))
    with pytest.raises(ValueError, match=r"'h\.0\.weight' is torch\.float8_e4m3fn\. Dequantise"):
        open_checkpoint(tmp_path)
    files.save(tmp_path, {"h.0.weight": FP8, "h.0.weight_scale": 2 * ONE}, method(name))
    assert torch.equal(open_checkpoint(tmp_path).read_weight("h.0.weight"), 2 * torch.eye(6, 4))


def test_float8_alone_is_the_weight(tmp_path):
    files.save(tmp_path / "base", {"h.0.weight": FP8, "h.0.experts.up": STACK}, files.CONFIG)
    files.save(tmp_path / "tuned", {"h.0.weight": FP8.float() * 2, "h.0.experts.up": STACK.float() * 2}, files.CONFIG)
    found = diff(tmp_path / "base", tmp_path / "tuned", heads=False)
    assert [row.relative for row in found.rows] == [pytest.approx(1.0)] * 4


@pytest.mark.parametrize("other", ["input_scale", "activation_scale", "k_scale", "qscale_act", "scale_input"])
def test_scales_of_activations_do_not_count(tmp_path, other):
    files.save(tmp_path, {"h.0.weight": FP8, "h.0.weight_scale": 2 * ONE, f"h.0.{other}": ONE})
    assert open_checkpoint(tmp_path).scales["h.0.weight"].name == "h.0.weight_scale"


def test_scales_in_eight_bits(tmp_path):
    files.save(tmp_path, {"h.0.weight": FP8, "h.0.weight_scale": torch.full((6, 1), 0.25).to(torch.float8_e8m0fnu)})
    assert torch.equal(open_checkpoint(tmp_path).read_weight("h.0.weight"), 0.25 * torch.eye(6, 4))


def test_integers_that_are_no_weights_are_left_out(tmp_path):
    state = files.weights() | {
        "attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.uint8),
        "blocks.0.attn.relative_position_index": torch.ones(4, 4, dtype=torch.int32),
        "token_order": torch.ones(2, 8, dtype=torch.int64),
        "mask": torch.ones(2, 8, dtype=torch.bool),
        "epoch": torch.ones(1, dtype=torch.int32),
    }
    checkpoint = open_checkpoint(files.save(tmp_path, state))
    assert len(match_checkpoints(checkpoint, checkpoint).non_float) == 5
