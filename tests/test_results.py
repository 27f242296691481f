"""The committed results: whole, small, behind every picture; verdicts computed again by a few plain lines."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from benchmarks.write_prediction import RESULT, with_tables
from benchmarks.write_verdicts import verdict_lines
from scipy import stats

from rankrise.experiments import experiments, find_runs, read_spec
from rankrise.experiments.claims import evaluate_claims
from rankrise.figures import build_figure, build_figures, figure_ids
from rankrise.report import draw
from rankrise.store import load_run, verify_run

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "results" / "runs"
FOLDERS = sorted(path.parent for path in RUNS.glob("*/*/MANIFEST.json"))
PICTURES = sorted((ROOT / "docs" / "figures").glob("*.png"))


@pytest.fixture(scope="module")
def found():
    return find_runs(RUNS)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_run_is_whole_and_small(folder):
    verify_run(folder)
    assert load_run(folder).num_rows
    assert read_spec(folder).name == folder.parent.name
    assert sum(path.stat().st_size for path in folder.iterdir()) < 350_000
    environment = json.loads((folder / "env.json").read_text())
    assert environment["packages"]["torch"]


def test_runs_of_the_paper_scale_are_those_of_the_registry(found):
    toys = [name for name in found if name.startswith("toy-")]
    for name in ("vit-cifar10-scale-1", "vit-cifar10-scale-0.1", "gpt2-wikitext2", *toys):
        for folder in found[name]:
            spec = read_spec(folder).spec
            assert type(spec) is type(experiments()[name].paper)
            assert {**vars(spec), "seed": 0} == {**vars(experiments()[name].paper), "seed": 0}


# A few plain lines, without the code that they check: pyarrow and numpy alone.


def table(folder):
    return pq.read_table(folder / "metrics.parquet").to_pydict()


def final_ranks(folder, circuit):
    """Mean over heads at the last step, by layer."""
    t = table(folder)
    rows = [
        (step, layer, value)
        for step, layer, c, quantity, value in zip(
            t["step"], t["layer"], t["circuit"], t["quantity"], t["value"], strict=True
        )
        if quantity == "stable_rank" and c == circuit
    ]
    last = max(step for step, _, _ in rows)
    layers = sorted({layer for _, layer, _ in rows})
    return np.array([np.mean([v for s, n, v in rows if s == last and n == layer]) for layer in layers])


def initial_ranks(folder, circuit):
    t = table(folder)
    squares = {}
    for layer, head, c, quantity, value in zip(
        t["layer"], t["head"], t["circuit"], t["quantity"], t["value"], strict=True
    ):
        if quantity == "initial_spectrum" and c == circuit:
            squares.setdefault((layer, head), []).append(value**2)
    ranks = {place: sum(values) / max(values) for place, values in squares.items()}
    layers = sorted({layer for layer, _ in ranks})
    return np.array([np.mean([rank for (n, _), rank in ranks.items() if n == layer]) for layer in layers])


def scalar(folder, name):
    t = table(folder)
    rows = zip(t["step"], t["quantity"], t["value"], strict=True)
    return [value for _, value in sorted((step, value) for step, quantity, value in rows if quantity == name)]


def products(folder):
    """(steps, 2d) of a theory run."""
    t = table(folder)
    rows = zip(t["step"], t["circuit"], t["index"], t["quantity"], t["value"], strict=True)
    found = {(s, c, i): v for s, c, i, quantity, v in rows if quantity == "product"}
    steps, places = sorted({s for s, _, _ in found}), sorted({(c, i) for _, c, i in found})
    return np.array([[found[s, c, i] for c, i in places] for s in steps])


def expected(found):
    """Claims by id: the number, and whether it is as claimed."""
    wanted = {}
    for name in ("vit-cifar10-scale-1", "vit-cifar10-augmented", "gpt2-wikitext2"):
        for circuit in ("kq", "vo"):
            values = [(final_ranks(f, circuit) / initial_ranks(f, circuit)).max() for f in found[name]]
            wanted[f"lower-than-init-{circuit}@{name}"] = np.mean(values), np.mean(values) <= 0.5
    for name in ("vit-cifar10-scale-1", "gpt2-wikitext2"):
        values = [(final_ranks(f, "vo") / final_ranks(f, "kq")).min() for f in found[name]]
        wanted[f"vo-above-kq@{name}"] = np.mean(values), np.mean(values) > 1
    family = [n for n in ("vit-cifar10-scale-1", "vit-cifar10-scale-0.3", "vit-cifar10-scale-0.1") if n in found]
    family += ["vit-cifar10-scale-0.03"] * ("vit-cifar10-scale-0.03" in found)
    by_seed = [{read_spec(folder).spec.seed: folder for folder in found[name]} for name in family]
    seeds = sorted(set.intersection(*(set(folders) for folders in by_seed)))
    for circuit in ("kq", "vo"):
        ranks = np.array([[final_ranks(folders[seed], circuit) for folders in by_seed] for seed in seeds])
        ratio = (ranks[:, 0] / ranks[:, -1]).min(-1).mean()
        share = (ranks[:, 1:] < ranks[:, :-1]).mean()
        wanted[f"smallest-scale-is-lower-{circuit}@vit-cifar10-scale"] = ratio, ratio > 1
        if len(family) >= 3:
            wanted[f"each-smaller-scale-is-lower-{circuit}@vit-cifar10-scale"] = share, share >= 0.9
    if family[-1] == "vit-cifar10-scale-0.03":
        ends = [
            [scalar(by_seed[n][s], "test_accuracy")[-1] for s in set(by_seed[0]) & set(by_seed[-1])] for n in (0, -1)
        ]
        lost = np.mean(ends[0]) - np.mean(ends[1])
        wanted["small-scale-hurts@vit-cifar10-scale"] = lost, lost >= 0.01
    active = products(found["toy-stages"][0]) != 0
    joins = (active[1:] & ~active[:-1]).sum(1).max()
    leaves = (active[:-1] & ~active[1:]).sum()
    wanted["one-joins-per-stage@toy-stages"] = joins, joins <= 1
    wanted["nothing-leaves@toy-stages"] = leaves, leaves <= 0
    gap = min(scalar(found["toy-stages"][0], "gap"))
    wanted["unique-winner@toy-stages"] = gap, gap > 0
    losses = scalar(found["toy-ceng501"][0], "loss")
    learned = 1 - losses[-1] / losses[0]
    wanted["learns@toy-ceng501"] = learned, learned >= 0.1
    return wanted


def test_verdicts_are_those_of_a_few_plain_lines(found):
    verdicts = {verdict.claim.id: verdict for verdict in evaluate_claims(found)}
    for name, (value, holds) in expected(found).items():
        assert verdicts[name].value == pytest.approx(value, rel=1e-9, abs=1e-12), name
        assert verdicts[name].verdict == ("holds" if holds else "fails"), name


def test_verdicts_on_the_page_are_those_of_the_tables():
    page = (ROOT / "docs" / "reproduce.md").read_text()
    assert "\n".join(verdict_lines()) in page, "run `make figures`"


def test_value_output_is_reported_layer_by_layer(found):
    """Also where it contradicts the paper: its last layer."""
    verdicts = {verdict.claim.id: verdict for verdict in evaluate_claims(found)}
    verdict = verdicts["smallest-scale-is-lower-vo@vit-cifar10-scale"]
    ranks = final_ranks(found["vit-cifar10-scale-1"][0], "vo")
    assert ", ".join(f"{rank:.2f}" for rank in ranks) in verdict.reason


def test_every_figure_of_the_paper_can_be_made_of_them(found):
    gallery = build_figures(found)
    assert {figure.id for figure in gallery.figures} == set(figure_ids())
    assert gallery.missing == {}


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_pictures_are_those_of_the_tables(found, path, tmp_path):
    """Pixel for pixel with the matplotlib they were drawn with; `make figures` draws them again."""
    import matplotlib as mpl
    from PIL import Image

    figure_id, _, experiment = path.stem.partition("-")
    figure = build_figure(figure_id, found, **({"experiment": experiment} if experiment else {}))
    assert figure.name == path.stem
    if f"matplotlib=={mpl.__version__}" not in (ROOT / "constraints.txt").read_text():
        pytest.skip("another matplotlib draws other pixels")
    new = draw(figure, tmp_path / path.name)
    a, b = (np.asarray(Image.open(file).convert("RGB"), dtype=float) for file in (path, new))
    assert a.shape == b.shape
    assert np.abs(a - b).mean() < 0.01, "the tables have changed: run `make figures`"


def test_every_picture_is_shown():
    pages = (ROOT / "README.md").read_text() + "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    assert [path.name for path in PICTURES if f"figures/{path.name}" not in pages] == []


def test_prediction_on_the_page_is_that_of_the_committed_result():
    """Differences computed again from the losses by a few plain lines."""
    page = (ROOT / "docs" / "checkpoints.md").read_text()
    assert page.count("<!-- end of prediction -->") == 1
    if not RESULT.is_file():
        assert "| paired difference |" not in page
        return
    record = json.loads(RESULT.read_text())
    assert with_tables(page, record) == page, "run `python benchmarks/write_prediction.py`"
    losses = {row["stage"]: np.array(row["test_losses"]) for row in record["methods"]}
    for pair in record["differences"]:
        each = losses["advised"] - losses[pair["second"]]
        assert len(each) == pair["n"] >= 3
        half = stats.t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each))
        expected = (each.mean(), each.mean() - half, each.mean() + half)
        assert (pair["mean"], pair["low"], pair["high"]) == pytest.approx(expected)
