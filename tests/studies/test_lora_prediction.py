"""The whole study, tiny: what a run holds, and that one which was cut off gives the same table."""

import json
import os
import signal
import time
from dataclasses import replace

import pytest
import torch
from studies.prediction_result import read_prediction
from studies.prediction_run import run_prediction
from studies.prediction_spec import PAPER, SMOKE
from studies.prediction_stages import read_stages
from tests.processes import start, wait

from rankrise.lab.data import DataConfig
from rankrise.lab.figures import build_figures
from rankrise.store import has_run, is_sealed, load_run, load_spec
from studies import lora_prediction, prediction_run

pytest.importorskip("peft")
SPEC = replace(SMOKE, num_seeds=2, pretrain_steps=3, tune_steps=10, adapter_steps=8)


def run(folder):
    run_prediction(SPEC, folder, root=None, device=torch.device("cpu"))
    return folder


def stages(folder):
    """All but the time that they took."""
    return [(r.repetition, r.stage, {**r.scalars, "seconds": 0}, r.ranks) for r in read_stages(load_run(folder))]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole") / "run")


def test_run(whole):
    assert is_sealed(whole)
    assert load_spec(whole)["config"] == {"experiment": "lora-prediction", "spec": SPEC.to_json()}
    found = stages(whole)
    counts = {stage: sum(row[1] == stage for row in found) for stage in ("pretrain", "tune", "advised", "uniform")}
    assert counts["pretrain"] == counts["tune"] == 3
    assert min(counts["advised"], counts["uniform"]) >= 2 + 3  # two repetitions, and three rates at least
    library = load_spec(whole)["library"]
    assert len(library["sha256"]) == 64
    assert library["num_tokens"]["train"] == 64 * 16 + 1
    assert not list(whole.glob("base-*"))
    result = json.loads(json.dumps(read_prediction(whole).to_json(), allow_nan=False))
    assert [row["second"] for row in result["differences"]] == ["uniform", "adalora"]
    assert all(pair.n == 2 for pair in read_prediction(whole).differences)


def test_what_chooses_does_not_see_the_test_files(whole):
    for repetition, _, scalars, _ in stages(whole):
        assert ("test_loss" in scalars) == (repetition > 0)
        assert "validation_loss" in scalars


def test_reported_rates_are_those_with_the_least_validation_loss(whole):
    found = stages(whole)
    for method in ("advised", "uniform", "adalora"):
        tried = {s["learning_rate"]: s["validation_loss"] for n, stage, s, _ in found if stage == method and n == 0}
        used = {s["learning_rate"] for n, stage, s, _ in found if stage == method and n > 0}
        assert used == {min(tried, key=tried.get)}


def test_advice_is_what_the_adapter_has_and_fits_the_budget(whole):
    found = {(n, stage): (s, ranks) for n, stage, s, ranks in stages(whole) if n}
    for n in (1, 2):
        assert found[n, "advised"][1] == found[n, "tune"][1]
        assert 0.95 * found[n, "uniform"][0]["parameters"] < found[n, "advised"][0]["parameters"]
        assert found[n, "advised"][0]["parameters"] <= found[n, "uniform"][0]["parameters"]
        assert set(found[n, "uniform"][1].values()) == {SPEC.rank}


@pytest.mark.parametrize("calls", [1, 13])
def test_what_was_cut_off_gives_the_same_table(whole, tmp_path, monkeypatch, calls):
    fit, count = prediction_run.fit, 0

    def dies(*args, after_step, **kwargs):
        nonlocal count
        count += 1

        def after(step):
            if count == calls and step == 2:
                raise KeyboardInterrupt
            after_step(step)

        fit(*args, after_step=after, **kwargs)

    monkeypatch.setattr(prediction_run, "fit", dies)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    monkeypatch.undo()
    assert not is_sealed(tmp_path)
    done = load_run(tmp_path)
    run(tmp_path)
    assert stages(tmp_path) == stages(whole)
    assert load_run(tmp_path).slice(0, done.num_rows).equals(done.combine_chunks())  # not done again
    before = (tmp_path / "MANIFEST.json").stat().st_mtime_ns
    run(tmp_path)  # what is done is left as it is
    assert (tmp_path / "MANIFEST.json").stat().st_mtime_ns == before


def test_what_was_killed_gives_the_same_table(whole, tmp_path):
    process = start(lambda: run(tmp_path))
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (has_run(tmp_path) and len(stages(tmp_path)) >= 4):
            time.sleep(0.02)
    finally:
        os.kill(process, signal.SIGKILL)
        ended = wait(process)
    assert ended == -signal.SIGKILL
    assert not is_sealed(tmp_path)
    assert stages(run(tmp_path)) == stages(whole)


def test_the_command_shows_the_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("studies.prediction_spec.SCALES", {"smoke": SPEC})
    monkeypatch.chdir(tmp_path)
    lora_prediction.main(["--scale", "smoke", "--device", "cpu"])
    out = capsys.readouterr()
    assert "| advised − AdaLoRA |" in out.out
    assert out.err.endswith("wrote runs/lora-prediction/smoke-0\n")


def test_figures_do_not_take_it_for_a_tracked_network(whole):
    assert build_figures({"lora-prediction": [whole]}).figures == ()


def test_another_library_is_refused(tmp_path, monkeypatch):
    def dies(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(prediction_run, "fit", dies)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    load = prediction_run.load_library
    monkeypatch.setattr(prediction_run, "load_library", lambda *a, **k: replace(load(*a, **k), sha256="00"))
    with pytest.raises(ValueError, match=r"must be the one that the run in .* began with.*Go on with that Python"):
        run(tmp_path)


def test_the_run_of_another_spec_is_refused(whole):
    with pytest.raises(ValueError, match=r"must hold a run of this spec; it holds another\. Choose another --out"):
        run_prediction(replace(SPEC, rank=3), whole, root=None, device=torch.device("cpu"))


def test_what_is_missing_is_said(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        lora_prediction.main(["--data", str(tmp_path), "--out", str(tmp_path / "run")])
    assert "must be in" in capsys.readouterr().err
    monkeypatch.setattr(lora_prediction, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        lora_prediction.main(["--scale", "smoke"])
    assert "pip install 'rankrise[peft]'" in capsys.readouterr().err


def test_spec_is_json_and_says_what_is_wrong():
    assert json.loads(json.dumps(PAPER.to_json())) == PAPER.to_json()
    assert (PAPER.model.num_layers, PAPER.model.width, PAPER.advice_step) == (6, 384, 30)
    assert PAPER.num_seeds >= 3
    assert PAPER.to_json() != replace(PAPER, rank=4).to_json()
    for wrong, message in (
        ({"rates": (1e-3,)}, "two or more that rise"),
        ({"advice_share": 0.0}, "must lie in"),
        ({"num_seeds": 0}, "at least 1"),
        ({"tune_rate": -1.0}, "positive and finite"),
        ({"data": DataConfig("synthetic_text", seed=2)}, "left at 0"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(PAPER, **wrong)
