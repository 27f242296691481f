"""What the user names: a model, several in their order, or a folder that holds both a model and its checkpoints."""

import re

import pytest
from tests.checkpoints import files

from rankrise.checkpoints import diff, plan_diff
from rankrise.checkpoints.files._checkpoint import Checkpoint


@pytest.fixture
def trainer(tmp_path):
    """A base, and a Trainer's folder with three checkpoints and the final model."""
    base = files.weights()
    files.save(tmp_path / "base", base)
    for n in (1, 2, 3):
        files.save(tmp_path / "run" / f"checkpoint-{100 * n}", files.tuned(base, size=0.01 * n))
    files.save(tmp_path / "run", files.tuned(base, size=0.04))
    return tmp_path


def test_a_final_model_beside_its_checkpoints_is_said(trainer):
    plan = plan_diff(trainer / "base", trainer / "run")
    assert [step.path.name for step in plan.steps] == ["run"]
    (note,) = plan.preflights[0].notes
    assert note == "run is read as one model; for the checkpoints in it name each, such as checkpoint-100"
    found = diff(plan, summary=True)
    assert found.notes == (note,)
    assert found.totals[0].relative == pytest.approx(0.04, rel=0.1)


def test_the_series_beside_a_final_model_is_said(trainer):
    plan = plan_diff(trainer / "run")
    assert [step.step for step in plan.steps] == [200, 300]
    assert plan.preflights[0].notes[0].startswith("run is read as its 3 numbered checkpoints; name a base")


def test_a_folder_of_one_kind_needs_no_note(trainer):
    (trainer / "run" / "model.safetensors").unlink()
    plan = plan_diff(trainer / "base", trainer / "run")
    assert [step.step for step in plan.steps] == [100, 200, 300]
    plans = (plan, plan_diff(trainer / "run"), plan_diff(trainer / "base", trainer / "run" / "checkpoint-100"))
    assert all(preflight.notes == () for plan in plans for preflight in plan.preflights)


def test_given_names_keep_their_order_and_are_given_once(trainer):
    for old, new in (("checkpoint-100", "epoch0-step400"), ("checkpoint-200", "epoch1-step100")):
        (trainer / "run" / old).rename(trainer / "run" / new)
    paths = [trainer / "run" / name for name in ("epoch0-step400", "epoch1-step100")]
    plan = plan_diff(trainer / "base", paths)
    assert [(step.step, step.path.name) for step in plan.steps] == [(1, "epoch0-step400"), (2, "epoch1-step100")]
    with pytest.raises(ValueError, match="must be named once; got 3 names of 2 checkpoints"):
        plan_diff(trainer / "base", [*paths, paths[0]])


def test_layers_that_an_adapter_leaves_alone_are_not_read(tmp_path, monkeypatch):
    base = files.save(tmp_path / "base", files.weights())
    files.save_peft(tmp_path / "a", {"model.layers.1.self_attn.q_proj": (16, 16)})
    read, reading = [], Checkpoint.read_weight

    def spy(self, name, *rows):
        read.append(name)
        return reading(self, name, *rows)

    monkeypatch.setattr(Checkpoint, "read_weight", spy)
    found = diff(base, tmp_path / "a")
    assert {(row.layer, row.circuit): row.status for row in found.circuits()} == {
        (0, "kq"): "identical",
        (0, "vo"): "identical",
        (1, "kq"): "changed",
        (1, "vo"): "identical",
    }
    assert set(read) == {f"model.layers.1.self_attn.{p}_proj.weight" for p in "qk"}


@pytest.mark.parametrize("heads", [True, False])
def test_the_page_fits_a_phone(trainer, heads):
    found = diff(trainer / "base", [trainer / "run" / f"checkpoint-{n}" for n in (100, 200)], heads=heads)
    found.write_html(trainer / "d.html")
    page = (trainer / "d.html").read_text()
    drawings = re.findall(r'(<div class="wide">)?<svg([^>]*)>', page)
    assert len(drawings) > 5
    for wide, attributes in drawings:
        width, height = re.search(r'width="(\d+)" height="(\d+)"', attributes).groups()
        assert wide or f'class="fit" width="{width}" height="{height}" viewBox="0 0 {width} {height}"' in attributes
    assert ".fit{max-width:100%;height:auto}" in page
