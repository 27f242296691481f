"""Thin copies of runs: figures and claims read the same numbers, initial weights can be had again, little is left."""

import numpy as np
import pyarrow.compute as pc
import pytest
from tools.collect_results import thin_run

from rankrise.lab.claims import evaluate_claims
from rankrise.lab.experiments import plan_run, read_spec, run_experiment
from rankrise.lab.figures import build_figure
from rankrise.store import is_sealed, load_initial, load_run, resume_run, verify_run
from rankrise.view import to_csv

NAME = "vit-cifar10"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run_experiment(NAME, scale="smoke", out=tmp_path_factory.mktemp("runs"), device="cpu").folder


@pytest.fixture(scope="module")
def thin(whole, tmp_path_factory):
    return thin_run(whole, tmp_path_factory.mktemp("thin") / NAME / whole.name)


def numbers(text):
    return [line.rsplit(",", 4) for line in text.splitlines()[1:]]


@pytest.mark.parametrize("figure", ["stable_rank_over_training", "stable_rank_by_head", "perturbation_vs_init"])
def test_figures_have_the_same_numbers(whole, thin, figure):
    a, b = (numbers(to_csv(build_figure(figure, {NAME: [run]}, experiment=NAME))) for run in (whole, thin))
    assert [row[0] for row in a] == [row[0] for row in b]
    for x, y in zip(a, b, strict=True):
        for u, v in zip(x[2:], y[2:], strict=True):
            assert float(u or 0) == pytest.approx(float(v or 0), rel=2e-5, abs=1e-9)


def test_it_is_a_run_like_any_other(whole, thin):
    assert is_sealed(thin)
    verify_run(thin)
    assert read_spec(thin) == read_spec(whole)
    assert plan_run(NAME, scale="smoke", out=thin.parents[1]).state == "done"
    assert {path.name for path in thin.iterdir()} == {"spec.json", "env.json", "MANIFEST.json", "metrics.parquet"}
    assert len(evaluate_claims({NAME: [thin]}))


def test_only_what_is_read_is_kept(whole, thin):
    table = load_run(thin)
    kept = set(table["quantity"].to_pylist())
    assert {"stable_rank", "spectrum", "initial_spectrum", "loss", "test_accuracy"} <= kept
    assert not kept & {"frobenius_norm", "overlap_left", "top_components"}
    assert set(table["circuit"].to_pylist()) == {"kq", "vo", ""}
    assert table.num_rows < load_run(whole).num_rows


def test_values_are_rounded_by_little(whole, thin):
    def ranks(run):
        table = load_run(run)
        same = pc.and_(pc.equal(table["quantity"], "stable_rank"), pc.equal(table["circuit"], "kq"))
        return table.filter(same)["value"].to_numpy()

    assert np.allclose(ranks(whole), ranks(thin), rtol=8e-6, atol=0)
    assert not np.array_equal(ranks(whole), ranks(thin))


def test_initial_weights_are_built_again_and_must_be_those_of_the_run(whole, thin, tmp_path):
    (whole / "initial.safetensors").rename(tmp_path / "initial")
    try:
        copy = thin_run(whole, tmp_path / "copy")
        assert load_run(copy).equals(load_run(thin))
        manifest = whole / "MANIFEST.json"
        text = manifest.read_text()
        start = text.index("initial.safetensors") + len('initial.safetensors": "')
        manifest.write_text(text[:start] + "0" * 64 + text[start + 64 :])
        with pytest.raises(ValueError, match=r"initial\.safetensors must be as the manifest says"):
            thin_run(whole, tmp_path / "other")
        manifest.write_text(text)
    finally:
        (tmp_path / "initial").rename(whole / "initial.safetensors")


def test_it_cannot_go_on(thin):
    with pytest.raises(ValueError, match=r"must be a run with its weights to go on; it is a thin copy"):
        resume_run(thin, step=0)
    with pytest.raises(ValueError, match=r"initial\.safetensors; it is missing"):
        load_initial(thin)


def test_a_whole_run_is_not_written_over(whole, thin):
    with pytest.raises(ValueError, match=r"must be empty or hold a thin copy; it holds a whole run"):
        thin_run(whole, whole)
    assert thin_run(whole, thin) == thin  # again is fine


def test_a_thin_copy_of_a_thin_copy_is_the_same(thin, tmp_path):
    again = thin_run(thin, tmp_path / "again")
    assert load_run(again).equals(load_run(thin))
    assert (again / "MANIFEST.json").read_bytes() == (thin / "MANIFEST.json").read_bytes()


def test_theory_runs_are_kept(tmp_path):
    whole = run_experiment("toy-stages", scale="smoke", out=tmp_path / "runs").folder
    thin = thin_run(whole, tmp_path / "thin")
    a, b = load_run(whole), load_run(thin)
    assert a.drop_columns("value").equals(b.drop_columns("value"))
    assert np.allclose(a["value"].to_numpy(), b["value"].to_numpy(), rtol=8e-6, atol=0)
