"""Recipes check themselves and go through JSON."""

import dataclasses
import json

import pytest

from rankrise.lab.training import TrainingConfig


def test_goes_through_json():
    config = TrainingConfig(epochs=3, clip_norm=1.0)
    assert TrainingConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, r"`epochs` must be at least 1; got 0"),
        ({"epochs": 2.0}, r"`epochs` must be a whole number; got 2.0"),
        ({"epochs": True}, r"`epochs` must be a whole number; got True"),
        ({"batch_size": "8"}, r"`batch_size` must be a whole number; got '8'"),
        ({"seed": -1}, r"`seed` must be at least 0; got -1"),
        ({"epochs": 10**40}, r"`epochs` must be at most 1000000000; got 1000000"),
        ({"num_spectra": 10**12}, r"`num_spectra` must be at most 100000; got 1000000000000"),
        ({"learning_rate": -1.0}, r"`learning_rate` must be a number of at least 0; got -1.0"),
        ({"learning_rate": float("nan")}, r"`learning_rate` must be a number of at least 0; got nan"),
        ({"learning_rate": float("inf")}, r"`learning_rate` must be a number of at least 0; got inf"),
        ({"optimiser": "adma"}, r"`optimiser` must be one of adam, adamw, sgd; got 'adma'\. Did you mean 'adam'\?"),
        ({"schedule": "linear"}, r"`schedule` must be one of cosine, constant; got 'linear'\."),
        ({"precision": "fp16"}, r"`precision` must be one of fp32, tf32, bf16; got 'fp16'"),
        ({"betas": (0.9, 1.0)}, r"`betas` must be two numbers from 0 to below 1; got \(0.9, 1.0\)"),
        ({"betas": (0.9,)}, r"`betas` must be two numbers"),
        ({"betas": 0.9}, r"`betas` must be two numbers"),
        ({"clip_norm": 0.0}, r"`clip_norm` must be positive or None; got 0.0"),
        ({"warmup_epochs": 5}, r"`warmup_epochs` must be below `epochs`; got 5 and 5\. Train longer"),
        ({"batch_size": 10, "accumulate": 4}, r"`accumulate` must divide `batch_size`; got 4 and 10"),
        ({"momentum": 0.9}, r"`momentum` must be 0 for 'adam'; got 0.9\. Set `betas`"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**{"epochs": 5} | options)
