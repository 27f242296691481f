"""The plan of a reproduction: what is in it, what is shared, what is left out and why."""

from dataclasses import replace

import pytest

from rankrise.lab.claims._evaluate import PREDICATES
from rankrise.lab.experiments import TrainingSpec, execute_run, experiments, plan_reproduction
from rankrise.lab.experiments import _plan as module
from rankrise.lab.experiments.specs import ENTRIES, Entry

NEEDED = {name for predicate in PREDICATES for name in predicate.needs}
TINY = (Entry("vit-cifar10", "smoke", (0, 1)), Entry("toy-stages", "smoke"))


@pytest.mark.parametrize("scale", ENTRIES)
def test_every_part_is_registered_and_listed_once(scale):
    names = [part.name for part in ENTRIES[scale]]
    assert set(names) <= set(experiments())
    assert len(names) == len(set(names))


def test_smoke_needs_no_download_and_no_stand_ins(tmp_path):
    plan = plan_reproduction("smoke", out=tmp_path)
    data = {run.spec.data.name for run in plan.runs if isinstance(run.spec, TrainingSpec)}
    assert data == {"digits"}
    assert not any(run.problem for run in plan.runs)
    factors = [
        float(run.spec.model.init_scale) for runs in plan.members.values() for run in runs if "scale" in run.name
    ]
    assert len(set(factors)) >= 2
    assert [run.spec.seed for run in plan.members["vit-digits"]] == [0, 1, 2]


def test_paper_is_the_papers_recipe_on_the_experiments_that_claims_need(tmp_path):
    plan = plan_reproduction("paper", out=tmp_path)
    for name, runs in plan.members.items():
        assert replace(runs[0].spec, seed=0) == experiments()[name].paper, name
    assert len(plan.members["vit-cifar10-scale-0.1"]) == 3
    assert set(plan.members) >= NEEDED


def test_equal_specs_share_a_run(tmp_path):
    plan = plan_reproduction("smoke", out=tmp_path)
    assert plan.members["vit-digits-scale-1"] == plan.members["vit-digits"]
    assert len(plan.runs) == len({run.folder for run in plan.runs})
    assert "vit-digits-scale-1" not in {run.name for run in plan.runs}


def test_seeds_are_of_networks_only(tmp_path):
    plan = plan_reproduction("smoke", out=tmp_path, num_seeds=2)
    assert [run.spec.seed for run in plan.members["vit-digits-relu"]] == [0, 1]
    assert [run.spec.seed for run in plan.members["toy-stages"]] == list(range(12))
    assert [run.spec.seed for run in plan.members["toy-adam"]] == [0, 1, 2]
    assert [run.spec.seed for run in plan.members["toy-full-stages"]] == [3, 4, 5]  # 0, 1 and 2 set the bounds


def test_what_takes_many_gpus_is_left_out_until_it_is_done(tmp_path, monkeypatch):
    part = Entry("vit-cifar10", "smoke", by_hand="Too large")
    monkeypatch.setitem(module.ENTRIES, "smoke", (part,))
    plan = plan_reproduction("smoke", out=tmp_path)
    assert plan.runs == []
    assert plan.absences()["vit-cifar10"] == "Too large."
    execute_run(plan.members["vit-cifar10"][0], device="cpu")
    again = plan_reproduction("smoke", out=tmp_path)
    assert [run.state for run in again.runs] == ["done"]
    assert again.finished() == {"vit-cifar10": [again.runs[0].folder]}
    assert "vit-cifar10" not in again.absences()


def test_absences_name_no_path_of_this_machine(tmp_path):
    plan = plan_reproduction("paper", out=tmp_path, data=tmp_path / "nothing")
    reasons = plan.absences()
    assert reasons["vit-cifar10"].startswith("No data: cifar10 is not in the data folder")
    assert reasons["gpt2-wikitext2"].startswith("No data: wikitext-2 is not")
    assert "torchrun" in reasons["vit-imagenet"]
    assert not any(str(tmp_path) in reason for reason in reasons.values())
    smoke = plan_reproduction("smoke", out=tmp_path).absences()
    assert smoke["vit-cifar10"] == ("Not part of scale smoke: rankrise reproduce --scale small --data DIR has it.")


def test_a_damaged_run_is_said_and_left_alone(tmp_path, monkeypatch):
    monkeypatch.setitem(module.ENTRIES, "smoke", TINY)
    run = plan_reproduction("smoke", out=tmp_path).members["toy-stages"][0]
    execute_run(run)
    (run.folder / "metrics.parquet").write_bytes(b"damaged")
    plan = plan_reproduction("smoke", out=tmp_path)
    assert plan.absences()["toy-stages"].startswith("toy-stages/")
    assert "toy-stages" not in plan.finished()
    assert (run.folder / "metrics.parquet").read_bytes() == b"damaged"


def test_unknown_scale():
    with pytest.raises(ValueError, match=r"`scale` must be a known one; got 'large'"):
        plan_reproduction("large")
