"""The figure of stages over a flow: what is in it, and what the methods that draw it refuse."""

import pytest

from rankrise import theory, view


@pytest.fixture(scope="module")
def results() -> tuple[theory.Stages, theory.Flow]:
    task = theory.teacher_task(samples=50, tokens=4, dim=2, seed=0)
    net = theory.attention_head(task.x, task.y)
    return theory.incremental_stages(net), theory.solve_flow(net, *theory.gaussian_start(4), alpha=1e-16)


def test_stages_are_steps_under_the_lines_of_the_flow(results: tuple[theory.Stages, theory.Flow]) -> None:
    stages, flow = results
    loss, products = view.stages_figure(stages, flow).panels
    assert [trace.label for trace in loss.traces] == ["Algorithm 1", "flow, α = 10^-16"]
    assert loss.traces[0].x[1 : len(stages.times) + 1] == tuple(stages.times.tolist())
    assert {trace.style for trace in products.traces} == {"dashed", "line"}
    by_style = {(trace.group, trace.style): trace for trace in products.traces}
    for (group, _), trace in by_style.items():  # the limit ends where the flow does
        assert by_style[group, "dashed"].y[-1] == pytest.approx(trace.y[-1], abs=1e-4)
    assert len(products.marks) == len(stages.times)


def test_each_may_be_drawn_alone(results: tuple[theory.Stages, theory.Flow]) -> None:
    stages, flow = results
    assert len(stages.plot().axes) == len(flow.plot().axes) == len(stages.plot(flow).axes) == 2
    with pytest.raises(ValueError, match="`stages` or `flow` must be given"):
        view.stages_figure()
    other = theory.solve_flow(theory.linear([[1.0]], [2.0]), [1.0], [0.5], alpha=1e-8)
    with pytest.raises(ValueError, match="must be of one network; got 4 and 1 weights"):
        stages.plot(other)


def test_results_print_as_tables(results: tuple[theory.Stages, theory.Flow]) -> None:
    stages, flow = results
    lines = str(stages).splitlines()
    assert lines[0].split() == ["stage", "time", "joins", "sign", "leaves", "loss", "lead", "c", "holds"]
    assert len(lines) == len(stages.times) + 1
    assert f"{float(stages.times[0]):.6g}" in lines[1]
    assert str(flow).splitlines()[-1].startswith("α = 10^-16: finished at ")
