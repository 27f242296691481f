"""Broken tables leave their figures out with a reason; the others, and the report, are made."""

import numpy as np
import pytest
from tests.lab.claims.test_broken_tables import spoil
from tests.lab.figures import runs as planted
from tests.lab.figures.runs import network_run, toy_runs

from rankrise.cli._results import write_results
from rankrise.lab.figures import build_figures
from rankrise.runs import NotMeasurable, RunData
from rankrise.store import rows

HOW = {"nan": np.nan, "missing": None, "twice": "twice"}
RANKS = {step: [[1.0, 1.2], [1.5, 1.7]] for step in (0, 10, 20)}
SPECTRA = {step: [[[4.0, 1.0]] * 2] * 2 for step in (10, 20)}
INITIAL = [[[2.0, 1.9]] * 2] * 2
READ = {  # of a network, by figure
    "spectrum_over_training": {"spectrum", "initial_spectrum"},
    "perturbation_vs_init": {"spectrum", "initial_spectrum"},
    "stable_rank_over_training": {"stable_rank"},
    "stable_rank_by_head": {"stable_rank"},
}


@pytest.fixture
def spoiled(monkeypatch):
    """Runs written from now on have a quantity that is broken."""
    write = planted.write_run

    def of(quantity, how, *, only=""):
        def broken(folder, *, experiment, spec, blocks):
            new = spoil(blocks, quantity, how) if experiment.startswith(only) else blocks
            return write(folder, experiment=experiment, spec=spec, blocks=new)

        monkeypatch.setattr(planted, "write_run", broken)

    return of


@pytest.mark.parametrize("how", [*HOW, "layer"])
@pytest.mark.parametrize("quantity", ["stable_rank", "spectrum", "initial_spectrum"])
def test_figures_of_networks(quantity, how, spoiled, tmp_path):
    whole = network_run(tmp_path, "vit-digits", ranks=RANKS, spectra=SPECTRA, initial=INITIAL)
    spoiled(quantity, HOW.get(how, how))
    broken = network_run(tmp_path, "vit-cifar10", ranks=RANKS, spectra=SPECTRA, initial=INITIAL)
    gallery = build_figures({"vit-digits": [whole], "vit-cifar10": [broken]})
    assert {f.id for f in gallery.figures if f.experiment == "vit-digits"} == set(READ)
    left_out = {name.split()[0] for name in gallery.missing if name.endswith("vit-cifar10")}
    assert left_out == {name for name, read in READ.items() if quantity in read}
    for name in left_out:
        assert gallery.missing[f"{name} vit-cifar10"].startswith("vit-cifar10/000000000000 has ")


def test_a_missing_last_layer_is_seen_by_the_spec(tmp_path):
    spec = planted.network_spec(layers=3)
    block = rows(10, "stable_rank", np.ones((2, 2)), circuit="kq", layers=range(2), heads=True)
    folder = planted.write_run(tmp_path / "mine" / "0", experiment="mine", spec=spec, blocks=[block])
    with pytest.raises(NotMeasurable, match=r"mine/0 has `stable_rank` of kq of 2 of 3 layers: run it again"):
        RunData(folder).path("stable_rank", "kq")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("quantity", ["loss", "time", "product"])
def test_figures_of_the_toy(quantity, how, spoiled, tmp_path):
    spoiled(quantity, HOW[how], only="toy-flow-1e-8")
    gallery = build_figures(toy_runs(tmp_path))
    assert {figure.id for figure in gallery.figures} == {"toy_robustness"}
    for name in ("toy_scales", "toy_stages"):
        assert gallery.missing[name].startswith("toy-flow-1e-8/000000000000 has ")


@pytest.mark.parametrize("how", HOW)
def test_robustness(how, spoiled, tmp_path):
    spoiled("product_perturbed", HOW[how], only="toy-robustness-4.4")
    gallery = build_figures(toy_runs(tmp_path))
    assert set(gallery.missing) == {"toy_robustness", "matrix_stages", "adam_phases"}
    assert gallery.missing["toy_robustness"].startswith("toy-robustness-4.4/0 has ")


def test_seeds_recorded_at_different_steps(tmp_path):
    other = dict.fromkeys((0, 10, 30), RANKS[0])
    folders = [network_run(tmp_path, "vit-digits", ranks=r, seed=seed) for seed, r in enumerate((RANKS, other))]
    gallery = build_figures({"vit-digits": folders})
    reason = gallery.missing["stable_rank_over_training vit-digits"]
    assert "has not recorded `stable_rank` of kq as vit-digits/000000000000 has" in reason


@pytest.mark.parametrize("how", HOW)
def test_the_report_is_written(how, spoiled, tmp_path):
    spoiled("loss", HOW[how], only="toy-flow-1e-8")
    notes = []
    results = write_results(
        toy_runs(tmp_path / "runs"), tmp_path / "report", beside=tmp_path / "runs", absent={}, note=notes.append
    )
    assert "Pushed off its path" in results.page.read_text()
    assert [note for note in notes if note.startswith("not drawn: toy_scales: toy-flow-1e-8/")]
