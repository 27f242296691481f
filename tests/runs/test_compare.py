"""Several runs side by side, each under a label of its own."""

import pytest
from tests.runs.test_open_run import planted

import rankrise as rr


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return [planted(root / name, config={"lr": lr, "seed": 0}) for name, lr in (("a", 0.1), ("b", 0.2))]


def test_labels_are_the_field_that_differs(folders):
    assert list(rr.compare(folders).runs) == ["lr = 0.1", "lr = 0.2"]


def test_labels_of_runs_without_such_a_field_are_their_folders(tmp_path):
    folders = [planted(tmp_path / part / "run") for part in ("x", "y")]
    assert list(rr.compare(folders).runs) == ["x/run", "y/run"]


def test_a_field_that_only_some_runs_have_is_no_label(folders, tmp_path):
    other = planted(tmp_path / "other")
    assert list(rr.compare([folders[0], other]).runs) == ["a", "other"]


def test_the_same_run_twice_has_two_labels(folders):
    assert list(rr.compare([folders[0], folders[0]]).runs) == ["a (1)", "a (2)"]


def test_labels_of_ones_own(folders):
    runs = rr.compare({"slow": folders[0], "fast": rr.open_run(folders[1])})
    curves = runs.curve("stable_rank", circuit="kq", layer=1)
    assert {label: curve.values.shape for label, curve in curves.items()} == {"slow": (40, 3), "fast": (40, 3)}
    assert repr(runs).splitlines()[0].startswith(f"slow  {folders[0].parent.name}/a: finished, 2 layers × 3 heads")


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        rr.compare([tmp_path / "nothing-here"])


def test_one_path_is_no_list_of_runs():
    with pytest.raises(ValueError, match=r"got one path. Write \['runs/a'\]"):
        rr.compare("runs/a")
