"""Figures of trained networks from tables with a known answer."""

import numpy as np
import pytest
import torch
from tests.lab.figures.runs import network_run

import rankrise as rr
from rankrise.lab.experiments import experiments, to_json
from rankrise.lab.figures import build_figure

RANKS = {0: [[0, 0], [0, 0]], 1: [[1, 3], [2, 2]], 20: [[3, 5], [1, 1]]}  # layer 0 rises, layer 1 falls
SPECTRA = {1: [[[2, 1], [4, 1]], [[1, 1], [1, 1]]], 20: [[[4, 1], [2, 1]], [[2, 0], [2, 1]]]}
INITIAL = [[[2, 2], [2, 2]], [[1, 0], [2, 2]]]
NAME = "vit-cifar10"


def one_run(out, **options):
    return {NAME: [network_run(out, NAME, ranks=RANKS, spectra=SPECTRA, initial=INITIAL, **options)]}


def test_stable_rank_over_training_is_the_mean_and_sd_over_heads(tmp_path):
    figure = build_figure("stable_rank_over_training", one_run(tmp_path), experiment=NAME)
    first, second = figure.panels[0].traces
    assert [first.label, second.label] == ["layer 0", "layer 1"]
    assert first.x == (0.5, 10)  # ten epochs of two steps; step 0 is no change yet
    assert first.y == (2, 4)
    assert (first.low, first.high) == ((1, 3), (3, 5))
    assert figure.panels[1].traces[0].y == (4, 8)  # value-output


def test_stable_rank_over_training_says_where_it_falls(tmp_path):
    caption = build_figure("stable_rank_over_training", one_run(tmp_path), experiment=NAME).caption
    assert "ends higher in 1 of 2 (key-query; not in 1) and 1 of 2 (value-output; not in 1) layers." in caption
    assert "Below its peak by a tenth or more it ends in layer 1 (key-query) and layer 1 (value-output)." in caption
    assert "± sd over heads" in caption
    assert "10 epochs of CIFAR-10 (1,000 samples) with Adam, one seed" in caption


def test_rising_is_counted_as_the_claim_does(tmp_path):
    """Higher than at the first measurement, but not than in the first 5% of steps."""
    ranks = {1: [[1.0]], 50: [[5.0]], 500: [[2.5]], 1000: [[2.8]]}
    runs = {NAME: [network_run(tmp_path, NAME, ranks=ranks)]}
    caption = build_figure("stable_rank_over_training", runs, experiment=NAME).caption
    assert "ends higher in 0 of 1 (key-query) and 0 of 1 (value-output) layers" in caption


def test_what_differs_from_the_plain_experiment_is_said(tmp_path):
    """In title and caption: experiments as the registry has them."""
    said = {
        "vit-cifar10": "",
        "vit-cifar10-augmented": ", flips and crops",
        "vit-cifar10-relu": ", ReLU",
        "vit-cifar10-sgd": ", SGD",
        "vit-cifar10-random-labels": ", random labels",
        "vit-cifar10-wide": ", width 1024",
        "vit-cifar10-scale-0.1": ", initial weights × 0.1",
    }
    ranks = {step: np.ones((6, 8)) for step in (10, 20)}
    captions = set()
    for name, words in said.items():
        folder = network_run(tmp_path, name, ranks=ranks, record=to_json(experiments()[name].paper))
        figure = build_figure("stable_rank_over_training", {name: [folder]}, experiment=name)
        assert figure.title == f"Stable rank of the learned change: ViT on CIFAR-10{words}"
        assert all(word in figure.caption for word in words.split(", "))
        captions.add(figure.caption)
    assert len(captions) == len(said)
    plain = to_json(experiments()["vit-cifar10"].paper)
    record = {**plain, "training": {**plain["training"], "precision": "fp32"}}
    folder = network_run(tmp_path, "mine", ranks=ranks, record=record)
    figure = build_figure("stable_rank_over_training", {"mine": [folder]}, experiment="mine")
    assert figure.title.endswith("ViT on CIFAR-10, float32")
    assert "with Adam in float32, one seed." in figure.caption


def test_several_seeds_give_the_band_over_seeds(tmp_path):
    higher = {step: (2 * np.asarray(v)).tolist() for step, v in RANKS.items()}
    runs = one_run(tmp_path)
    runs[NAME].append(network_run(tmp_path, NAME, ranks=higher, seed=1))
    figure = build_figure("stable_rank_over_training", runs, experiment=NAME)
    trace = figure.panels[0].traces[0]
    assert trace.y == (3, 6)  # means 2 and 4, then 4 and 8
    assert trace.low == pytest.approx((3 - 2**0.5, 6 - 8**0.5))  # of a sample: n - 1
    assert trace.high == pytest.approx((3 + 2**0.5, 6 + 8**0.5))
    assert "± sd over seeds of the mean over heads" in figure.caption


def test_runs_of_two_scales_do_not_mix(tmp_path):
    runs = one_run(tmp_path)
    runs[NAME].append(network_run(tmp_path, NAME, ranks=RANKS, seed=1, epochs=20))
    with pytest.raises(ValueError, match=r"must differ in their seed only; got vit-cifar10/0.*vit-cifar10/0.*1"):
        build_figure("stable_rank_over_training", runs, experiment=NAME)


@pytest.mark.parametrize(
    "figure_id",
    ["stable_rank_over_training", "spectrum_over_training", "perturbation_vs_init", "stable_rank_by_head"],
)
def test_missing_runs_are_named(figure_id):
    with pytest.raises(ValueError, match=rf"`{figure_id}` needs finished runs of vit-cifar10\. Run them: rankrise run"):
        build_figure(figure_id, {}, experiment=NAME)


@pytest.mark.parametrize("figure_id", ["stable_rank_by_scale", "components_by_scale"])
def test_missing_scales_are_named(figure_id, tmp_path):
    with pytest.raises(ValueError, match=r"rankrise run vit-cifar10-scale-1 vit-cifar10-scale-0\.1"):
        build_figure(figure_id, {}, experiment=NAME)
    name = f"{NAME}-scale-1"
    with pytest.raises(ValueError, match=r"needs two scales or more; got vit-cifar10-scale-1 alone"):
        build_figure(figure_id, {name: [network_run(tmp_path, name, ranks=RANKS)]}, experiment=NAME)


@pytest.mark.parametrize("figure_id", ["stable_rank_by_scale", "components_by_scale"])
def test_scales_of_two_recipes_are_refused(figure_id, tmp_path):
    runs = scale_runs(tmp_path)
    name = f"{NAME}-scale-0.3"
    runs[name] = [network_run(tmp_path / "other", name, ranks=RANKS, init_scale=0.3, epochs=11)]
    with pytest.raises(ValueError, match="must differ in their initial scale and seed only"):
        build_figure(figure_id, runs, experiment=NAME)


def test_heads_are_cells(tmp_path):
    cells = build_figure("stable_rank_by_head", one_run(tmp_path), experiment=NAME).panels[0].cells
    assert cells.rows == ("layer 0", "layer 1")
    assert cells.cols == ("0", "1")
    assert cells.values == ((3, 5), (1, 1))
    assert (
        "from 1.0 to 10.0" in build_figure("stable_rank_by_head", one_run(tmp_path / "again"), experiment=NAME).caption
    )


def test_spectrum_is_normalised_head_by_head(tmp_path):
    figure = build_figure("spectrum_over_training", one_run(tmp_path), experiment=NAME)
    init, early, late = figure.panels[0].traces
    assert (init.label, init.y) == ("at init", (1, 1))
    assert early.y == (1, (1 / 2 + 1 / 4) / 2)  # not the ratio of means, 2 / 6
    assert late.y == (1, (1 / 4 + 1 / 2) / 2)
    assert (early.level, late.level) == (0, 1)
    assert figure.order.ticks[-1] == (1, "10")


def test_spectrum_says_how_many_directions_there_are(tmp_path):
    spectra = {1: [[[4, 0.1, 0.1]]], 20: [[[4, 2, 0.1]]]}
    folder = network_run(tmp_path, NAME, ranks={1: [[1]], 20: [[1]]}, spectra=spectra, initial=[[[1, 1, 1]]])
    caption = build_figure("spectrum_over_training", {NAME: [folder]}, experiment=NAME).caption
    assert "1.0 at the first measurement, 2.0 at the last, and at least 3.0 at init" in caption
    drawn = build_figure("spectrum_over_training", {NAME: [folder]}, experiment=NAME, num_values=1)
    assert len(drawn.panels[0].traces[0].y) == 1
    assert drawn.caption == caption  # counted over what was kept, not over what is drawn


@pytest.mark.parametrize("figure_id", ["spectrum_over_training", "perturbation_vs_init", "components_by_scale"])
def test_a_run_without_spectra_is_said_to_have_none(figure_id, tmp_path):
    names = (NAME, f"{NAME}-scale-1", f"{NAME}-scale-0.1")
    runs = {n: [network_run(tmp_path, n, ranks=RANKS, init_scale=0.1 if n.endswith("0.1") else 1.0)] for n in names}
    with pytest.raises(ValueError, match=r"vit-cifar10.*/0{12} has no `spectrum` of kq: run it again with that measur"):
        build_figure(figure_id, runs, experiment=NAME)


def test_a_network_without_a_family_of_scales_is_refused_with_those_that_have_one():
    message = r"experiments at several initial scales; got 'vit-cifar100'\. Pass one of vit-cifar10, vit-digits\."
    with pytest.raises(ValueError, match=message):
        build_figure("components_by_scale", {}, experiment="vit-cifar100")


def test_of_a_deep_network_three_layers_have_labels_and_bands(tmp_path):
    ranks = {step: [[1.0 + layer, 2.0 + layer] for layer in range(12)] for step in (10, 20)}
    runs = {NAME: [network_run(tmp_path, NAME, ranks=ranks)]}
    figure = build_figure("stable_rank_over_training", runs, experiment=NAME)
    traces = figure.panels[0].traces
    assert [trace.y[-1] for trace in traces] == [1.5 + layer for layer in range(12)]
    assert [trace.label for trace in traces if trace.at_end] == ["layer 0", "layer 5", "layer 11"]
    assert [trace.group for trace in traces if trace.low] == ["layer 0", "layer 5", "layer 11"]
    assert figure.order.ticks == ((0, "0"), (5 / 11, "5"), (1, "11"))
    assert "± sd over heads, drawn for layers 0, 5, 11." in figure.caption


def test_change_is_drawn_against_init_as_it_is(tmp_path):
    figure = build_figure("perturbation_vs_init", one_run(tmp_path), experiment=NAME)
    init, change = figure.panels[0].traces
    assert (init.label, init.y) == ("product at init", (2, 2))
    assert (change.label, change.y) == ("change by training", (3, 1))
    assert (change.low[0], change.high[0]) == (2, 4)
    assert "in 1.0 directions of the change and in 1.0 of the initial product" in figure.caption


def scale_runs(tmp_path):
    return {
        f"{NAME}-scale-{factor:g}": [
            network_run(
                tmp_path,
                f"{NAME}-scale-{factor:g}",
                ranks={10: [[9.0 / rank] * 2] * 3, 20: [[rank] * 2] * 3},
                spectra={20: (factor * np.ones((3, 2, 4))).tolist()},
                initial=(np.ones((3, 2, 4))).tolist(),
                init_scale=factor,
            )
        ]
        for factor, rank in ((0.1, 1.5), (1.0, 3.0), (0.3, 1.0), (0.03, 2.0))
    }


def test_stable_rank_by_scale_goes_by_the_spec_and_not_the_order(tmp_path):
    figure = build_figure("stable_rank_by_scale", scale_runs(tmp_path), experiment=NAME)
    first, third, init = figure.panels[0].traces
    assert [first.label, third.label, init.label] == ["layer 0", "layer 2", "initial product"]
    assert first.x == (0.03, 0.1, 0.3, 1)
    assert first.y == (2, 1.5, 1, 3)
    assert init.y == (4, 4)  # four equal values
    assert "largest in 3 of 3 (key-query; by the least factor, 1.50, in layer 0) and 3 of 3" in figure.caption
    assert "Not lower at each smaller scale: key-query layers 0-2 and value-output layers 0-2." in figure.caption


def test_stable_rank_by_scale_names_the_layers_that_are_not_lower(tmp_path):
    """Also those that are not drawn: layer 1."""
    runs = {}
    for factor, ranks in ((1.0, [3.0, 3.0, 3.0]), (0.1, [2.0, 4.0, 2.0])):
        name = f"{NAME}-scale-{factor:g}"
        runs[name] = [network_run(tmp_path, name, ranks={20: [[r, r] for r in ranks]}, init_scale=factor)]
    figure = build_figure("stable_rank_by_scale", runs, experiment=NAME)
    assert "largest in 2 of 3 (key-query; not in 1; by the least factor, 0.75, in layer 1)" in figure.caption


def test_bars_of_unequal_seeds_are_not_mixed(tmp_path):
    runs = {}
    for factor, levels in ((1.0, (3.0, 4.0, 5.0)), (0.1, (2.0,))):
        name = f"{NAME}-scale-{factor:g}"
        folders = [
            network_run(tmp_path, name, ranks={20: [[r, r + 2]]}, init_scale=factor, seed=seed)
            for seed, r in enumerate(levels)
        ]
        runs[name] = folders
    figure = build_figure("stable_rank_by_scale", runs, experiment=NAME)
    trace = figure.panels[0].traces[0]
    assert (trace.x, trace.y) == ((0.1, 1), (3, 5))
    assert (trace.low[1], trace.high[1]) == pytest.approx((4, 6))  # over seeds, not over heads
    assert np.isnan([trace.low[0], trace.high[0]]).all()
    assert "± sd over seeds of the mean over heads; no bar at 0.1, of one seed" in figure.caption
    assert "with Adam, 3 seeds at 1, one seed at 0.1." in figure.caption
    runs[f"{NAME}-scale-1"] = runs[f"{NAME}-scale-1"][:1]
    alone = build_figure("stable_rank_by_scale", runs, experiment=NAME)
    assert (alone.panels[0].traces[0].low, alone.panels[0].traces[0].high) == ((2, 3), (4, 5))
    assert "± sd over heads." in alone.caption


def test_components_are_of_one_head_at_three_scales(tmp_path):
    runs = scale_runs(tmp_path)
    figure = build_figure("components_by_scale", runs, experiment=NAME)
    assert [panel.title for panel in figure.panels[:3]] == [f"scale {s}, key-query" for s in ("1", "0.1", "0.03")]
    trace = figure.panels[1].traces[0]
    assert (trace.x, trace.y) == ((0, 10), (0, 0.1))
    assert "is 1.00 at scale 1, 1.00 at scale 0.1, 1.00 at scale 0.03." in figure.caption
    with pytest.raises(ValueError, match=r"`layer` and `head` must be below 3 and 2, from 0; got 3, 0"):
        build_figure("components_by_scale", runs, experiment=NAME, layer=3)


def test_initial_spectra_come_from_the_weights_where_the_table_has_none(tmp_path):
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(6, 2)
    folder = tmp_path / NAME / "0"
    with rr.RankTracker(layer, out=folder, every=1, spectra=1) as tracker:
        start = layer.in_proj_weight.detach().clone()
        with torch.no_grad():
            layer.in_proj_weight[:] += 0.1 * torch.randn(18, 6)
        tracker.step(1)
    figure = build_figure("perturbation_vs_init", {NAME: [folder]}, experiment=NAME)
    query, key = (start[i * 6 : i * 6 + 6].reshape(2, 3, 6) for i in (0, 1))
    expected = torch.linalg.svdvals((key.mT @ query).double())[:, :3].mean(0)
    assert figure.panels[0].traces[0].y == pytest.approx(expected.tolist(), rel=1e-5)
