"""A spec is a value with one spelling: round trips, names that never change, and refusals that name what is wrong."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankrise.lab.data import DataConfig
from rankrise.lab.experiments import TrainingSpec, experiments, from_json, spec_hash, to_json
from rankrise.lab.models import GPTConfig, ToyHeadConfig, ViTConfig
from rankrise.lab.training import TrainingConfig

SPEC = TrainingSpec(
    DataConfig("digits", num_train=64), ViTConfig(image_size=8, patch_size=2, num_channels=1), TrainingConfig(epochs=3)
)
REGISTERED = {
    f"{experiment.name} {scale}": spec
    for experiment in experiments().values()
    for scale, spec in experiment.specs.items()
}
# The names of runs that exist; if one changes, users train again. A new field with a default changes none. A changed
# default changes the name of those that gave the new value, and leaves runs of the old one refused: mind both.
PINNED = {
    "vit-digits smoke": "fcded8dfbc2c",
    "vit-digits small": "6b24e81724a8",
    "toy-matrix-head paper": "6330340725a2",
    "vit-cifar10 paper": "609c49ea140b",
    "vit-cifar10-scale-0.1 paper": "09852b07f1c2",
    "vit-cifar10-augmented paper": "b7f2288beb88",
    "vit-cifar100 small": "a77b66673817",
    "vit-imagenet paper": "3e93e8bb01b4",
    "gpt2-wikitext2 paper": "812b35b63aa1",
}


@pytest.mark.parametrize("spec", REGISTERED.values(), ids=REGISTERED)
def test_round_trip_through_text(spec):
    text = json.dumps(to_json(spec), allow_nan=False)
    assert from_json(json.loads(text)) == spec
    assert spec_hash(from_json(json.loads(text))) == spec_hash(spec)


def test_every_kind_of_model_round_trips():
    for model in (ViTConfig(), GPTConfig(), ToyHeadConfig()):
        spec = replace(SPEC, model=model, seed=7)
        assert from_json(to_json(spec)) == spec


@pytest.mark.parametrize("name", PINNED)
def test_hashes_never_change(name):
    assert spec_hash(REGISTERED[name]) == PINNED[name]


def test_hash_is_the_same_in_another_process():
    code = "from rankrise.lab.experiments import *; print(spec_hash(experiments()['vit-cifar10'].paper))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=None, check=True)
    assert done.stdout.strip() == spec_hash(experiments()["vit-cifar10"].paper)


def test_hash_by_hand():
    """Canonical JSON, written out: sorted keys, no spaces, floats by repr, defaults left out."""
    import hashlib

    spec = TrainingSpec(
        DataConfig("teacher", dim=4), ToyHeadConfig(dim=4), TrainingConfig(epochs=3, learning_rate=1), 5
    )
    text = (
        '{"data":{"dim":4,"kind":"data","name":"teacher"},"kind":"training","model":{"dim":4,"kind":"toy_head"},'
        '"schema_version":1,"seed":5,"training":{"epochs":3,"kind":"training","learning_rate":1.0}}'
    )
    assert spec_hash(spec) == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_every_value_counts():
    others = [
        replace(SPEC, seed=1),
        replace(SPEC, data=replace(SPEC.data, num_train=65)),
        replace(SPEC, model=replace(SPEC.model, init_scale=0.1)),
        replace(SPEC, training=replace(SPEC.training, learning_rate=2e-4)),
    ]
    assert len({spec_hash(spec) for spec in [SPEC, *others]}) == 5


def test_equal_specs_have_equal_hashes():
    whole = replace(SPEC, training=replace(SPEC.training, learning_rate=1, betas=(0, 0.5)))
    fractional = replace(SPEC, training=replace(SPEC.training, learning_rate=1.0, betas=(0.0, 0.5)))
    assert whole == fractional
    assert spec_hash(whole) == spec_hash(fractional)


def test_the_seed_stands_once():
    text = json.dumps(to_json(SPEC))
    assert text.count('"seed"') == 1
    for part in ("data", "training"):
        with pytest.raises(ValueError, match=rf"`{part}\.seed` must be left at 0 in a spec; got 3"):
            replace(SPEC, **{part: replace(getattr(SPEC, part), seed=3)})
        record = to_json(SPEC)
        record[part]["seed"] = 3
        with pytest.raises(ValueError, match=f"{part} must have known fields only; got 'seed'"):
            from_json(record)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True, "0"])
def test_seed_must_be_a_seed(seed):
    with pytest.raises(ValueError, match="seed` must be a whole number from 0"):
        replace(SPEC, seed=seed)


def changed(path, value):
    record = to_json(SPEC)
    *parts, last = path.split(".")
    inner = record
    for part in parts:
        inner = inner[part]
    inner[last] = value
    return record


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schema_version", 2, "A spec must have schema_version 1, the one this rankrise reads; got 2"),
        ("schema_version", True, "got True"),
        ("kind", "trainin", "A spec must be of a known kind; got 'trainin'. Did you mean 'training'?"),
        ("optimizer", {}, "A spec must have known fields only; got 'optimizer'"),
        (
            "model.kind",
            "vti",
            "model.kind must be a known kind; got 'vti'. Did you mean 'vit'? Known: gpt, toy_head, vit",
        ),
        ("model.kind", ["vit"], "model.kind must be a known kind; got ['vit']"),
        ("model.num_heds", 4, "model must have known fields only; got 'num_heds'. Did you mean 'num_heads'?"),
        ("model.num_heads", "4", "model.num_heads must be a whole number; got '4'"),
        ("model.num_heads", 0, "model: `num_heads` must be at least 1; got 0"),
        ("data.name", "cifar", "data: `name` must be one of"),
        ("data", [], "data must be a JSON object; got list"),
        ("training.optimiser", "adma", "training.optimiser must be one of 'adam', 'adamw', 'sgd'; got 'adma'. Did you"),
        ("training.learning_rate", None, "training.learning_rate must be a finite number; got None"),
        ("seed", 0.5, "seed must be a whole number; got 0.5"),
        ("seed", -1, "`seed` must be a whole number from 0"),
    ],
)
def test_what_is_wrong_is_named(path, value, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        from_json(changed(path, value))


@pytest.mark.parametrize("name", ["data", "model", "training"])
def test_parts_must_be_there(name):
    record = to_json(SPEC)
    del record[name]
    with pytest.raises(ValueError, match=f"A spec must have the field '{name}'; it is missing"):
        from_json(record)


def test_fields_that_are_not_given_keep_their_defaults():
    record = to_json(SPEC)
    for part in ("data", "model", "training"):
        record[part] = {key: value for key, value in record[part].items() if key in ("kind", "name", "epochs")}
    del record["seed"]
    assert from_json(record) == TrainingSpec(DataConfig("digits"), ViTConfig(), TrainingConfig(epochs=3))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(JSON)
def test_any_json_is_a_spec_or_a_value_error(value):
    with pytest.raises(ValueError, match=r"must be|must have"):
        from_json(value)


LEAVES = [f"{part}.{key}" for part in ("data", "model", "training") for key in to_json(SPEC)[part]] + [
    "schema_version",
    "kind",
    "seed",
    "data",
    "model",
    "training",
    "data.x",
]


@given(st.sampled_from(LEAVES), JSON)
def test_a_spec_with_one_strange_value_is_a_spec_or_a_value_error(path, value):
    try:
        spec = from_json(changed(path, value))
    except ValueError:
        return
    assert from_json(json.loads(json.dumps(to_json(spec), allow_nan=False))) == spec
