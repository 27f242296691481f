"""One hostile run does not stop the report of all: it is passed over in one line, and everything else is drawn."""

import re
import shutil
import subprocess
import sys
import warnings

import pytest
from tests.trust import hostile

from rankrise.lab.experiments import runs_by_experiment

pytestmark = pytest.mark.timeout(1800)  # on a busy machine a report takes minutes


def report(folder, out):
    done = subprocess.run(
        [sys.executable, "-m", "rankrise", "report", "--runs", str(folder), "--out", str(out)],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    base = tmp_path_factory.mktemp("reports")
    runs = hostile.good_runs(base / "runs", "toy-stages", "toy-adam", "vit-cifar10")
    alone = report(runs, base / "alone")  # as long as "among", so that lines break at the same words
    names = hostile.hostile_runs(runs)
    return alone, report(runs, base / "among"), names, base


def test_hostile_runs_are_not_found(tmp_path):
    runs = hostile.good_runs(tmp_path, "toy-stages", "toy-adam")
    alone = runs_by_experiment(runs)
    names = hostile.hostile_runs(runs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert runs_by_experiment(runs) == alone
    assert len(caught) == len(names)
    assert all(str(warning.message).isprintable() for warning in caught)


@pytest.mark.slow
def test_everything_else_is_drawn_and_judged_as_without_it(reports):
    alone, among, _, base = reports
    assert (alone.returncode, among.returncode) == (0, 0)
    assert among.stdout.replace("/among/index.html", "/alone/index.html") == alone.stdout  # only the page differs
    drawn = [sorted(path.name for path in (base / name / "figures").iterdir()) for name in ("alone", "among")]
    assert drawn[0] == drawn[1] != []


@pytest.mark.slow
def test_each_is_passed_over_in_one_line(reports):
    _, among, names, _ = reports
    lines = [line for line in among.stderr.splitlines() if "A run is passed over" in line]
    shown = [name.replace("\x1b", r"\x1b").replace("\x07", r"\x07") for name in names]
    assert [sum(f"/{name}" in line or f"{name} " in line for line in lines) for name in shown] == [1] * len(names)
    assert len(lines) == len(names)
    assert all(line.isprintable() for line in (*among.stderr.splitlines(), *among.stdout.splitlines()))


@pytest.mark.slow
def test_a_name_of_an_experiment_that_a_terminal_would_obey(tmp_path):
    runs = hostile.good_runs(tmp_path / "runs", "toy-stages")
    shutil.copytree(runs / "toy-stages", runs / hostile.ESCAPE)
    done = report(runs, tmp_path / "out")
    assert done.returncode == 0
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.stdout + done.stderr)
