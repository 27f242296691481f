"""`tracker.live()` draws the run in the cell of a notebook, and warns where there is no notebook."""

import sys
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

import rankrise as rr
from rankrise.tracking import TrackingWarning


@pytest.fixture
def notebook(monkeypatch):
    """Stands in for IPython with a kernel; gives the list of everything that the cell has shown."""
    shown = []
    display = ModuleType("IPython.display")
    display.HTML = lambda text: text
    display.display = lambda text, display_id: SimpleNamespace(update=shown.append)
    shell = ModuleType("IPython")
    shell.get_ipython = lambda: SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def train(tracker, model, steps):
    for step in steps:
        with torch.no_grad():
            model.in_proj_weight += torch.randn(24, 8)
        tracker.step(step, loss=1 / step)


def test_the_cell_shows_the_curves_as_they_grow(notebook, tmp_path):
    model = torch.nn.MultiheadAttention(8, 2, bias=False)
    with rr.RankTracker(model, out=tmp_path / "<img src=x>", every=1) as tracker:
        tracker.live(seconds=0)
        train(tracker, model, range(1, 4))
        before_end = len(notebook)
    assert before_end >= 3
    assert len(notebook) == before_end + 1
    assert "running · step 3" in notebook[before_end - 1]
    assert "finished · step 3" in notebook[-1]
    for text in notebook:
        assert "<img" not in text
        ElementTree.fromstring(text)  # every tag is closed
    last = ElementTree.fromstring(notebook[-1])
    titles = [svg.findall("text")[-1].text for svg in last.iter("svg")]
    assert titles == ["loss", "stable rank of kq", "stable rank of vo"]
    assert all(len(line.get("points").split()) == 3 for line in last.iter("polyline"))


def test_one_measurement_is_a_dot(notebook, tmp_path):
    model = torch.nn.MultiheadAttention(8, 2, bias=False)
    with rr.RankTracker(model, out=tmp_path / "run", every=1) as tracker:
        tracker.live(seconds=0)
        train(tracker, model, [1])
    assert len(list(ElementTree.fromstring(notebook[-1]).iter("circle"))) == 3


def test_it_is_not_drawn_at_every_step(notebook, tmp_path):
    model = torch.nn.MultiheadAttention(8, 2, bias=False)
    with rr.RankTracker(model, out=tmp_path / "run", every=1) as tracker:
        tracker.live(seconds=1000)
        train(tracker, model, range(1, 20))
        assert len(notebook) == 1


def test_what_fails_in_the_cell_does_not_end_the_training(notebook, tmp_path, monkeypatch):
    monkeypatch.setattr("rankrise.tracking._live.run_cell", lambda *args, **options: 1 / 0)
    model = torch.nn.MultiheadAttention(8, 2, bias=False)
    with rr.RankTracker(model, out=tmp_path / "run", every=1) as tracker:
        tracker.live(seconds=0)
        with pytest.warns(TrackingWarning, match="LiveCell failed: division by zero"):
            train(tracker, model, range(1, 4))
    assert rr.open_run(tmp_path / "run").curve("loss").steps.tolist() == [1, 2, 3]


def test_outside_a_notebook_it_says_what_to_do(tmp_path):
    model = torch.nn.MultiheadAttention(8, 2, bias=False)
    with rr.RankTracker(model, out=tmp_path / "run", every=1) as tracker:
        with pytest.warns(TrackingWarning, match=r"this is none\. In a terminal: rankrise serve .*run$"):
            tracker.live()
        train(tracker, model, range(1, 4))
