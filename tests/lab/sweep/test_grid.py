"""Grids as values, and as they are written at the shell."""

import pytest

from rankrise.lab.experiments import experiments, field_names, plan_run, with_fields
from rankrise.lab.sweep import GRIDS, Grid, read_fields


def test_every_combination_of_values_and_seeds_is_one_run(tmp_path):
    grid = Grid(("vit-digits", "vit-cifar10"), {"model.init_scale": (1, 0.3)}, num_seeds=2, scale="smoke")
    plans = grid.plan(out=tmp_path)
    assert [(p.name, p.spec.model.init_scale, p.spec.seed) for p in plans] == [
        (name, scale, seed) for name in grid.experiments for scale in (1.0, 0.3) for seed in (0, 1)
    ]
    assert len({plan.folder for plan in plans}) == 8


def test_a_run_of_a_grid_is_the_run_of_the_experiment_where_they_agree(tmp_path):
    (plan,) = Grid(("vit-digits",), {"model.init_scale": (1.0,)}, scale="smoke").plan(out=tmp_path)
    assert plan == plan_run("vit-digits", scale="smoke", out=tmp_path)


def test_values_that_mean_the_same_run_are_one_run(tmp_path):
    assert len(Grid(("vit-digits",), {"model.init_scale": (1, 1.0)}, scale="smoke").plan(out=tmp_path)) == 1


def test_every_field_of_every_spec_can_be_set_to_its_own_value():
    from rankrise.runs import spec_fields

    for experiment in experiments().values():
        spec = experiment.smoke
        fields = {name: value for name in field_names(spec) if (value := _value(spec, name)) is not None}
        assert with_fields(spec, fields) == spec
        assert spec_fields(fields)


def _value(spec, path):
    part, _, name = path.rpartition(".")
    return getattr(getattr(spec, part) if part else spec, name)


def test_an_unknown_field_is_refused_with_all_fields():
    with pytest.raises(
        ValueError, match=r"^vit-digits: A field must be one of the spec's; got 'init_scale'\. Did you"
    ) as e:
        Grid(("vit-digits",), {"init_scale": (1,)}).specs()
    assert "Did you mean 'model.init_scale'? The fields: data.name" in str(e.value)
    assert "training.epochs" in str(e.value)
    assert "training.seed" not in str(e.value)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (Grid(("vit-digits",), {"model.init_scale": ("big",)}), "init_scale must be a finite number; got 'big'"),
        (Grid(("vit-digits",), {"seed": (1,)}, num_seeds=2), "`seed` must be given once"),
        (Grid(("vit-digits",), {"seed": tuple(range(400)), "training.epochs": tuple(range(1, 400))}), "at most 100000"),
        (Grid(("vit-digitz",)), "Did you mean 'vit-digits'?"),
        (Grid(("vit-digits",), scale="huge"), "`scale` must be a known one"),
    ],
)
def test_what_makes_no_sense_is_refused(grid, message):
    with pytest.raises(ValueError, match="must") as error:
        grid.specs()
    assert message in str(error.value)


def test_lists_are_values_too():
    assert read_fields(["training.betas=[0.9,0.99],[0.9,0.95]"]) == {"training.betas": ((0.9, 0.99), (0.9, 0.95))}
    spec = with_fields(experiments()["vit-digits"].smoke, {"training.betas": (0.5, 0.9)})
    assert spec.training.betas == (0.5, 0.9)


@pytest.mark.parametrize("words", [["seed"], ["=1"], ["seed="], ["seed=1", "seed=2"]])
def test_a_grid_that_is_written_wrongly_is_refused(words):
    with pytest.raises(ValueError, match="A grid must"):
        read_fields(words)


@pytest.mark.parametrize("name", GRIDS)
def test_every_named_grid_has_runs_of_its_own(name):
    specs = GRIDS[name].specs()
    assert len(specs) == len(set(specs)) > 1
    assert GRIDS[name].title
    assert name not in experiments()
