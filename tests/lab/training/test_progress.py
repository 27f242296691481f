"""What is said, how often, and to whom."""

import io
import math
import subprocess
import sys

import pytest
import torch
from tests.lab.training.tasks import train_tiny

from rankrise.lab.training import PlainProgress, Report, RichProgress, show_progress
from rankrise.lab.training._progress import mean_stable_rank
from rankrise.tracking import Measurement

REPORT = Report(50, 100, 1, 2, rate=10.0, loss=0.25, accuracy=0.5, stable_rank=1.5)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_plain_lines_are_seldom_and_the_last_is_said():
    stream, clock = io.StringIO(), Clock()
    progress = PlainProgress(stream, clock=clock)
    for now in (0.0, 1.0, 4.9, 5.0, 6.0):
        clock.now = now
        progress.update(REPORT)
    line = "step 50/100, epoch 1/2: loss 0.2500, accuracy 50.0%, stable rank 1.50, 10.0 steps/s, 5 s left\n"
    assert stream.getvalue() == 2 * line
    progress.close()
    progress.close()
    assert stream.getvalue() == 3 * line


def test_bar():
    stream = io.StringIO()
    progress = RichProgress(stream)
    progress.update(REPORT)
    progress.close()
    assert "1/2" in stream.getvalue()
    assert "stable rank 1.50" in " ".join(stream.getvalue().split())


@pytest.mark.parametrize(("is_terminal", "kind"), [(True, RichProgress), (False, PlainProgress)])
def test_terminal_decides(monkeypatch, is_terminal, kind):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    progress = show_progress()
    progress.close()
    assert type(progress) is kind


def test_training_reports_and_closes(tmp_path):
    class Kept:
        reports, closed = [], 0

        def update(self, report):
            self.reports.append(report)

        def close(self):
            self.closed += 1

    kept = Kept()
    result = train_tiny(tmp_path, progress=kept)
    last = kept.reports[-1]
    assert (last.step, last.num_steps, last.epoch, last.num_epochs) == (15, 15, 3, 3)
    assert last.rate > 0
    assert last.remaining == 0
    assert last.loss > 0
    assert 0 <= last.accuracy <= 1
    assert 1 <= last.stable_rank <= 4
    assert kept.closed == 1
    assert result.status == "finished"


def test_mean_over_heads():
    ranks = Measurement("stable_rank", torch.tensor([[1.0, 2.0]]), layers=(0,), heads=True, circuit="kq")
    others = (
        Measurement("loss", torch.tensor(9.0)),
        Measurement("stable_rank", torch.tensor([[7.0]]), layers=(0,), heads=True, circuit="vo"),
        Measurement("stable_rank", torch.tensor([[math.nan]]), layers=(1,), heads=True, circuit="kq"),
        Measurement("stable_rank", torch.tensor([7.0]), layers=(0,), circuit="k"),
    )
    assert mean_stable_rank((ranks, *others)) == 1.5
    assert mean_stable_rank(others) is None


def test_import_loads_neither_torch_nor_rich():
    code = "import sys, rankrise.lab.training; print(*(m for m in ('torch', 'rich', 'numpy') if m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""
