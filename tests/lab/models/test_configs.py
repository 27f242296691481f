"""What a configuration says about its data, its cost and its module, without PyTorch."""

import subprocess
import sys

import pytest

from rankrise.lab.models import MODELS, GPTConfig, Size, ToyHeadConfig, ViTConfig, build_model


def test_configurations_load_no_torch():
    code = "import sys; from rankrise.lab.models import VIT_B16, GPTConfig; GPTConfig(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


@pytest.mark.parametrize(
    ("config", "data", "wrong"),
    [
        (ViTConfig(), {"task": "classify", "shape": (3, 32, 32), "num_classes": 9}, []),
        (ViTConfig(), {"task": "classify", "shape": (1, 32, 32), "num_classes": 11}, ["image", "num_classes"]),
        (GPTConfig(), {"task": "next_token", "shape": (512,), "num_classes": 257}, []),
        (GPTConfig(), {"task": "classify", "shape": (2048,), "num_classes": 257}, ["task", "context"]),
        (ToyHeadConfig(dim=4), {"task": "regress", "shape": (10, 4), "num_classes": None}, []),
        (ToyHeadConfig(dim=4), {"task": "regress", "shape": (10, 3), "num_classes": None}, ["dim"]),
    ],
)
def test_sizes_must_agree_with_the_data(config, data, wrong):
    assert [size.what for size in config.sizes(**data) if not size.fits] == wrong


def test_room_to_spare_is_for_numbers_only():
    assert Size("num_classes", 10, 9, may_spare=True).fits
    assert not Size("num_classes", 10, 9).fits
    assert not Size("num_classes", 10, None, may_spare=True).fits


def test_cost_counts_the_weights_of_the_blocks():
    config = ViTConfig(num_layers=2, width=16, num_heads=2, head_dim=8, mlp_width=32)
    blocks = build_model(config).blocks
    weights = sum(w.numel() for name, w in blocks.named_parameters() if w.ndim == 2)
    assert config.flops() == 6 * weights * config.num_tokens


@pytest.mark.parametrize("name", MODELS)
def test_every_configuration_names_its_module(name):
    small = {"vit": {"num_layers": 1, "width": 16}, "gpt": {"num_layers": 1, "vocab_size": 8, "width": 16}}
    config = MODELS[name](**small.get(name, {}))
    assert build_model(config).config == config
