"""The result: paired intervals on planted numbers, rates chosen by validation loss alone, tables that say what is."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from studies.prediction_result import Prediction, paired_difference, prediction_lines, read_prediction
from studies.prediction_stages import StageRecord, chosen_rate, read_stages, stage_rows

from rankrise.store import create_run

LIBRARY = {"python": "3.12.0", "num_files": {"train": 1}, "num_tokens": {"train": 9}, "sha256": "ab"}


@pytest.mark.parametrize(("shift", "verdict"), [(-0.05, "better"), (0.05, "worse"), (0.0, "undecided")])
def test_interval_of_planted_pairs(shift, verdict):
    rng = np.random.default_rng(0)
    b = 3 + rng.normal(size=6)  # networks differ a lot, methods a little
    a = b + shift + 0.01 * rng.normal(size=6)
    pair = paired_difference("a", "b", a.tolist(), b.tolist())
    assert pair.verdict == verdict
    oracle = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (pair.low, pair.high) == pytest.approx((oracle.low, oracle.high))
    back = paired_difference("b", "a", b.tolist(), a.tolist())
    assert (back.mean, back.low, back.high) == pytest.approx((-pair.mean, -pair.high, -pair.low))


def test_pairs_must_be_pairs():
    with pytest.raises(ValueError, match="two pairs or more; got 1 and 1"):
        paired_difference("a", "b", [1.0], [2.0])


def planted(advised=2.0, uniform=2.2, adalora=1.9):
    """Repetition 0 with two rates, whose test losses would choose otherwise, and two more."""
    done = []

    def add(repetition, stage, ranks=None, **scalars):
        done.append(StageRecord(len(done), repetition, stage, {"seconds": 1.0, **scalars}, ranks or {}))

    for repetition in range(3):
        add(repetition, "pretrain", validation_loss=4.0, test_loss=4.0 + repetition)
        add(repetition, "tune", {"blocks.0.attn.qkv": 3}, validation_loss=1.0, test_loss=1.0, parameters=30)
        for stage, loss in (("advised", advised), ("uniform", uniform), ("adalora", adalora)):
            for rate, worse in ((1e-3, 0.5), (2e-3, 0.0), (4e-3, 0.3)) if repetition == 0 else ((2e-3, 0.0),):
                losses = {"validation_loss": loss + worse, "test_loss": loss - worse + repetition / 100}
                add(repetition, stage, {"blocks.1.mlp_in": 2}, learning_rate=rate, parameters=20 + repetition, **losses)
    return done


def write_run(folder, done, num_seeds=2):
    spec = {"kind": "prediction", "config": {"spec": {"num_seeds": num_seeds}}, "library": LIBRARY}
    run = create_run(folder, spec=spec, initial={})
    for record in done:
        run.append(stage_rows(record))
    run.seal()
    return folder


def test_stages_go_through_the_table(tmp_path):
    import pyarrow as pa

    done = planted()
    table = pa.Table.from_batches([stage_rows(record) for record in done])
    assert read_stages(table) == done


def test_rate_is_chosen_by_validation_loss():
    done = planted()
    tests = {
        r.scalars["learning_rate"]: r.scalars["test_loss"] for r in done if r.stage == "advised" and not r.repetition
    }
    assert min(tests, key=tests.get) == 1e-3
    assert chosen_rate(done, "advised") == 2e-3


def test_result_of_a_run(tmp_path):
    result = read_prediction(write_run(tmp_path, planted()))
    rows = {row.stage: row for row in result.methods}
    assert rows["advised"].test_losses == pytest.approx((2.01, 2.02))  # repetition 0 is not reported
    assert rows["pretrain"].test_losses == (5.0, 6.0)
    assert (rows["advised"].learning_rate, rows["advised"].parameters, rows["advised"].is_bracketed) == (
        2e-3,
        21.5,
        True,
    )
    assert [(pair.second, pair.verdict) for pair in result.differences] == [("uniform", "better"), ("adalora", "worse")]
    assert [pair.mean for pair in result.differences] == pytest.approx([-0.2, 0.1])
    text = "\n".join(prediction_lines(result))
    assert "| advised − uniform | -0.2000 | -0.2000 to -0.2000 | 2 | advised is better |" in text
    assert "| advised − AdaLoRA | +0.1000 | +0.1000 to +0.1000 | 2 | advised is worse |" in text
    assert Prediction.from_json(result.to_json()) == result


def test_a_best_rate_at_the_edge_is_said(tmp_path):
    done = [r for r in planted() if r.repetition or r.scalars.get("learning_rate") != 4e-3]
    result = read_prediction(write_run(tmp_path, done))
    assert not any(row.is_bracketed for row in result.methods if row.learning_rate)
    assert "0.002, the last that was tried" in "\n".join(prediction_lines(result))


def test_a_run_that_is_not_finished_or_another_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must be finished; 2 of 3 repetitions are whole\. Start it again"):
        read_prediction(write_run(tmp_path / "short", planted(), num_seeds=3))
    create_run(tmp_path / "other", spec={"kind": "theory"}, initial={}).seal()
    with pytest.raises(ValueError, match="must hold a run of lora-prediction"):
        read_prediction(tmp_path / "other")


def test_a_run_that_was_cut_off_counts_as_far_as_it_is_whole(tmp_path):
    cut = [r for r in planted() if (r.repetition, r.stage) != (2, "adalora")]
    cut += [replace(r, step=r.step + 20, repetition=3) for r in planted() if r.repetition == 2]
    result = read_prediction(write_run(tmp_path / "cut", cut, num_seeds=5), unfinished=True)
    assert [pair.n for pair in result.differences] == [2, 2]
    assert result.methods[0].test_losses == (5.0, 6.0)  # of repetitions 1 and 3; 2 is not whole
    assert prediction_lines(result)[-1] == "The run was cut off: 2 of 5 planned seeds are whole."
    whole = read_prediction(write_run(tmp_path / "whole", planted()), unfinished=True)
    assert "cut off" not in "".join(prediction_lines(whole))
