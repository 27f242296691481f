"""What is registered: names people can guess, the paper's recipes, three scales of each."""

from dataclasses import replace
from pathlib import Path

import pytest

from rankrise.lab.experiments import TrainingSpec, experiments, find_experiment, spec_hash, vary
from rankrise.lab.models import VIT_B16, GPTConfig, ViTConfig

ALL = experiments()
BASES = ("vit-cifar10", "vit-digits")
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
        "vit-cifar10-ceng501",
        *(f"vit-digits-scale-{factor}" for factor in ("1", "0.3", "0.1", "0.03")),
        *(f"{base}-{name}" for base in BASES for name in ("relu", "sgd", "random-labels", "wide")),
        *(f"vit-digits-hot{name}" for name in ("", "-sigma", "-sigma-qkv", "-spectral", "-warmup")),
        *(f"vit-digits-decay-{decay}" for decay in ("0.1", "1", "10")),
        *(f"vit-digits-{name}" for name in ("post-norm", "no-norm", "bare", "bare-sigma", "sigma", "sgd-sigma")),
        *(f"vit-digits-regime-{factor}" for factor in ("10", "3", "1", "0.3", "0.1", "0.03")),
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


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_hot_digits_differ_from_the_registrys_in_rate_schedule_and_length_only(scale):
    plain, hot = (ALL[name].spec(scale) for name in ("vit-digits", "vit-digits-hot"))
    assert (hot.data, hot.model, hot.probes) == (plain.data, plain.model, ("entropy",))
    assert hot.training.learning_rate == pytest.approx(30 * plain.training.learning_rate)
    assert (hot.training.warmup_epochs, hot.training.schedule) == (0, "constant")
    for name, reparam in {"sigma": "sigma", "sigma-qkv": "sigma_attention", "spectral": "spectral_norm"}.items():
        other = ALL[f"vit-digits-hot-{name}"].spec(scale)
        assert replace(other, training=replace(other.training, reparam="none")) == hot
        assert other.training.reparam == reparam


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_modular_experiments_differ_in_what_they_say_only(scale):
    base = ALL["modular-adam"].spec(scale)
    assert replace(ALL["modular-zero-sum"].spec(scale), loss="cross_entropy") == base
    assert replace(ALL["modular-loss64"].spec(scale), loss="cross_entropy") == base
    assert replace(ALL["modular-fp64"].spec(scale), precision="fp32") == base
    tiny = ALL["modular-fp64-tiny"].spec(scale)
    assert replace(tiny, precision="fp32", epsilon=1e-8, num_steps=base.num_steps) == base
    assert replace(ALL["modular-fp64-tiny-zero-sum"].spec(scale), loss="cross_entropy") == tiny


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
    warmups = [vary(spec, epochs=n).training.warmup_epochs for n in range(1, 61)]
    assert warmups == [min(15, n / 2) for n in range(1, 61)]  # no jump anywhere
    long = replace(spec, training=replace(spec.training, epochs=4, warmup_epochs=3))
    assert vary(long, epochs=4) == long
    assert vary(spec, seed=3) == replace(spec, seed=3)
    assert vary(spec) == spec


SHAPES = {  # of the data: image (C, S), tokens (T, vocabulary), classes
    "cifar10": (3, 32, 10),
    "cifar100": (3, 32, 100),
    "tiny-imagenet-20": (3, 64, 20),
    "imagenet": (3, None, 1000),
    "digits": (1, 8, 10),
}


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_models_fit_data_that_is_not_at_hand(name, scale):
    spec = ALL[name].spec(scale)
    data, model = spec.data, spec.model
    if data.name == "teacher":
        assert model.dim == data.dim
    elif data.name == "text":
        assert model.context == data.context
        assert model.vocab_size == {"gpt2": 50257, "bytes": 257}[data.tokenizer]  # bytes and the end of a text
    else:
        channels, size, classes = SHAPES[data.path or data.name]
        assert (model.num_channels, model.image_size) == (channels, size or data.image_size)
        assert model.num_classes == classes


def test_the_page_names_every_experiment_and_shows_the_run_it_says():
    page = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
    for name in ALL:
        family, _, factor = name.rpartition("-")
        assert f"`{name}`" in page or (f"`{family}-" in page and f"`-{factor}`" in page), name
    assert f"vit-digits/{spec_hash(ALL['vit-digits'].small)}, seed 0" in page


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
@pytest.mark.parametrize("base", BASES)
def test_variants_differ_from_the_run_of_scale_1_in_one_thing(base, scale):
    """Of equal length, so that they can be compared with it."""
    plain = ALL[f"{base}-scale-1"].spec(scale)
    relu, sgd, labels, wide = (ALL[f"{base}-{name}"].spec(scale) for name in ("relu", "sgd", "random-labels", "wide"))
    assert replace(relu, model=replace(relu.model, activation="gelu")) == plain
    assert replace(labels, data=replace(labels.data, random_labels=False)) == plain
    assert replace(wide, model=plain.model) == plain
    assert replace(sgd, training=plain.training) == plain
    assert sgd.training.epochs == plain.training.epochs
    assert sgd.training.optimiser == "sgd"
    assert wide.model.width == 2 * plain.model.width
