"""What is registered: names people can guess, the paper's recipes, three scales of each."""

from dataclasses import replace

import pytest

from rankrise.experiments import TrainingSpec, experiments, find_experiment, vary
from rankrise.models import VIT_B16, GPTConfig, ViTConfig

ALL = experiments()
TRAINING = {name: found for name, found in ALL.items() if isinstance(found.smoke, TrainingSpec)}


def test_names():
    assert {
        "vit-digits",
        "toy-matrix-head",
        "vit-cifar10",
        "vit-cifar10-scale-1",
        "vit-cifar10-scale-0.3",
        "vit-cifar10-scale-0.1",
        "vit-cifar10-scale-0.03",
        "vit-cifar10-augmented",
        "vit-cifar100",
        "vit-tiny-imagenet",
        "vit-imagenet",
        "gpt2-wikitext2",
        "gpt2-wikitext103",
    } == set(TRAINING)


def test_the_list_cannot_be_changed_by_a_caller():
    experiments().clear()
    assert experiments() == ALL


def test_unknown_name_and_scale():
    with pytest.raises(ValueError, match=r"got 'vit-cifar01'\. Did you mean 'vit-cifar10'\? Known: gpt2-wikitext103,"):
        find_experiment("vit-cifar01")
    with pytest.raises(ValueError, match=r"`scale` must be a known one; got 'smal'\. Did you mean 'small'"):
        find_experiment("vit-digits").spec("smal")


def test_recipe_of_the_paper_on_cifar():
    """6 layers, 8 heads of 128, embedding 512, MLP 512, patch 4; Adam, 500 epochs, 1e-4, warm-up 15, batch 512."""
    spec = ALL["vit-cifar10"].paper
    model, training = spec.model, spec.training
    assert model == ViTConfig(32, 4, 3, 10, 6, 8, 128, 512, 512)
    assert (training.optimiser, training.epochs, training.learning_rate) == ("adam", 500, 1e-4)
    assert (training.warmup_epochs, training.batch_size, training.schedule) == (15, 512, "cosine")
    assert (training.weight_decay, training.clip_norm, training.precision) == (0, None, "bf16")
    assert spec.data.augment == ()
    hundred = ALL["vit-cifar100"].paper
    assert hundred.training == training
    assert hundred.model == replace(model, num_classes=100)


def test_recipe_of_the_paper_on_imagenet():
    """ViT-B/16, Adam, 360 epochs, learning rate 3e-3, warm-up 15, batch 4096."""
    spec = ALL["vit-imagenet"].paper
    training = spec.training
    assert spec.model == VIT_B16
    assert (training.optimiser, training.epochs, training.learning_rate) == ("adam", 360, 3e-3)
    assert (training.warmup_epochs, training.batch_size) == (15, 4096)
    assert training.accumulate > 1


def test_gpt2_is_gpt2():
    assert ALL["gpt2-wikitext2"].paper.model == ALL["gpt2-wikitext103"].paper.model == GPTConfig()


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_init_scales_differ_in_nothing_else(scale):
    family = [ALL[f"vit-cifar10-scale-{factor}"].spec(scale) for factor in ("1", "0.3", "0.1", "0.03")]
    assert [spec.model.init_scale for spec in family] == [1, 0.3, 0.1, 0.03]
    assert len({replace(spec, model=replace(spec.model, init_scale=1.0)) for spec in family}) == 1
    assert family[0].training.epochs == (100 if scale == "paper" else ALL["vit-cifar10"].spec(scale).training.epochs)


@pytest.mark.parametrize("name", TRAINING)
def test_smoke_needs_no_files(name):
    spec = ALL[name].smoke
    assert spec.data.name in ("digits", "teacher", "synthetic_images", "synthetic_text")
    assert type(spec.model) is type(ALL[name].paper.model)
    assert spec.training.precision == "fp32"
    assert ALL[name].title
    assert ALL[name].shows


def test_toy_is_plain_gradient_descent():
    for spec in ALL["toy-matrix-head"].specs.values():
        assert spec.training.batch_size == spec.data.samples
        assert (spec.training.optimiser, spec.training.momentum, spec.training.schedule) == ("sgd", 0, "constant")
        assert spec.model.dim == spec.data.dim


def test_other_epochs_keep_the_warm_up_where_it_fits():
    spec = ALL["vit-cifar10"].paper
    assert vary(spec, epochs=60).training == replace(spec.training, epochs=60)
    assert vary(spec, epochs=15).training.warmup_epochs == pytest.approx(0.45)
    assert vary(spec, seed=3) == replace(spec, seed=3)
    assert vary(spec) == spec
