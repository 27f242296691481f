"""A run of anyone's own loop as data: curves, heads, stages, and what it says of itself."""

import sys
import types

import numpy as np
import pytest
import torch

import rankrise as rr
from rankrise.runs import NotMeasurable, RunData, check_run, find_runs, layer_means, read_together, sparkline
from rankrise.store import create_run, rows, scalar_rows

LAYERS = 2
HEADS = 3


def planted(folder, *, steps=range(1, 41), seal=True, heads=(HEADS, HEADS), config=None, diverges_at=None):
    """A run whose stable rank of layer 1 steps from 1 to 2 at step 20, and whose head 2 of layer 0 changed most."""
    layers = [
        {"index": n, "name": f"blocks.{n}", "num_heads": count, "head_dim": 4, "views": {}}
        for n, count in enumerate(heads)
    ]
    spec = {"kind": "tracker", "layers": layers, "notes": ["one note"], "config": config or {}}
    run = create_run(folder, spec=spec, initial={"w": torch.zeros(1)})
    for step in steps:
        run.append(scalar_rows([(step, "loss", 2.0 if step <= 20 else 1.0)]))
        for circuit in ("kq", "vo"):
            for layer, count in enumerate(heads):
                rank = np.full((1, count), 1.0 + (layer == 1 and circuit == "kq" and step > 20))
                norm = np.ones((1, count))
                norm[0, -1] += layer == 0
                if step == diverges_at:
                    rank[:] = np.nan
                where = {"circuit": circuit, "layers": (layer,), "heads": True}
                run.append(rows(step, "stable_rank", rank, **where))
                run.append(rows(step, "frobenius_norm", norm, **where))
    if seal:
        run.seal()
    else:
        run.close()
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return rr.open_run(planted(tmp_path_factory.mktemp("runs") / "mine"))


def test_quantities_of_one_step_are_read_side_by_side(tmp_path):
    run = rr.open_run(planted(tmp_path / "whole"))
    steps, (ranks, norms) = read_together(run, "stable_rank", "frobenius_norm", circuit="kq")
    assert steps.tolist() == list(range(1, 41))
    assert ranks.shape == norms.shape == (40, LAYERS * HEADS)
    assert ranks[-1].tolist() == [1.0] * HEADS + [2.0] * HEADS
    assert norms[0].tolist() == [1.0, 1.0, 2.0] + [1.0] * HEADS


def test_quantities_of_different_steps_are_refused(tmp_path):
    run = create_run(tmp_path, spec={"kind": "tracker", "config": {}}, initial={"w": torch.zeros(1)})
    run.append(scalar_rows([(0, "loss", 1.0), (1, "loss", 0.5), (1, "norm", 3.0)]))
    run.seal()
    assert read_together(rr.open_run(tmp_path), "loss")[1][0].tolist() == [[1.0], [0.5]]
    with pytest.raises(NotMeasurable, match="has `loss` and `norm` at different steps: run it again"):
        read_together(rr.open_run(tmp_path), "loss", "norm")


def test_a_curve_has_an_axis_for_everything_not_chosen(run):
    all_heads = run.curve("stable_rank", circuit="kq")
    assert (all_heads.values.shape, all_heads.layers, all_heads.heads, all_heads.index) == (
        (40, LAYERS, HEADS),
        (0, 1),
        (0, 1, 2),
        (),
    )
    one_layer = run.curve("stable_rank", circuit="kq", layer=1)
    assert one_layer.values.tolist() == all_heads.values[:, 1].tolist()
    one_head = run.curve("stable_rank", circuit="kq", layer=1, head=2)
    assert one_head.values.tolist() == [1.0] * 20 + [2.0] * 20
    assert run.curve("loss").values.tolist() == [2.0] * 20 + [1.0] * 20
    assert run.curve("loss").steps.tolist() == list(range(1, 41))


def test_the_rank_of_nothing_at_step_0_is_no_point_of_a_curve(tmp_path):
    run = rr.open_run(planted(tmp_path / "zero", steps=range(41)))
    _, steps, ranks = layer_means(run, "stable_rank", "kq")
    assert (steps.tolist(), ranks.shape) == (list(range(1, 41)), (40, LAYERS))
    assert layer_means(run, "frobenius_norm", "kq")[1][0] == 0
    assert all(len(row.curve) == 40 for row in run.overview().rows)


def test_a_wrong_path_is_answered_with_the_runs_that_are_there(tmp_path):
    planted(tmp_path / "runs" / "mine", steps=(1,))
    (tmp_path / "empty").mkdir()
    for path, message in {
        "runs": "has none. Open one of those below it: '.*/runs/mine'.$",
        "empty": "empty has none.$",
        "nowhere": "nowhere does not exist.$",
        "runs/mine/spec.json": "spec.json is a file.$",
    }.items():
        with pytest.raises(FileNotFoundError, match=message):
            rr.open_run(tmp_path / path)


def test_the_mean_of_a_curve_leaves_out_what_was_not_measured(tmp_path):
    uneven = rr.open_run(planted(tmp_path / "uneven", heads=(2, 3), diverges_at=7))
    curve = uneven.curve("frobenius_norm", circuit="kq")
    assert np.isnan(curve.values[:, 0, 2]).all()
    assert curve.mean().tolist() == pytest.approx([(1 + 2 + 3) / 5] * 40)
    assert np.isnan(uneven.curve("stable_rank", circuit="kq").mean()[6])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quantity": "stabel_rank"}, r"has no quantity 'stabel_rank'.*Did you mean 'stable_rank'\?"),
        ({"quantity": "stable_rank"}, r"`circuit` must say which `stable_rank` is meant; .* has 'kq', 'vo'"),
        ({"quantity": "stable_rank", "circuit": "qk"}, r"has no `stable_rank` of circuit 'qk'\. It has 'kq', 'vo'\."),
        ({"quantity": "stable_rank", "circuit": "kq", "layer": 2}, r"of layer 2; it has 0 to 1\."),
        ({"quantity": "stable_rank", "circuit": "kq", "head": -1}, r"of head -1; it has 0 to 2\."),
        ({"quantity": "loss", "head": 0}, r"of head 0; it has none\."),
    ],
)
def test_what_a_run_lacks_is_said_with_what_it_has(run, arguments, message):
    with pytest.raises(NotMeasurable, match=message):
        run.curve(**arguments)


def test_names_from_somebody_else_are_cut_in_messages(tmp_path):
    run = create_run(tmp_path / "long", spec={}, initial={"w": torch.zeros(1)})
    for number in range(30):
        run.append(rows(1, "loss", [1.0], circuit=f"{number:02d}" + "x" * 200))
    run.close()
    with pytest.raises(NotMeasurable, match=rf"'00{'x' * 37}, .* and 6 more\.$") as caught:
        rr.open_run(tmp_path / "long").curve("loss")
    assert len(str(caught.value)) < 1300


def test_heads_are_ranked_by_what_they_learned(run):
    heads = run.heads()
    assert len(heads) == LAYERS * HEADS
    assert (heads[0].layer, heads[0].head) == (0, 2)
    assert heads[0].learned == pytest.approx(2 / (7 / 6))
    assert heads[0].norms == {"kq": 2.0, "vo": 2.0}
    assert {change.ranks["kq"] for change in run.heads(layer=1)} == {2.0}


def test_a_run_without_norms_cannot_rank_heads(tmp_path):
    run = create_run(tmp_path / "bare", spec={}, initial={"w": torch.zeros(1)})
    run.append(scalar_rows([(1, "loss", 0.5)]))
    run.seal()
    bare = rr.open_run(tmp_path / "bare")
    with pytest.raises(NotMeasurable, match="by which heads are ranked"):
        bare.heads()
    assert "no attention tracked, steps 1 to 1, loss 0.5" in repr(bare)


def test_stages_of_the_loss_and_of_the_rank_of_a_layer(run):
    loss, rank = sorted(run.stages(), key=lambda stage: stage.kind)
    assert (loss.kind, loss.layer, loss.circuit) == ("loss", None, "")
    assert (rank.kind, rank.layer, rank.circuit) == ("rank", 1, "kq")
    assert abs(loss.step - 20.5) < 1
    assert abs(rank.step - 20.5) < 1
    assert rank.size == pytest.approx(1.0, abs=0.05)


def test_a_loss_of_every_head_shows_no_stages(tmp_path):
    run = create_run(tmp_path, spec={}, initial={"w": torch.zeros(1)})
    for step in range(30):
        run.append(rows(step, "loss", [[1.0, 2.0]], circuit="kq", layers=[0]))
    run.seal()
    assert rr.open_run(tmp_path).stages() == ()


def test_a_short_run_shows_no_stages(tmp_path):
    assert rr.open_run(planted(tmp_path / "short", steps=range(1, 6))).stages() == ()


def test_a_run_says_what_was_tracked_and_how_far_it_is(run):
    text = repr(run)
    assert "mine: finished, 2 layers × 3 heads, steps 1 to 40, loss 1" in text
    assert "stable rank of Δ kq by layer: 1.00 2.00" in text
    assert "1 rises of a layer's rank, 1 drops of the loss" in text
    assert len(text) < 600
    assert run._repr_html_().count("<tr>") == 1 + 2 * LAYERS


def test_names_in_a_notebook_are_text(tmp_path):
    run = rr.open_run(planted(tmp_path / "<script>alert(1)"))
    assert "<script>" not in run._repr_html_()


def test_a_damaged_run_has_a_repr(tmp_path):
    folder = planted(tmp_path / "mine")
    next(folder.glob("*.parquet")).write_bytes(b"nothing")
    assert "damaged" in repr(RunData(folder))
    assert "<pre>" in RunData(folder)._repr_html_()


def test_states(tmp_path):
    planted(tmp_path / "done")
    planted(tmp_path / "cut", seal=False)
    planted(tmp_path / "hurt")
    next((tmp_path / "hurt").glob("*.parquet")).write_bytes(b"nothing")
    live = create_run(tmp_path / "live", spec={}, initial={"w": torch.zeros(1)})
    states = {found.folder.name: found.state for found in find_runs(tmp_path)}
    assert states == {"done": "finished", "cut": "stopped", "hurt": "damaged", "live": "running"}
    assert rr.open_run(tmp_path / "live").state == "running"
    assert "nothing recorded yet" in repr(rr.open_run(tmp_path / "live"))
    live.close()
    assert rr.open_run(tmp_path / "cut").state == "stopped"


def test_a_list_of_runs_reads_no_weights_and_looks_for_no_stages(tmp_path, monkeypatch):
    planted(tmp_path / "mine")
    (tmp_path / "mine" / "initial.safetensors").write_bytes(b"nothing")
    monkeypatch.setattr(RunData, "stages", None)
    (found,) = find_runs(tmp_path)
    assert (found.state, check_run(tmp_path / "mine").state) == ("finished", "damaged")
    assert found.data.progress().words == "finished, 2 layers × 3 heads, steps 1 to 40, loss 1"


def test_a_run_that_diverged_keeps_its_whole_steps(tmp_path):
    folder = planted(tmp_path / "mine", diverges_at=7)
    with pytest.raises(NotMeasurable, match="not a finite number"):
        RunData(folder).path("stable_rank", "kq")
    recorded = RunData(folder, skip_broken_steps=True).path("stable_rank", "kq")
    assert 7 not in recorded.steps
    assert len(recorded.steps) == 39


def test_heads_may_differ_by_layer(tmp_path):
    run = rr.open_run(planted(tmp_path / "uneven", heads=(2, 3)))
    values = run.path("frobenius_norm", "kq").values
    assert np.isnan(values[:, 0, 2]).all()
    layers, _, means = layer_means(run, "frobenius_norm", "kq")
    assert (tuple(layers), means[-1].tolist()) == ((0, 1), [1.5, 1.0])
    assert "2 layers × 2 to 3 heads" in repr(run)


def test_the_long_table_goes_to_pandas(run):
    frame = run.to_pandas()
    assert list(frame.columns) == run.table.column_names
    assert len(frame) == run.table.num_rows


def test_the_long_table_goes_to_polars(run, monkeypatch):
    polars = types.ModuleType("polars")
    polars.from_arrow = lambda table: ("a polars frame of", table)
    monkeypatch.setitem(sys.modules, "polars", polars)
    assert run.to_polars() == ("a polars frame of", run.table)


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_a_missing_package_for_frames_is_one_sentence(run, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"needs {name}, which is not installed. Install it: pip install {name}"):
        getattr(run, f"to_{name}")()


def test_sparkline_of_a_long_curve_is_short():
    assert len(sparkline(list(range(1000)))) == 24
    assert sparkline([2.0, 2.0]) == "▁▁"
