"""Figures of anyone's own runs: one run, several side by side, several initial scales."""

import numpy as np
import pytest
import torch
from tests.runs.test_open_run import planted

import rankrise as rr
from rankrise.runs import NotMeasurable
from rankrise.tracking import ClassifierProbe, EntropyProbe, KernelProbe, LazinessProbe
from rankrise.view import RUN_FIGURES, figure_of_comparison, figure_of_run, run_figure_ids


def tracked(folder, *, scale=1.0, layers=2, heads=2, steps=24):
    """A tracker in a loop of one's own, on a model whose weights are moved by hand."""
    torch.manual_seed(0)
    block = torch.nn.TransformerEncoderLayer(8, heads, 16, dropout=0.0)
    model = torch.nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
    inputs = torch.randn(5, 3, 8)
    probes = [EntropyProbe(inputs), KernelProbe(inputs, targets=torch.arange(5) % 2)]
    probes += [LazinessProbe(inputs), ClassifierProbe("layers.1.linear2")]
    options = {"every": 1, "spectra": 4, "config": {"init_scale": scale}, "probes": probes}
    with rr.RankTracker(model, out=folder, **options) as tracker:
        for step in range(1, steps + 1):
            with torch.no_grad():
                for layer in model.layers:
                    layer.self_attn.in_proj_weight += scale * torch.randn_like(layer.self_attn.in_proj_weight)
            tracker.step(step, loss=1 / step)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return [tracked(root / f"scale-{scale}", scale=scale) for scale in (1.0, 0.1)]


@pytest.mark.parametrize("figure_id", [name for name, figure in RUN_FIGURES.items() if figure.of != "scales"])
def test_every_figure_of_one_run_is_drawn(folders, figure_id):
    figure = figure_of_run(figure_id, rr.open_run(folders[0]))
    assert figure.id == figure_id
    assert figure.num_points > 0
    assert "scale-1.0" in figure.title
    assert "2 layers × 2 heads, steps 1 to 24" in figure.run_sentence
    picture = rr.open_run(folders[0]).plot(figure_id)
    assert picture._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("figure_id", [name for name, figure in RUN_FIGURES.items() if figure.of == "scales"])
def test_figures_of_scales_compare_runs(folders, figure_id):
    runs = rr.compare(folders)
    assert figure_of_comparison(figure_id, runs).num_points > 0
    with pytest.raises(NotMeasurable, match=r"compares runs of several initial scales; got one run. Pass runs whose"):
        rr.open_run(folders[0]).plot(figure_id)
    with pytest.raises(ValueError, match=r"must have runs at two initial scales or more; got scale 1. Train once more"):
        rr.compare([folders[0], folders[0]]).plot(figure_id)


def test_runs_that_do_not_say_their_scale_are_refused(tmp_path):
    runs = rr.compare([planted(tmp_path / name) for name in ("a", "b")])
    with pytest.raises(NotMeasurable, match=r"does not say. Pass config=\{'init_scale': 0.1\}, say, to the tracker"):
        runs.plot("stable_rank_by_scale")


def test_several_runs_are_overlaid_and_never_averaged(folders, tmp_path):
    other = planted(tmp_path / "other")  # of another architecture
    figure = figure_of_comparison("training_curves", rr.compare({"mine": folders[0], "other": other}))
    assert [trace.label for trace in figure.panels[1].traces] == ["mine", "other"]
    assert figure.panels[1].traces[1].y == tuple([1.0] * 20 + [1.5] * 20)
    one = figure_of_comparison("training_curves", rr.compare({"mine": folders[0], "other": other}), layer=1)
    assert one.panels[1].traces[1].y == tuple([1.0] * 20 + [2.0] * 20)
    with pytest.raises(NotMeasurable, match=r"has no layer 5; it has 0-1"):
        figure_of_comparison("training_curves", rr.compare([folders[0], other]), layer=5)
    with pytest.raises(NotMeasurable, match=r"`perturbation_vs_init` shows one run; got 2. Draw training_curves"):
        rr.compare(folders).plot("perturbation_vs_init")


def test_a_stage_is_marked(tmp_path):
    figure = figure_of_run("training_curves", rr.open_run(planted(tmp_path / "mine")))
    loss, kq, vo = figure.panels
    assert [round(mark.x) for mark in loss.marks] == [20]
    assert [round(mark.x) for mark in kq.marks] == [20]
    assert vo.marks == ()


def test_a_run_without_a_loss_has_its_ranks_drawn(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.MultiheadAttention(4, 2)
    with rr.RankTracker(model, out=tmp_path / "run", every=1) as tracker:
        with torch.no_grad():
            model.in_proj_weight += 1
        tracker.step(1)
    figure = figure_of_run("training_curves", rr.open_run(tmp_path / "run"))
    assert len(figure.panels) == 2
    assert figure.title.startswith("Rank over training")
    assert "loss" not in figure.text.lower()


@pytest.mark.parametrize("seal", [True, False])
def test_a_run_that_diverged_or_was_cut_off_is_drawn(tmp_path, seal):
    folder = planted(tmp_path / "mine", diverges_at=7, seal=seal)
    figure = figure_of_run("stable_rank_over_training", rr.open_run(folder))
    assert 7.0 not in figure.panels[0].traces[0].x
    assert ("finished" if seal else "stopped") in figure.run_sentence


def test_layers_with_fewer_heads_are_averaged_over_their_own(tmp_path):
    folder = planted(tmp_path / "uneven", heads=(2, 3))
    ranks = figure_of_run("stable_rank_over_training", rr.open_run(folder)).panels[0].traces
    assert np.isfinite(ranks[0].y).all()
    assert ranks[0].y == tuple([1.0] * 40)


def test_mistakes_name_the_figures_and_the_options(folders):
    run = rr.open_run(folders[0])
    with pytest.raises(ValueError, match=r"must be one of training_curves, .*; got 'stable_rank'. Did you mean"):
        run.plot("stable_rank")
    with pytest.raises(ValueError, match=r"got 'num_value'. It has .*num_values. Did you mean 'num_values'"):
        run.plot("spectrum_over_training", num_value=3)


def test_every_figure_says_what_to_look_at():
    assert run_figure_ids() == tuple(RUN_FIGURES)
    assert all(figure.look_at.startswith("Look ") for figure in RUN_FIGURES.values())
