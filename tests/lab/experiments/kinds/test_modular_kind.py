"""Modular arithmetic: the tables are right, runs are pure functions of the spec, and a cut run starts over."""

from dataclasses import replace

import pytest
import torch

import rankrise as rr
from rankrise.lab.experiments import NamedSpec, run_experiment
from rankrise.lab.experiments.kinds import ModularSpec
from rankrise.lab.experiments.kinds._modular_parts import modular_network, modular_table
from rankrise.signals import detect_slingshots

SPEC = ModularSpec(p=7, width=16, num_steps=40, every=4)
CURVES = ("loss", "train_accuracy", "test_accuracy", "last_norm", "absorbed", "imbalance")


def run(spec, out):
    return run_experiment(NamedSpec("mine", spec), out=out, device="cpu")


@pytest.mark.parametrize("operation", ["add", "subtract", "divide"])
def test_tables(operation):
    train, test = modular_table(ModularSpec(p=11, operation=operation, num_steps=1))
    pairs, answers = (torch.cat(parts) for parts in zip(train, test, strict=True))
    a, b = pairs.unbind(1)
    wanted = {"add": (a + b) % 11, "subtract": (a - b) % 11}.get(operation)
    assert torch.equal(answers, wanted) if wanted is not None else torch.equal(answers * b % 11, a)
    assert len({tuple(pair) for pair in pairs.tolist()}) == len(pairs) == (110 if operation == "divide" else 121)
    assert len(train[0]) == int(0.6 * len(pairs))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": "zero_sum"},
        {"loss": "fp64", "batch_size": 10},
        {"precision": "fp64", "epsilon": 1e-22},
        {"optimiser": "sgd", "learning_rate": 0.1},
        {"network": "transformer", "operation": "subtract"},
    ],
    ids=str,
)
def test_a_run_is_finished_learns_and_is_the_same_again(changes, tmp_path):
    spec = replace(SPEC, **changes)
    found = [rr.open_run(run(spec, tmp_path / name).folder) for name in "ab"]
    for name in CURVES:
        steps, values = found[0].scalar_path(name)
        assert steps.tolist() == list(range(0, 41, 4))
        assert values.tolist() == found[1].scalar(name).tolist()
    losses = found[0].scalar("loss")
    assert losses[-1] < losses[0]


def test_the_first_loss_is_that_of_the_plain_formula(tmp_path):
    model, (train, _) = modular_network(SPEC), modular_table(SPEC)
    wanted = torch.nn.functional.cross_entropy(model(train[0]), train[1]).item()
    assert rr.open_run(run(SPEC, tmp_path).folder).scalar("loss")[0] == pytest.approx(wanted, rel=1e-6)


def test_a_run_that_was_cut_off_starts_over(tmp_path, monkeypatch):
    from rankrise.lab.experiments.kinds import _modular_parts as parts

    whole = run(SPEC, tmp_path / "whole")
    original, calls = parts._scores, []

    def breaks(*args):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(parts, "_scores", breaks)
    with pytest.raises(KeyboardInterrupt):
        run(SPEC, tmp_path / "cut")
    assert run(SPEC, tmp_path / "cut").status == "finished"
    folders = (whole.folder, tmp_path / "cut" / "mine" / whole.hash)
    ends = [rr.open_run(folder).scalar("loss").tolist() for folder in folders]
    assert ends[0] == ends[1]


def test_a_loss_that_is_not_finite_is_said(tmp_path):
    found = run(replace(SPEC, optimiser="sgd", learning_rate=1e30), tmp_path)
    assert found.status == "diverged"
    assert "no longer finite at step 4. Try a smaller learning rate" in found.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"p": 2}, "`p` must be a whole number of at least 3; got 2"),
        ({"p": 9, "operation": "divide"}, "`p` must be a prime for division; got 9"),
        ({"epsilon": 0.0}, "`epsilon` must be positive; got 0.0"),
        ({"train_share": 1.0}, "`train_share` must be between 0 and 1; got 1.0"),
        ({"batch_size": 0}, "`batch_size` must be a whole number of at least 1; got 0"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(SPEC, **changes)


@pytest.mark.slow
def test_slingshots_and_their_cure_at_the_registered_size(tmp_path):
    """Seed 7 is in no pilot and in no verdict."""
    counts = []
    for loss in ("cross_entropy", "zero_sum"):
        found = rr.open_run(run(ModularSpec(num_steps=5000, loss=loss, seed=7), tmp_path).folder)
        steps, losses = found.scalar_path("loss")
        counts.append(len(detect_slingshots(steps, losses, found.scalar("last_norm")).closed))
    assert counts[0] >= 1
    assert counts[1] == 0
