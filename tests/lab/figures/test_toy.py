"""Figures of the toy from tables with a known answer."""

import numpy as np
import pytest
from tests.lab.claims import planted
from tests.lab.figures.runs import TASK, flow_run, matrix_run, robustness_run, toy_runs

from rankrise.lab.figures import build_figure
from rankrise.lab.figures._toy_paths import thin


@pytest.fixture
def runs(tmp_path):
    return toy_runs(tmp_path)


def by_label(panel):
    return {trace.label or trace.group: trace for trace in panel.traces}


def test_scales_draws_every_flow_and_the_limit_over_it(runs):
    figure = build_figure("toy_scales", runs)
    loss = by_label(figure.panels[0])
    assert list(loss) == ["α = 10⁻²", "α = 10⁻⁸", "Algorithm 1, α → 0"]
    assert loss["α = 10⁻²"].y[0] == 3
    limit = loss["Algorithm 1, α → 0"]
    assert (limit.x, limit.y, limit.style) == ((0, 1, 2, 3), (3, 2, 0, 0), "steps")
    assert [mark.x for mark in figure.panels[0].marks] == [1, 2]


def test_scales_orders_flows_by_alpha_from_light_to_dark(runs):
    levels = {t.label: t.level for t in build_figure("toy_scales", runs).panels[0].traces}
    assert levels == {"α = 10⁻²": 0.0, "α = 10⁻⁸": 1.0, "Algorithm 1, α → 0": None}


def test_scales_shows_the_coordinates_in_the_order_of_algorithm_1(runs):
    figure = build_figure("toy_scales", runs)
    assert [panel.title for panel in figure.panels] == ["loss", "1.  a_1", "2.  b_2"]
    assert by_label(figure.panels[1])["α = 10⁻⁸"].y[-1] == 1
    assert by_label(figure.panels[2])["Algorithm 1, α → 0"].y == (0, 0, -2, -2)
    assert [mark.x for mark in figure.panels[2].marks] == [2]


def test_scales_curves_come_closer_to_the_limit(runs):
    """What the figure is for: the area between flow and staircase falls with α; here it is lag × half of each drop."""
    traces = by_label(build_figure("toy_scales", runs).panels[0])
    area = {}
    for name in ("α = 10⁻²", "α = 10⁻⁸"):
        x = np.linspace(0, 3, 30001)
        flow = np.interp(x, traces[name].x, traces[name].y)
        limit = np.array([3, 2, 0])[np.searchsorted([1, 2], x, side="right")]
        area[name] = np.abs(flow - limit).mean() * 3
    assert area["α = 10⁻²"] == pytest.approx(0.1 * (1 + 2) / 2, rel=0.01)
    assert area["α = 10⁻⁸"] == pytest.approx(0.01 * (1 + 2) / 2, rel=0.05)
    assert "is 0.05 at the largest α and 0.005 at the smallest" in build_figure("toy_scales", runs).caption


def test_flows_of_two_tasks_are_refused(runs, tmp_path):
    other = flow_run(tmp_path, -4.0, times=[0, 1], losses=[1, 0], products=[[0] * 4] * 2, task={"dim": 3})
    with pytest.raises(ValueError, match=r"must be of one task; got toy-flow"):
        build_figure("toy_scales", runs | {"toy-flow-1e-4": [other]})


def test_scales_needs_algorithm_1_of_the_same_task(runs):
    with pytest.raises(ValueError, match=r"Run it: rankrise run toy-stages"):
        build_figure("toy_scales", {name: found for name, found in runs.items() if name != "toy-stages"})


def test_stages_shows_both_heads(runs):
    figure = build_figure("toy_stages", runs)
    assert (figure.rows, figure.cols) == (2, 3)
    diagonal, full = figure.panels[1], figure.panels[5]
    assert [trace.y[-1] for trace in diagonal.traces] == [1, 0]
    assert [trace.label for trace in diagonal.traces] == ["a_1", ""]  # what stays zero needs no name
    assert [trace.y[-1] for trace in full.traces] == [2, 0]
    assert "α = 10⁻⁸" in figure.caption


def test_stages_of_another_task_or_seed_are_refused(runs, tmp_path):
    for n, options in enumerate(({"task": {"dim": 3}}, {"seed": 1})):
        other = matrix_run(tmp_path / str(n), times=[0, 1], losses=[1, 0], spectra=[[0] * 4] * 2, **options)
        with pytest.raises(ValueError, match=r"needs a finished run of toy-matrix-flow on the task of the flows"):
            build_figure("toy_stages", runs | {"toy-matrix-flow": [other]})


def test_the_plateau_before_the_first_stage_is_cut(runs):
    assert {panel.x.low for panel in build_figure("toy_scales", runs).panels} == {0.8}


def test_stages_of_another_alpha(runs):
    assert build_figure("toy_stages", runs, log10_alpha=-2.0).sources[0].startswith("toy-flow-1e-2/")
    with pytest.raises(ValueError, match=r"`log10_alpha` must be of a flow that was run; got -3\. There are: -2, -8"):
        build_figure("toy_stages", runs, log10_alpha=-3.0)


def full_runs(out):
    found = {"toy-full-stages": [planted.matrix_stages(out, predicted=(0.25, 0.55))]}
    return found | {"toy-full-flow-1e-8": [planted.full_flow(out)]}


def test_full_matrices_are_drawn_beside_their_prediction(tmp_path):
    figure = build_figure("matrix_stages", full_runs(tmp_path))
    assert (figure.rows, figure.cols) == (1, 3)
    assert [panel.title.split(": ")[0] for panel in figure.panels] == ["α = 10⁻⁸"] * 3
    flow, stairs = figure.panels[1].traces
    assert (flow.y[0], flow.y[-1]) == (1e-6, 1)
    assert (stairs.x, stairs.y, stairs.style) == ((0, 0.25, 0.55, 1), (0, 1, 1, 1), "steps")
    assert [mark.x for mark in figure.panels[0].marks] == [0.3, 0.6]
    assert "which the predicted times are 0.05 away on average" in figure.caption


def test_optimisers_of_full_matrices_are_rows_below(tmp_path):
    runs = full_runs(tmp_path)
    runs |= {name: [planted.full_flow(tmp_path, name)] for name in ("toy-full-sgd", "toy-full-adam")}
    figure = build_figure("matrix_stages", runs)
    assert figure.rows == 3
    assert [figure.panels[3 * row].title.split(",")[0] for row in (1, 2)] == ["SGD", "Adam"]
    assert figure.panels[6].marks == ()
    assert "plain optimisers from the same start" in figure.caption
    other = planted.full_flow(tmp_path / "other", "toy-full-sgd", seed=1)
    assert build_figure("matrix_stages", runs | {"toy-full-sgd": [other]}).rows == 2


def test_full_matrices_need_their_limit(tmp_path):
    runs = {"toy-full-flow-1e-8": [planted.full_flow(tmp_path)]}
    with pytest.raises(ValueError, match=r"needs a finished run of toy-full-stages"):
        build_figure("matrix_stages", runs)


def test_phases_of_adam_are_a_table_of_means_over_seeds(tmp_path):
    starts = [[(1, 1, 2, 2), (1, 4, 7, 9)], [(1, 1, 2, -1), (1, 2, 3, 9)]]
    runs = [planted.adam_phases(tmp_path, starts=starts[seed], seed=seed) for seed in (0, 1)]
    figure = build_figure("adam_phases", {"toy-adam-phases": runs})
    (panel,) = figure.panels
    assert (panel.cells.rows, panel.cells.cols) == (("1e-08", "1"), ("α = 10⁻⁸",))
    assert panel.cells.values == ((100.0,), (62.5,))


def test_robustness_draws_the_distance_of_every_perturbation_that_moved_something(runs):
    figure = build_figure("toy_robustness", runs)
    distance = figure.panels[3]
    assert [trace.group for trace in distance.traces] == ["t = 1", "t = 2"]
    assert distance.traces[0].x == pytest.approx((0, 0.1, 0.2, 0.3))
    assert distance.traces[0].y == pytest.approx((0.5, 0.05, 0.005, 0.0005))
    assert [(trace.label, trace.at_end) for trace in distance.traces] == [("1", True), ("2", True)]
    assert distance.y.log
    assert "Of 4.3, n = 2: at the end 0.001 of the worst push is left, of the others at most 0.001." in figure.caption
    assert "Left out: 1 of 4.3 and 1 of 4.4, whose push was less than a tenth of the noise" in figure.caption


def a_push(time, *ends):
    """Twelve products; `ends` are distances of the i-th at the end, after a push of 0.5 of the first."""
    plain = np.tile(np.arange(1.0, 13.0), (3, 1))
    pushed = plain.copy()
    pushed[0, 0] += 0.5
    for i, end in ends:
        pushed[2, i] += end
    return [time, time + 0.1, time + 0.2], plain, pushed


@pytest.mark.parametrize("worst", range(5))
def test_robustness_draws_the_perturbation_that_returns_least(runs, tmp_path, worst):
    pushes = [a_push(n, (0, 0.4 if n == worst else 0.01 * n)) for n in range(5)]
    found = runs | {"toy-robustness-4.3": [robustness_run(tmp_path / "more", "4.3", pushes=pushes)]}
    figure = build_figure("toy_robustness", found)
    titles = [panel.title for panel in figure.panels[:3]]
    assert f"4.3: t = {worst}.00, the worst" in titles
    assert {"0.00", "4.00"} <= {title.split("t = ")[1][:4] for title in titles}  # and the first and the last
    assert titles == sorted(titles, key=lambda title: title.split("t = ")[1])
    assert "Of 4.3, n = 5: at the end 0.8 of the worst push is left" in figure.caption


def test_robustness_draws_the_products_that_differ_most(runs, tmp_path):
    """Eight of twelve, also where they were not pushed but went apart later."""
    apart = [(i, 0.2 * (i + 1)) for i in range(1, 12)]
    found = runs | {"toy-robustness-4.3": [robustness_run(tmp_path / "more", "4.3", pushes=[a_push(1, *apart)])]}
    panel = build_figure("toy_robustness", found).panels[0]
    drawn = {trace.y[0] for trace in panel.traces if trace.group == "without noise"}
    assert drawn == {5, 6, 7, 8, 9, 10, 11, 12}
    assert panel.x.high == pytest.approx(0.2)  # until the end


def test_robustness_leaves_out_what_noise_did_not_push(runs, tmp_path):
    times, plain, pushed = a_push(1, (0, 0.3))
    pushed[0, 0] = plain[0, 0] + 0.004  # of a noise of 0.05
    pushes = [(times, plain, pushed), a_push(2)]
    found = runs | {"toy-robustness-4.3": [robustness_run(tmp_path / "more", "4.3", pushes=pushes)]}
    figure = build_figure("toy_robustness", found)
    assert [trace.group for trace in figure.panels[3].traces] == ["t = 2"]
    assert "Of 4.3, n = 1: at the end 0 of the worst push is left." in figure.caption
    assert "(differences at the end: at most 0.3)" in figure.caption
    assert figure.panels[3].traces[0].y[1] == figure.panels[3].y.low  # nothing is no point on a logarithmic axis


def test_robustness_draws_the_seed_of_the_worst_push_and_counts_all(runs, tmp_path):
    ends = ((0.1, 0.2), (0.1, 1.5), (0.0, 0.1))  # of two pushes of 0.5, by seed
    found = runs | {
        "toy-robustness-4.3": [
            robustness_run(tmp_path / f"{n}", "4.3", pushes=[a_push(1, (0, a)), a_push(2, (0, b))], seed=n)
            for n, (a, b) in enumerate(ends)
        ]
    }
    figure = build_figure("toy_robustness", found)
    assert figure.panels[1].title == "4.3: t = 2.00, the worst"
    assert figure.panels[3].traces[1].y[-1] == pytest.approx(1.5)
    assert "Of 4.3, n = 6: at the end the worst is 3 times as far off as it was pushed, of the others at most 0.4." in (
        figure.caption
    )
    assert "Drawn: seed 1 (4.3) and seed 0 (4.4), of the worst push." in figure.caption
    assert figure.caption.endswith("3 seeds.")


def test_robustness_of_two_tasks_is_refused(runs, tmp_path):
    other = robustness_run(tmp_path / "more", "4.4", pushes=[a_push(1)], task=TASK | {"dim": 6})
    with pytest.raises(ValueError, match=r"must be of one task; got toy-robustness-4\.3/0, toy-robustness-4\.4/0\."):
        build_figure("toy_robustness", runs | {"toy-robustness-4.4": [other]})


def test_robustness_draws_products_with_and_without_noise(runs):
    panel = build_figure("toy_robustness", runs).panels[0]
    first = {name: next(t for t in panel.traces if t.group == name) for name in ("without noise", "with noise")}
    assert first["without noise"].y[0] == 1
    assert first["with noise"].y[0] == 1.5
    assert first["with noise"].style == "dashed"


def test_thin_keeps_the_curve():
    x = np.linspace(0, 10, 2001)
    y = np.tanh(20 * (x - 3)) + np.tanh(5 * (x - 7))
    kept = thin(x, y, tolerance=1e-3)
    assert len(kept) < 100
    assert np.abs(np.interp(x, x[kept], y[kept]) - y).max() <= 1e-3 * np.ptp(y)
