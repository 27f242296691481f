"""Losses come back late but complete."""

import math

import torch

from rankrise.lab.training._readback import Readback


def reader(window):
    readback = Readback(torch.device("cpu"), 4)
    readback._window = window  # as on a GPU
    return readback


def test_on_the_cpu_everything_is_known_at_once():
    readback = reader(1)
    readback.add(1, torch.tensor([0.5, 3.0]))
    assert (readback.loss, readback.accuracy, readback.diverged_at) == (0.5, 0.75, None)
    readback.add(2, torch.tensor([math.inf, 3.0]))
    assert readback.diverged_at == 2


def test_on_a_gpu_a_window_late():
    readback = reader(3)
    for step in range(1, 6):
        readback.add(step, torch.tensor([float(step) if step != 2 else math.nan, 0.0]))
    assert math.isnan(readback.loss)
    assert readback.diverged_at is None
    readback.add(6, torch.tensor([6.0, 0.0]))  # the first three have come
    assert (readback.loss, readback.diverged_at) == (3.0, 2)
    readback.add(7, torch.tensor([math.nan, 0.0]))
    readback.settle()
    assert math.isnan(readback.loss)
    assert readback.diverged_at == 2  # the first
    readback.settle()
