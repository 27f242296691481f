"""Theory runs: the table is what a direct call of `rankrise.theory` gives; done is skipped, cut off starts over."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.lab.experiments.kinds.test_theory_specs import SPECS, TASK, TOYS

from rankrise import theory
from rankrise.lab.claims import evaluate_claims
from rankrise.lab.experiments import NamedSpec, ToyTask, plan_run, read_spec, run_experiment
from rankrise.lab.experiments.kinds._robustness_kind import perturbation_times
from rankrise.lab.experiments.kinds._toy_parts import matrix_start, toy_data, toy_network, toy_start
from rankrise.store import create_run, has_run, is_sealed, load_initial, load_run, rows

SPECS = {
    **SPECS,
    "flow": replace(SPECS["flow"], log10_alpha=-8.0, t_end=9.0, num_points=21),
    "stages": replace(SPECS["stages"], t_end=9.0, seed=3),
    "robustness": replace(SPECS["robustness"], t_end=9.0, duration=0.5, seed=3, num_points=11),
}


def columns(table, quantity, circuit="", head=None):
    """Values of one quantity as (steps, indices)."""
    keep = [
        row
        for row in table.to_pylist()
        if row["quantity"] == quantity and row["circuit"] == circuit and head in (None, row["head"])
    ]
    width = len({row["index"] for row in keep})
    return torch.tensor([row["value"] for row in keep], dtype=torch.float64).reshape(-1, width).squeeze(-1)


def products(table, quantity="product", head=None):
    return torch.cat([columns(table, quantity, circuit, head) for circuit in ("kq", "vo")], dim=1)


WITHOUT_CIRCUITS = (SPECS["adam_phases"], SPECS["ensemble"])


@pytest.fixture(scope="module", params=SPECS)
def done(request, tmp_path_factory):
    spec = SPECS[request.param]
    report = run_experiment(NamedSpec("mine", spec), out=tmp_path_factory.mktemp("runs"))
    return spec, report, load_run(report.folder)


def test_a_run_is_sealed_and_knows_its_spec(done):
    spec, report, table = done
    assert report.status == "finished"
    assert is_sealed(report.folder)
    assert read_spec(report.folder) == NamedSpec("mine", spec)
    assert plan_run(NamedSpec("mine", spec), out=report.folder.parents[1]).state == "done"
    assert run_experiment(NamedSpec("mine", spec), out=report.folder.parents[1]).status == "skipped"
    measured = [row for row in table.to_pylist() if row["circuit"]]
    assert {row["layer"] for row in measured} <= {0}
    assert {row["circuit"] for row in measured} == (set() if spec in WITHOUT_CIRCUITS else {"kq", "vo"})
    assert len(load_initial(report.folder)) in ((0,) if spec is SPECS["ensemble"] else (2, 4))


def test_flow():
    spec = SPECS["flow"]
    net, (u0, v0) = toy_network(spec.task, spec.seed), toy_start(spec.task, spec.seed)
    flow = theory.solve_flow(net, u0, v0, log10_alpha=spec.log10_alpha, t_end=spec.t_end)
    table = table_of(spec)
    times = columns(table, "time")
    assert set(flow.times.tolist()) <= set(times.tolist())
    assert len(times) == len(set(flow.times.tolist()) | set(np.linspace(0, spec.t_end, 21).tolist()))
    assert torch.allclose(products(table), flow.at(times))
    assert torch.allclose(columns(table, "loss"), torch.tensor([net.loss(q) for q in flow.at(times)]).double())
    reached = theory.activation_times(flow, spec.threshold)
    found = {
        (row["circuit"], row["index"]): row["value"]
        for row in table.to_pylist()
        if row["quantity"] == "activation_time"
    }
    wanted = {(("kq", "vo")[i // 3], i % 3): t for i, t in enumerate(reached.tolist()) if math.isfinite(t)}
    assert found == pytest.approx(wanted)
    assert len(wanted) >= 2


def test_stages():
    spec = SPECS["stages"]
    stages = theory.incremental_stages(toy_network(spec.task, spec.seed), t_end=spec.t_end)
    table = table_of(spec)
    assert len(stages.coordinates) >= 2
    assert torch.equal(columns(table, "time")[1:], stages.times)
    assert torch.equal(columns(table, "loss"), stages.losses)
    assert columns(table, "joined").tolist() == list(stages.coordinates)
    assert columns(table, "gap").tolist() == [c.winner_gap for c in stages.certificates]
    assert columns(table, "curvature").tolist() == [c.minimum_constant for c in stages.certificates]
    assert torch.equal(products(table), stages.products)
    assert {row["step"] for row in table.to_pylist() if row["quantity"] == "joined"} == set(
        range(1, len(stages.times) + 1)
    )


def test_matrix_flow():
    spec = SPECS["matrix_flow"]
    report = run(spec)
    x, y = toy_data(spec.task, spec.seed)
    weights = list(load_initial(report.folder).values())
    assert [tuple(weight.shape) for weight in weights] == [(3, 2)] * 4
    times = torch.linspace(0, spec.t_end, spec.num_points, dtype=torch.float64)
    start = [load_initial(report.folder)[name] for name in ("key", "query", "value", "output")]
    flow = theory.solve_matrix_flow(
        theory.matrix_head(x, y), start, log10_alpha=-3, t_end=spec.t_end, times=times, rtol=1e-8, method="plain"
    )
    table = load_run(report.folder)
    assert torch.equal(columns(table, "spectrum", "kq"), flow.singular_values[0])
    assert torch.equal(columns(table, "spectrum", "vo"), flow.singular_values[1])
    assert torch.equal(columns(table, "loss"), flow.losses)


def test_matrix_stages(tmp_path):
    spec = SPECS["matrix_stages"]
    table = load_run(run_experiment(NamedSpec("mine", spec), out=tmp_path).folder)
    net = theory.matrix_head(*toy_data(spec.task, spec.seed))
    stages = theory.matrix_stages(net, t_end=spec.t_end, rtol=1e-4)
    assert len(stages.times) >= 2
    assert columns(table, "time").tolist() == [0.0, *stages.times.tolist()]
    assert columns(table, "product").tolist() == list(stages.matrices)
    assert columns(table, "curvature").tolist() == [c.curvature for c in stages.certificates]
    for j, circuit in enumerate(("kq", "vo")):
        expected = torch.stack([stages.singular_values(k)[j] for k in range(len(stages.times) + 1)])
        assert torch.equal(columns(table, "spectrum", circuit), expected)
    start = matrix_start(spec.task, spec.seed)
    for n, log10_alpha in enumerate(spec.log10_alphas):
        predicted = stages.predict(start, log10_alpha=log10_alpha)
        assert torch.equal(columns(table, "predicted_time", head=n)[0], predicted.times)
        assert columns(table, "flagged", head=n)[0].bool().tolist() == list(predicted.flagged)


def test_matrix_descent(tmp_path):
    spec = SPECS["matrix_descent"]
    table = load_run(run_experiment(NamedSpec("mine", spec), out=tmp_path).folder)
    net = theory.matrix_head(*toy_data(spec.task, spec.seed))
    run = theory.matrix_descend(
        net, matrix_start(spec.task, spec.seed), log10_alpha=-2, learning_rate=0.1, num_steps=9, optimiser="adam"
    )
    assert torch.equal(columns(table, "spectrum", "kq"), run.singular_values[0])
    assert torch.equal(columns(table, "loss"), run.losses)
    assert columns(table, "optimiser_step").tolist() == list(range(10))


def test_adam_phases(tmp_path):
    spec = SPECS["adam_phases"]
    table = load_run(run_experiment(NamedSpec("mine", spec), out=tmp_path).folder)
    net, start = toy_network(spec.task, spec.seed), toy_start(spec.task, spec.seed)
    assert spec.cases == ((0.9, 1e-8), (0.9, 1.0))
    every = 3 + math.ceil(0.1 / float(net.gradient(torch.zeros(6)).abs().max()) * 2 * math.log(10) / 0.02 / 3)
    run = theory.descend(
        net,
        *start,
        log10_alpha=-2,
        learning_rate=0.02,
        num_steps=3 * every,
        optimiser="adam",
        every=every,
        betas=(0.9, 0.9),
        eps=1.0,
    )
    assert torch.allclose(columns(table, "loss_of_case", head=1)[:, 1], run.losses)
    above = run.products.abs() > 1e-3
    expected = torch.where(above.any(0), above.int().argmax(0).double(), -1.0)
    assert torch.equal(columns(table, "active_from", head=1)[0, 6:], expected)


def test_ensemble(tmp_path):
    spec = SPECS["ensemble"]
    table = load_run(run_experiment(NamedSpec("mine", spec), out=tmp_path).folder)
    nets = [toy_network(spec.task, seed) for seed in (6, 7, 8)]  # seed 2 of runs of three heads
    found = theory.stage_ensemble(nets, log10_alpha=spec.log10_alpha, num_predicted=1, seed=6)
    rows = {(row["quantity"], row["step"], row["index"]): row["value"] for row in table.to_pylist()}
    for name, values in found.numbers.items():
        for n, value in enumerate(values.tolist()):
            assert rows.get((name, 0, n), value) == pytest.approx(value, nan_ok=True)
    assert len([key for key in rows if key[0] == "prediction_error"]) == 1
    assert [rows["stage_time", 0, n] for n in range(3)] == found.times[:, 0].tolist()
    assert {rows["status_of_head", 0, n] for n in range(3)} == {0.0}


def test_targets_of_a_full_teacher_are_learned_by_a_full_head_only():
    task = ToyTask(dim=2, tokens=4, samples=30, targets="full_teacher")
    x, y = toy_data(task, 1)
    full = theory.matrix_stages(theory.matrix_head(x, y), rtol=1e-4)
    diagonal = theory.incremental_stages(theory.attention_head(x, y))
    assert full.losses[-1] < 1e-3 * full.losses[0] < diagonal.losses[-1]


@pytest.mark.parametrize("assumption", ["4.3", "4.4"])
def test_robustness(assumption):
    spec = replace(SPECS["robustness"], assumption=assumption)
    net, (u0, v0) = toy_network(spec.task, spec.seed), toy_start(spec.task, spec.seed)
    flow = theory.solve_flow(net, u0, v0, log10_alpha=spec.log10_alpha, t_end=spec.t_end)
    table = table_of(spec)
    at = columns(table, "perturbed_at").tolist()
    assert at == perturbation_times(spec, flow) == sorted(at)
    if assumption == "4.4":
        assert set(at) <= set(theory.activation_times(flow, spec.threshold).tolist())
    for n, moment in enumerate(at):
        pushed = theory.perturb_flow(
            net, flow, time=moment, t_end=moment + spec.duration, noise=spec.noise, seed=spec.seed + n, num_points=11
        )
        assert torch.equal(products(table, head=n), pushed.products)
        assert torch.equal(products(table, "product_perturbed", head=n), pushed.perturbed)
        assert torch.allclose(columns(table, "time")[11 * n : 11 * (n + 1)], pushed.times)
    with pytest.raises(ValueError, match="A coordinate must become active before"):
        perturbation_times(replace(spec, threshold=1e3), flow)


@pytest.mark.parametrize("optimiser", ["gd", "sgd", "adam"])
def test_descent(optimiser):
    spec = replace(SPECS["descent"], optimiser=optimiser, batch_size=5 if optimiser == "sgd" else None)
    u0, v0 = toy_start(spec.task, spec.seed)
    run = theory.descend(
        toy_network(spec.task, spec.seed),
        u0,
        v0,
        log10_alpha=-2,
        learning_rate=0.1,
        num_steps=9,
        optimiser=optimiser,
        every=3,
        batch_size=spec.batch_size,
        seed=spec.seed,
    )
    table = table_of(spec)
    assert columns(table, "optimiser_step").tolist() == [0, 3, 6, 9]
    assert columns(table, "time")[-1] == pytest.approx(0.9 / (2 * math.log(10)))
    assert torch.equal(products(table), run.products)
    assert torch.equal(columns(table, "loss"), run.losses)


def run(spec):
    import tempfile

    return run_experiment(spec, out=tempfile.mkdtemp())


def table_of(spec):
    return load_run(run(spec).folder)


def test_descent_that_diverges_says_so():
    report = run(replace(SPECS["descent"], learning_rate=1e6))
    assert report.status == "diverged"
    assert "Lower `learning_rate`" in report.message
    assert is_sealed(report.folder)


def test_a_run_that_was_cut_off_starts_over(tmp_path):
    spec = SPECS["stages"]
    whole = run(spec)
    plan = plan_run(NamedSpec("own", spec), out=tmp_path)
    begun = create_run(plan.folder, spec=read_json(whole.folder / "spec.json"), initial=load_initial(whole.folder))
    begun.append(rows(0, "loss", [99.0]))  # of a process that died
    begun.close()
    assert plan_run(spec, out=tmp_path).state == "unfinished"
    again = run_experiment(spec, out=tmp_path)
    assert again.status == "finished"
    assert load_run(again.folder).equals(load_run(whole.folder))


def test_an_error_leaves_a_run_that_can_be_started_over(tmp_path):
    spec = replace(SPECS["robustness"], t_end=0.6)
    with pytest.raises(ValueError, match="A coordinate must become active"):
        run_experiment(spec, out=tmp_path)
    plan = plan_run(spec, out=tmp_path)
    assert has_run(plan.folder)
    assert plan.state == "unfinished"


def test_progress_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("rankrise.lab.experiments.kinds._theory_kind._SECONDS", 0.0)

    class Listener:
        reports = ()

        def update(self, report):
            self.reports += (report,)

        def close(self):
            pass

    listener = Listener()
    run_experiment(SPECS["flow"], out=tmp_path, progress=listener)
    assert listener.reports[-1].step == listener.reports[-1].num_steps


@pytest.mark.parametrize(
    "changes", [{"activation": "relu"}, {"activation": "gelu"}, {"loss": "cross_entropy"}, {"targets": "noise"}]
)
def test_variants_of_the_task(changes):
    plain, task = toy_network(TASK, 1), replace(TASK, **changes)
    net = toy_network(task, 1)
    q = torch.linspace(-1, 1, 6, dtype=torch.float64)
    assert net.num_weights == plain.num_weights == 6
    assert net.loss(q) != plain.loss(q)
    assert toy_network(task, 1).loss(q) == net.loss(q) != toy_network(task, 2).loss(q)
    teacher = theory.teacher_task(samples=20, tokens=4, dim=3, seed=1).q
    if task.targets == "teacher" and task.loss == "mse":
        assert net.loss(teacher) == pytest.approx(0, abs=1e-20)
    assert toy_network(replace(task, l2=0.5), 1).loss(q) == pytest.approx(net.loss(q) + 0.25 * float(q @ q))


def read_json(path):
    import json

    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def smoke_toys(tmp_path_factory):
    """All toys at smoke, and how many processor seconds they took."""
    out = tmp_path_factory.mktemp("toys")
    begun = time.process_time()
    return {name: run_experiment(name, scale="smoke", out=out) for name in TOYS}, time.process_time() - begun


@pytest.mark.slow
def test_every_toy_runs_at_smoke(smoke_toys):
    reports, seconds = smoke_toys
    for report in reports.values():
        assert report.status == "finished"
        assert report.message == "" or report.name == "toy-random-targets"  # products grow without bound in the end
        assert isinstance(report.spec.task, ToyTask)
    assert seconds < 180


FAILING = {  # on this instance; the rest of the toy's claims hold
    "stages@toy-adam",
    "one-after-another@toy-adam",
    "times-as-in-the-flow@toy-adam",
    "learns@toy-ceng501",
    "times-as-in-the-flow@toy-full-adam",
}


@pytest.mark.slow
def test_verdicts_on_the_toys(smoke_toys):
    """Adam has no stages, and random targets teach nothing."""
    verdicts = evaluate_claims({name: [report.folder] for name, report in smoke_toys[0].items()})
    tested = [verdict for verdict in verdicts if verdict.verdict != "not tested"]
    assert {verdict.claim.id for verdict in tested} == {v.claim.id for v in verdicts if "@toy-" in v.claim.id}
    assert {verdict.claim.id for verdict in tested if verdict.verdict == "fails"} == FAILING
