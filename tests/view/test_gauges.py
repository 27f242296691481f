"""Figures of what probes saw: slingshots are marked, scales are compared, and what a run lacks is said."""

import numpy as np
import pytest
import torch

import rankrise as rr
from rankrise.runs import NotMeasurable
from rankrise.store import create_run, rows
from rankrise.tracking import KernelProbe, LazinessProbe
from rankrise.view import figure_of_run


def cycles(folder, *, with_loss=True):
    """A run whose loss spikes every 1,000 steps after the norm of its last layer has run up."""
    steps = np.arange(0, 5000, 20)
    cycle, phase = steps // 1000, steps % 1000 / 1000
    high = np.where(cycle == 0, 0, -3)
    loss = 10.0 ** (high - (7 + high) * (1 - np.exp(-phase / 0.2)) + 0.2 * phase**4)
    norm = 10 + cycle + np.exp((phase - 1) / 0.1)
    run = create_run(folder, spec={"kind": "tracker"}, initial={})
    for step, a, b in zip(steps.tolist(), loss, norm, strict=True):
        run.append(rows(step, "last_norm", [b]))
        run.append(rows(step, "absorbed", [0.5]))
        if with_loss:
            run.append(rows(step, "loss", [a]))
    run.seal()
    return rr.open_run(folder)


def test_slingshots_of_one_run_are_marked(tmp_path):
    figure = figure_of_run("slingshots", cycles(tmp_path / "a" / "run"))
    assert [panel.title for panel in figure.panels] == ["training loss", "last layer", "softmax rounded to 1"]
    for panel in figure.panels:
        assert [mark.x for mark in panel.marks] == [1000, 2000, 3000, 4000]
    assert "4 slingshots were found" in figure.text


def test_slingshots_of_two_runs_are_lines(tmp_path):
    runs = [cycles(tmp_path / name / "run") for name in "ab"]
    figure = rr.view.figure_of_comparison("slingshots", rr.compare(runs))
    assert [len(panel.traces) for panel in figure.panels] == [2, 2, 2]
    assert figure.panels[0].marks == ()


def test_a_run_without_losses_is_told_what_to_record(tmp_path):
    with pytest.raises(NotMeasurable, match="has no `loss`"):
        figure_of_run("slingshots", cycles(tmp_path / "a" / "run", with_loss=False))
    run = create_run(tmp_path / "b" / "run", spec={"kind": "tracker"}, initial={})
    run.append(rows(0, "loss", [1.0]))
    run.seal()
    other = rr.open_run(tmp_path / "b" / "run")
    with pytest.raises(NotMeasurable, match=r"has no last_norm. Build the tracker with probes=\[ClassifierProbe\(\)\]"):
        figure_of_run("slingshots", other)


def trained(folder, factor, *, probes=True):
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(6, 4, 8)
    found = [LazinessProbe(x), KernelProbe(x)] if probes else []
    with rr.RankTracker(model, out=folder, every=1, probes=found, config={"init_scale": factor}) as tracker:
        tracker.step(0)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.1 * torch.randn_like(weight)
        tracker.step(1, test_accuracy=0.5)
    return rr.open_run(tracker.out)


def test_laziness_by_scale(tmp_path):
    runs = [trained(tmp_path / f"{factor}", factor) for factor in (1.0, 0.1)]
    figure = rr.view.figure_of_comparison("laziness_by_scale", rr.compare(runs))
    first = figure.panels[0].traces[0]
    assert first.x == (0.1, 1.0)
    assert first.y[1] == pytest.approx(runs[0].scalar("linearisation_error")[-1])
    assert [len(panel.traces) for panel in figure.panels] == [1, 1, 2, 2, 1]


def test_laziness_by_scale_says_what_is_missing(tmp_path):
    runs = [trained(tmp_path / f"{factor}", factor, probes=False) for factor in (1.0, 0.1)]
    with pytest.raises(NotMeasurable, match=r"has no linearisation_error\. Train with a LazinessProbe"):
        rr.view.figure_of_comparison("laziness_by_scale", rr.compare(runs))
