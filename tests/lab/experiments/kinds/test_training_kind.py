"""The probes of a spec measure, change no bit of training, and in a resumed run compare with the start of that run."""

import os
import signal
from dataclasses import replace

import pytest

import rankrise as rr
from rankrise.lab.experiments import NamedSpec, experiments, run_experiment
from rankrise.tracking import RankTracker

PLAIN = experiments()["vit-digits"].smoke
PROBED = replace(PLAIN, probes=("entropy", "laziness", "kernel"))


def run(spec, out):
    return run_experiment(NamedSpec("mine", spec), out=out, device="cpu")


def test_probes_measure_and_change_no_bit_of_training(tmp_path):
    plain, probed = (rr.open_run(run(spec, tmp_path).folder) for spec in (PLAIN, PROBED))
    assert plain.scalar("loss").tolist() == probed.scalar("loss").tolist()
    assert plain.path("stable_rank", "kq")[1].tolist() == probed.path("stable_rank", "kq")[1].tolist()
    steps = probed.path("stable_rank", "kq")[0].tolist()
    assert probed.path("attention_entropy_share", "kq")[0].tolist() == steps
    assert probed.scalar_path("linearisation_error")[0].tolist() == steps[1:]  # at the start nothing has changed
    drift = probed.curve("kernel_drift", circuit="ntk")
    assert drift.values.reshape(-1)[0] == 0
    assert drift.steps.tolist() == [0, *probed.path("spectrum", "kq")[0].tolist()][-len(drift.steps) :]
    assert not plain.has("linearisation_error")


def test_a_resumed_run_compares_with_its_own_start(tmp_path, monkeypatch):
    whole = run(PROBED, tmp_path / "whole")
    step = RankTracker.step

    def stops(self, number, /, **scalars):
        step(self, number, **scalars)
        if number == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(RankTracker, "step", stops)
        assert run(PROBED, tmp_path / "cut").status == "stopped"
    cut = run(PROBED, tmp_path / "cut")
    assert cut.status == "finished"
    assert rr.load_run(whole.folder).equals(rr.load_run(cut.folder))


def test_an_unknown_probe_is_refused():
    from rankrise.lab.experiments import from_json, to_json

    with pytest.raises(ValueError, match=r"probes must be a list, each one of 'entropy', 'laziness', 'kernel'"):
        from_json(to_json(PROBED) | {"probes": ["entropies"]})
