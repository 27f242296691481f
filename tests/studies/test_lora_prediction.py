"""The whole experiment, tiny: what a run holds, and that one which was cut off gives the same table."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from rankrise.lab.experiments._prediction_table import read_stages

from rankrise.cli._runs import describe
from rankrise.lab.data import DataConfig
from rankrise.lab.experiments import (
    NamedSpec,
    PredictionSpec,
    _kinds,
    _prediction_run,
    experiments,
    from_json,
    missing_data,
    plan_run,
    read_prediction,
    read_spec,
    run_experiment,
    spec_hash,
    to_json,
)
from rankrise.lab.figures import build_figures
from rankrise.store import has_run, load_run, load_spec

pytest.importorskip("peft")
SMOKE = experiments()["lora-prediction"].smoke
SPEC = NamedSpec("lora-prediction", replace(SMOKE, num_seeds=2, pretrain_steps=3, tune_steps=10, adapter_steps=8))


def stages(folder):
    """All but the time that they took."""
    return [(r.repetition, r.stage, {**r.scalars, "seconds": 0}, r.ranks) for r in read_stages(load_run(folder))]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return run_experiment(SPEC, out=tmp_path_factory.mktemp("whole"), device="cpu")


def test_run(report):
    assert report.status == "finished"
    assert read_spec(report.folder) == SPEC
    found = stages(report.folder)
    counts = {stage: sum(row[1] == stage for row in found) for stage in ("pretrain", "tune", "advised", "uniform")}
    assert counts["pretrain"] == counts["tune"] == 3
    assert min(counts["advised"], counts["uniform"]) >= 2 + 3  # two repetitions, and three rates at least
    library = load_spec(report.folder)["library"]
    assert len(library["sha256"]) == 64
    assert library["num_tokens"]["train"] == 64 * 16 + 1
    assert not list(report.folder.glob("base-*"))
    result = json.loads(json.dumps(report.to_json(), allow_nan=False))["prediction"]
    assert [row["second"] for row in result["differences"]] == ["uniform", "adalora"]
    assert all(pair.n == 2 for pair in read_prediction(report.folder).differences)


def test_what_chooses_does_not_see_the_test_files(report):
    for repetition, _, scalars, _ in stages(report.folder):
        assert ("test_loss" in scalars) == (repetition > 0)
        assert "validation_loss" in scalars


def test_reported_rates_are_those_with_the_least_validation_loss(report):
    found = stages(report.folder)
    for method in ("advised", "uniform", "adalora"):
        tried = {s["learning_rate"]: s["validation_loss"] for n, stage, s, _ in found if stage == method and n == 0}
        used = {s["learning_rate"] for n, stage, s, _ in found if stage == method and n > 0}
        assert used == {min(tried, key=tried.get)}


def test_advice_is_what_the_adapter_has_and_fits_the_budget(report):
    found = {(n, stage): (s, ranks) for n, stage, s, ranks in stages(report.folder) if n}
    for n in (1, 2):
        assert found[n, "advised"][1] == found[n, "tune"][1]
        assert 0.95 * found[n, "uniform"][0]["parameters"] < found[n, "advised"][0]["parameters"]
        assert found[n, "advised"][0]["parameters"] <= found[n, "uniform"][0]["parameters"]
        assert set(found[n, "uniform"][1].values()) == {SPEC.spec.rank}


@pytest.mark.parametrize("calls", [1, 13])
def test_what_was_cut_off_gives_the_same_table(report, tmp_path, monkeypatch, calls):
    fit, count = _prediction_run.fit, 0

    def dies(*args, after_step, **kwargs):
        nonlocal count
        count += 1

        def after(step):
            if count == calls and step == 2:
                raise KeyboardInterrupt
            after_step(step)

        fit(*args, after_step=after, **kwargs)

    monkeypatch.setattr(_prediction_run, "fit", dies)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(SPEC, out=tmp_path, device="cpu")
    monkeypatch.undo()
    plan = plan_run(SPEC, out=tmp_path)
    assert plan.state == "unfinished"
    done = load_run(plan.folder)
    again = run_experiment(SPEC, out=tmp_path, device="cpu")
    assert stages(again.folder) == stages(report.folder)
    assert load_run(again.folder).slice(0, done.num_rows).equals(done.combine_chunks())  # not done again
    assert run_experiment(SPEC, out=tmp_path).status == "skipped"


def test_what_was_killed_gives_the_same_table(report, tmp_path):
    code = f"""
from pathlib import Path
from rankrise.lab.experiments import read_spec, run_experiment
run_experiment(read_spec(Path({str(report.folder)!r})), out=Path({str(tmp_path)!r}), device="cpu")
"""
    folder = plan_run(SPEC, out=tmp_path).folder
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        while process.poll() is None and not (has_run(folder) and len(stages(folder)) >= 4):
            time.sleep(0.02)
    finally:
        process.kill()  # SIGKILL
    assert process.wait() == -signal.SIGKILL
    assert plan_run(SPEC, out=tmp_path).state == "unfinished"
    again = run_experiment(SPEC, out=tmp_path, device="cpu")
    assert stages(again.folder) == stages(report.folder)


def test_the_command_line_shows_the_tables(report):
    text = describe(report)
    assert text.startswith(f"lora-prediction/{report.hash}, seed 0:")
    assert "| advised − AdaLoRA |" in text


def test_figures_do_not_take_it_for_a_tracked_network(report):
    assert build_figures({"lora-prediction": [report.folder]}).figures == ()


def test_another_library_is_refused(tmp_path, monkeypatch):
    def dies(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(_prediction_run, "fit", dies)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(SPEC, out=tmp_path, device="cpu")
    load = _prediction_run.load_library
    monkeypatch.setattr(_prediction_run, "load_library", lambda *a, **k: replace(load(*a, **k), sha256="00"))
    with pytest.raises(ValueError, match=r"must be the one that the run in .* began with.*Go on with that Python"):
        run_experiment(SPEC, out=tmp_path, device="cpu")


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    paper = experiments()["lora-prediction"].paper
    assert "must be in" in missing_data(paper, tmp_path)
    assert missing_data(SMOKE, None) == ""
    monkeypatch.setattr(_kinds, "find_spec", lambda name: None)
    assert "pip install 'rankrise[peft]'" in missing_data(SMOKE, None)


def test_spec_goes_through_json_and_says_what_is_wrong():
    paper = experiments()["lora-prediction"].paper
    assert from_json(json.loads(json.dumps(to_json(paper)))) == paper
    assert (paper.model.num_layers, paper.model.width, paper.advice_step) == (6, 384, 30)
    assert paper.num_seeds >= 3
    assert spec_hash(paper) != spec_hash(replace(paper, rank=4))
    for wrong, message in (
        ({"rates": (1e-3,)}, "two or more that rise"),
        ({"advice_share": 0.0}, "must lie in"),
        ({"num_seeds": 0}, "at least 1"),
        ({"tune_rate": -1.0}, "positive and finite"),
        ({"data": DataConfig("synthetic_text", seed=2)}, "left at 0"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(paper, **wrong)
    assert isinstance(paper, PredictionSpec)
