"""The committed results: whole, small, behind every picture; verdicts computed again by a few plain lines."""

import json
import operator
from functools import cache
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
    for name in ("vit-cifar10", *FAMILY, "gpt2-wikitext2", *toys):
        seeds = [0, 1, 2] if name in (*FAMILY, *toys) else [0]
        assert sorted(read_spec(folder).spec.seed for folder in found[name]) == seeds
        for folder in found[name]:
            spec = read_spec(folder).spec
            assert type(spec) is type(experiments()[name].paper)
            assert {**vars(spec), "seed": 0} == {**vars(experiments()[name].paper), "seed": 0}


# A few plain lines, without the code that they check: pyarrow and numpy alone.


FAMILY = tuple(f"vit-cifar10-scale-{factor}" for factor in ("1", "0.3", "0.1", "0.03"))


def by_seed(folders):
    return sorted(folders, key=lambda folder: read_spec(folder).spec.seed)


@cache
def table(folder):
    return pq.read_table(folder / "metrics.parquet").to_pydict()


def rank_curves(folder, circuit):
    """Steps after the start, and means over heads, (steps, layers)."""
    t = table(folder)
    rows = zip(t["step"], t["layer"], t["circuit"], t["quantity"], t["value"], strict=True)
    heads = {}
    for step, layer, c, quantity, value in rows:
        if quantity == "stable_rank" and c == circuit and step > 0:
            heads.setdefault((step, layer), []).append(value)
    steps, layers = (sorted({place[n] for place in heads}) for n in (0, 1))
    return np.array(steps), np.array([[np.mean(heads[step, layer]) for layer in layers] for step in steps])


def final_ranks(folder, circuit):
    return rank_curves(folder, circuit)[1][-1]


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


def expected_of_networks(found):
    """Claims by id: the number of each seed, and the bound."""
    wanted = {}
    for name in ("vit-cifar10", *FAMILY, "vit-cifar10-augmented", "gpt2-wikitext2"):
        for circuit in ("kq", "vo"):
            curves = [rank_curves(folder, circuit) for folder in found[name]]
            ends = [ranks[-1] for _, ranks in curves]
            starts = [initial_ranks(folder, circuit) for folder in found[name]]
            low = [(end / start).max() for end, start in zip(ends, starts, strict=True)]
            early = [ranks[steps <= max(0.05 * steps[-1], steps[0])].mean(0) for steps, ranks in curves]
            rise = [(end / start).min() for end, start in zip(ends, early, strict=True)]
            steady = [min(stats.spearmanr(steps, layer).statistic for layer in ranks.T) for steps, ranks in curves]
            wanted[f"lower-than-init-{circuit}@{name}"] = low, "≤ 0.5"
            wanted[f"rises-{circuit}@{name}"] = rise, "> 1"
            wanted[f"rises-steadily-{circuit}@{name}"] = steady, "≥ 0.5"
    for name in ("vit-cifar10", "vit-cifar10-scale-1", "gpt2-wikitext2"):
        kq, vo = ([final_ranks(folder, circuit) for folder in found[name]] for circuit in ("kq", "vo"))
        wanted[f"vo-above-kq@{name}"] = [(b / a).min() for a, b in zip(kq, vo, strict=True)], "> 1"
        for circuit, ends in (("kq", kq), ("vo", vo)):
            order = [stats.spearmanr(np.arange(len(end)), end).statistic for end in ends]
            wanted[f"deeper-is-higher-{circuit}@{name}"] = order, "≥ 0.5"
    for circuit in ("kq", "vo"):  # (seeds, scales, layers), from the largest scale to the smallest
        ranks = np.array([[final_ranks(folder, circuit) for folder in by_seed(found[name])] for name in FAMILY])
        ranks = ranks.swapaxes(0, 1)
        ratios, shares = (ranks[:, 0] / ranks[:, -1]).min(-1), (ranks[:, 1:] < ranks[:, :-1]).mean((1, 2))
        wanted[f"smallest-scale-is-lower-{circuit}@vit-cifar10-scale"] = ratios, "> 1"
        wanted[f"each-smaller-scale-is-lower-{circuit}@vit-cifar10-scale"] = shares, "≥ 0.9"
    first, last = (
        np.array([scalar(folder, "test_accuracy")[-1] for folder in by_seed(found[name])])
        for name in (FAMILY[0], FAMILY[-1])
    )
    wanted["small-scale-hurts@vit-cifar10-scale"] = first - last, "≥ 0.01"
    return wanted


def expected_of_the_toy(found):
    active = [products(folder) != 0 for folder in found["toy-stages"]]
    losses = [scalar(folder, "loss") for folder in found["toy-ceng501"]]
    return {
        "one-joins-per-stage@toy-stages": ([(a[1:] & ~a[:-1]).sum(1).max() for a in active], "≤ 1"),
        "nothing-leaves@toy-stages": ([(a[:-1] & ~a[1:]).sum() for a in active], "≤ 0"),
        "unique-winner@toy-stages": ([min(scalar(folder, "gap")) for folder in found["toy-stages"]], "> 0"),
        "learns@toy-ceng501": ([1 - loss[-1] / loss[0] for loss in losses], "≥ 0.1"),
    }


IS_MET = {"≤": operator.le, "<": operator.lt, "≥": operator.ge, ">": operator.gt}


@pytest.mark.parametrize("expected", [expected_of_networks, expected_of_the_toy])
def test_verdicts_are_those_of_a_few_plain_lines(found, expected):
    verdicts = {verdict.claim.id: verdict for verdict in evaluate_claims(found)}
    for name, (values, bound) in expected(found).items():
        verdict, (sign, limit) = verdicts[name], bound.split()
        assert verdict.claim.threshold == bound, name
        assert verdict.value == pytest.approx(np.mean(values), rel=1e-9, abs=1e-12), name
        assert verdict.verdict == ("holds" if IS_MET[sign](np.mean(values), float(limit)) else "fails"), name
        if len(values) == 1:
            assert verdict.low is verdict.high is None
        else:
            half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
            ends = (np.mean(values) - half, np.mean(values) + half)
            assert (verdict.low, verdict.high) == pytest.approx(ends, rel=1e-9, abs=1e-12), name


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
