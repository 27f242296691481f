"""The committed results: whole, small, behind every picture; verdicts computed again by a few plain lines."""

import json
import operator
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from studies.write_prediction import RESULT, with_tables
from tests import plain_numbers
from tests.plain_numbers import FAMILY, by_seed, final_ranks
from tools.write_verdicts import verdict_lines

from rankrise.lab.claims import evaluate_claims
from rankrise.lab.experiments import experiments, read_spec, runs_by_experiment
from rankrise.lab.figures import build_figure, build_figures, figure_ids
from rankrise.store import load_run, verify_run
from rankrise.view import draw

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "results" / "runs"
FOLDERS = sorted(path.parent for path in RUNS.glob("*/*/MANIFEST.json"))
PICTURES = sorted((ROOT / "docs" / "figures").glob("*.png"))
OF_TABLES = [
    path for path in PICTURES if not (path.stem.endswith("-reverse") or path.stem.startswith("live-"))
]  # those are of examples/track_a_training.py


@pytest.fixture(scope="module")
def found():
    return runs_by_experiment(RUNS)


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


IS_MET = {"≤": operator.le, "<": operator.lt, "≥": operator.ge, ">": operator.gt}


@pytest.fixture(scope="module")
def plain(found):
    """Claims by id: the number of each seed, and the bound, by a few plain lines."""
    return plain_numbers.of_the_toy(found) | plain_numbers.of_full_heads(found) | plain_numbers.of_networks(found)


def test_verdicts_are_those_of_a_few_plain_lines(found, plain):
    """Every one that is tested; `lower-than-random` draws random products, each side its own."""
    tested = {verdict.claim.id: verdict for verdict in evaluate_claims(found) if verdict.value is not None}
    assert set(tested) == set(plain)
    for name, (values, bound) in plain.items():
        verdict, (sign, limit) = tested[name], bound.split()
        near = {"rel": 0.03} if name.startswith("lower-than-random") else {"rel": 1e-9, "abs": 1e-12}
        worst = max if sign in "≤<" else min
        by_worst = name in plain_numbers.OF_THE_WORST_SEED
        value = worst(values) if by_worst else np.mean(values)
        assert verdict.claim.threshold == bound, name
        assert verdict.value == pytest.approx(value, **near), name
        assert verdict.verdict == ("holds" if IS_MET[sign](value, float(limit)) else "fails"), name
        assert verdict.n.startswith(f"{len(values)} seed"), name
        if len(values) == 1 or by_worst:
            assert verdict.low is verdict.high is None, name
            assert not verdict.is_open, name
        else:
            half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
            ends = (value - half, value + half)
            assert (verdict.low, verdict.high) == pytest.approx(ends, **near), name
            assert verdict.is_open == (ends[0] < float(limit) < ends[1]), name


def test_verdicts_on_the_page_are_those_of_the_tables():
    page = (ROOT / "docs" / "reproduce.md").read_text()
    assert "\n".join(verdict_lines()) in page, "run `make figures`"


def test_value_output_is_reported_layer_by_layer(found):
    """Also where it contradicts the paper: its last layer."""
    verdicts = {verdict.claim.id: verdict for verdict in evaluate_claims(found)}
    verdict = verdicts["smallest-scale-is-lower-vo@vit-cifar10-scale"]
    seeds = [[final_ranks(folder, "vo") for folder in by_seed(found[name])] for name in (FAMILY[0], FAMILY[-1])]
    ratios = [(large / small).min() for large, small in zip(*seeds, strict=True)]
    worst = int(np.argmin(ratios))  # of seeds 0, 1 and 2
    assert f"Seeds 0, 1, 2: {', '.join(f'{ratio:.3g}' for ratio in ratios)}. Seed {worst}: " in verdict.reason
    for family in seeds:
        assert ", ".join(f"{rank:.2f}" for rank in family[worst]) in verdict.reason


def test_every_figure_of_the_paper_can_be_made_of_them(found):
    gallery = build_figures(found)
    assert {figure.id for figure in gallery.figures} == set(figure_ids())
    assert gallery.missing == {}


@pytest.mark.parametrize("path", OF_TABLES, ids=lambda path: path.stem)
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
    assert with_tables(page, record) == page, "run `python studies/write_prediction.py`"
    losses = {row["stage"]: np.array(row["test_losses"]) for row in record["methods"]}
    for pair in record["differences"]:
        each = losses["advised"] - losses[pair["second"]]
        assert len(each) == pair["n"] >= 3
        half = stats.t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each))
        expected = (each.mean(), each.mean() - half, each.mean() + half)
        assert (pair["mean"], pair["low"], pair["high"]) == pytest.approx(expected)
