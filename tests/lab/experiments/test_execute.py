"""The runner: every experiment runs; what is done is skipped, what was cut off goes on, what is wrong is refused."""

import json
import os
import signal
from dataclasses import replace

import pytest

from rankrise import heads, view
from rankrise.lab import data, models, training
from rankrise.lab.data import DataConfig
from rankrise.lab.experiments import (
    NamedSpec,
    TrainingSpec,
    _execute,
    execute_run,
    experiments,
    plan_run,
    read_spec,
    run_experiment,
    spec_hash,
    vary,
)
from rankrise.lab.models import GPTConfig, ToyHeadConfig, ViTConfig
from rankrise.lab.training import TrainingConfig
from rankrise.store import load_initial, load_run, load_spec

SMOKE = experiments()["vit-cifar10-augmented"].smoke


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", [n for n, found in experiments().items() if isinstance(found.smoke, TrainingSpec)])
def test_every_experiment_runs_at_smoke(name, tmp_path):
    report = run_experiment(name, scale="smoke", out=tmp_path, device="cpu")
    spec = experiments()[name].smoke
    assert report.status == "finished"
    assert report.folder == tmp_path / name / spec_hash(spec)
    assert read_spec(report.folder) == NamedSpec(name, spec)
    num_layers = getattr(spec.model, "num_layers", 1)
    for circuit in ("kq", "vo"):
        ranks = report.summary.stable_ranks[circuit]
        assert len(ranks) == num_layers
        assert all(1 <= rank <= spec.model.head_dim for rank in ranks)
    assert {"loss", "train_loss", "test_loss"} <= report.summary.scalars.keys()
    json.dumps(report.to_json(), allow_nan=False)


def test_what_is_done_is_skipped_and_not_touched(tmp_path):
    first = run_experiment(NamedSpec("mine", SMOKE), out=tmp_path, device="cpu")
    before = contents(tmp_path)
    plan = plan_run(NamedSpec("mine", SMOKE), out=tmp_path)
    assert (plan.state, plan.problem, plan.hash) == ("done", "", first.hash)
    again = execute_run(plan, device="cpu")
    assert again.status == "skipped"
    assert again.summary == first.summary
    assert contents(tmp_path) == before


def test_other_seeds_and_epochs_are_other_runs(tmp_path):
    folders = {plan_run(SMOKE, seed=seed, epochs=n, out=tmp_path).folder for seed in (0, 1) for n in (None, 3)}
    assert len(folders) == 4
    assert list(tmp_path.iterdir()) == []  # planning writes nothing


class Stopper:
    """Sends this process a signal when training is under way."""

    def __init__(self, number):
        self.number = number

    def update(self, report):
        if 0 < report.step < report.num_steps:
            os.kill(os.getpid(), self.number)

    def close(self):
        pass


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run long enough to be stopped on its way, from its start to its end without a stop."""
    return run_experiment(NamedSpec("long", vary(SMOKE, epochs=60)), out=tmp_path_factory.mktemp("run"), device="cpu")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_was_stopped_goes_on_and_ends_as_if_it_had_not_been(tmp_path, number, straight):
    spec = NamedSpec("long", straight.spec)
    stopped = run_experiment(spec, out=tmp_path / "stopped", device="cpu", progress=Stopper(number))
    assert (stopped.status, stopped.signal) == ("stopped", number)
    assert 0 < stopped.summary.step < 240
    plan = plan_run(spec, out=tmp_path / "stopped")
    assert (plan.state, plan.problem) == ("unfinished", "")
    resumed = execute_run(plan, device="cpu")
    assert resumed.status == straight.status == "finished"
    assert load_run(resumed.folder).equals(load_run(straight.folder))


def test_spec_json_alone_repeats_a_run(tmp_path):
    first = run_experiment("gpt2-wikitext2", scale="smoke", seed=3, out=tmp_path / "a", device="cpu")
    (tmp_path / "lone.json").write_bytes((first.folder / "spec.json").read_bytes())
    again = run_experiment(read_spec(tmp_path / "lone.json"), out=tmp_path / "b", device="cpu")
    assert (again.name, again.hash, again.spec.seed) == ("gpt2-wikitext2", first.hash, 3)
    assert load_run(again.folder).equals(load_run(first.folder))
    assert all((w == load_initial(first.folder)[name]).all() for name, w in load_initial(again.folder).items())


def test_the_seed_reaches_data_weights_and_order(tmp_path, monkeypatch):
    """Each by itself: what the three are called with."""
    seeds = {}
    load, build, fit = data.load_dataset, models.build_model, training.train

    def load_dataset(config, **options):
        seeds["data"] = config.seed
        return load(config, **options)

    def build_model(config, *, seed=0):
        seeds["weights"] = seed
        return build(config, seed=seed)

    def train(model, dataset, config, **options):
        seeds["order"] = config.seed
        return fit(model, dataset, config, **options)

    for package, spy in ((data, load_dataset), (models, build_model), (training, train)):
        monkeypatch.setattr(package, spy.__name__, spy)
    done = run_experiment(SMOKE, seed=3, out=tmp_path, device="cpu")
    assert seeds == {"data": 3, "weights": 3, "order": 3}
    assert load_spec(done.folder)["config"]["spec"]["seed"] == 3


def test_the_run_of_another_spec_is_refused(tmp_path):
    other = run_experiment(SMOKE, seed=1, out=tmp_path, device="cpu")
    plan = plan_run(SMOKE, out=tmp_path)
    other.folder.rename(plan.folder)
    refused = plan_run(SMOKE, out=tmp_path)
    assert refused.state == "refused"
    with pytest.raises(
        ValueError, match=r"must hold the run of this spec; its spec\.json is of another\. Move it away"
    ):
        execute_run(refused)


def test_a_damaged_run_is_refused_with_the_file(tmp_path):
    done = run_experiment(SMOKE, out=tmp_path, device="cpu")
    with (done.folder / "metrics.parquet").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ValueError, match=r"metrics\.parquet must be as the manifest says; it is not"):
        run_experiment(SMOKE, out=tmp_path)
    (done.folder / "metrics.parquet").unlink()
    assert "must hold metrics.parquet; it is missing" in plan_run(SMOKE, out=tmp_path).problem
    (done.folder / "spec.json").write_text("{")
    assert "a spec must be JSON" in plan_run(SMOKE, out=tmp_path).problem


def test_missing_data_is_said_before_anything_is_written(tmp_path):
    plan = plan_run("vit-cifar10", scale="paper", data=tmp_path / "data", out=tmp_path / "runs")
    assert plan.state == "new"
    assert "cifar-10-batches-py" in plan.problem
    with pytest.raises(ValueError, match="cifar-10-batches-py"):
        execute_run(plan)
    assert not (tmp_path / "runs").exists()


TRAINING = TrainingConfig(epochs=1, batch_size=8)
TEACHER, TEXT, IMAGES = (
    DataConfig("teacher", samples=16, dim=4, tokens=3),
    DataConfig("synthetic_text", num_train=16, num_test=8, context=8),
    DataConfig("synthetic_images", num_train=16, num_test=8, image_size=16),
)


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        (TEACHER, ToyHeadConfig(dim=5), "its dim is 5 and the data's is 4"),
        (TEACHER, GPTConfig(), "its task is next_token and the data's is regress"),
        (TEXT, GPTConfig(context=4), "its context is 4 and the data's is 8"),
        (TEXT, GPTConfig(vocab_size=10), "its vocab_size is 10 and the data's is 64"),
        (IMAGES, ViTConfig(), r"its image is \(3, 32, 32\) and the data's is \(3, 16, 16\)"),
        (IMAGES, ViTConfig(image_size=16, num_classes=5), "its num_classes is 5 and the data's is 10"),
        (IMAGES, ToyHeadConfig(), "its task is regress and the data's is classify"),
    ],
)
def test_a_model_that_does_not_fit_the_data(data, model, message, tmp_path):
    with pytest.raises(ValueError, match=f"The model must fit the data; {message}. Change `model` or `data`"):
        run_experiment(TrainingSpec(data, model, TRAINING), out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_diverges(tmp_path):
    spec = replace(experiments()["toy-matrix-head"].smoke)
    spec = replace(spec, training=replace(spec.training, learning_rate=1e6))
    report = run_experiment(spec, out=tmp_path, device="cpu")
    assert report.status == "diverged"
    assert "smaller learning rate" in report.message
    json.dumps(report.to_json(), allow_nan=False)
    assert plan_run(spec, out=tmp_path).state == "unfinished"


def test_circuits_have_one_list_of_names():
    """A list that repeats the names must not lack a circuit that another list has."""
    assert _execute._CIRCUITS == tuple(heads.CIRCUITS) == tuple(view.CIRCUITS)
