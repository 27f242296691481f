"""A hundred thousand steps, each measured and written: neither memory nor the time of a call grows."""

import os
import resource
import statistics
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import rankrise as rr

STEPS, WINDOW = 100_000, 10_000


def held_bytes():
    """Memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Norms:
    """Measures two norms of the weights, so that a step costs little and 100,000 of them fit into two minutes."""

    def attach(self, model, head_map):
        self._weight = model.self_attn.in_proj_weight

    def read(self, step):
        heads = self._weight.detach().view(3, -1).square().sum(1)[None, :2]
        return [rr.tracking.Measurement("norm", heads, layers=(0,), heads=True, circuit="kq")]

    def detach(self):
        pass


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the memory that a process holds now is read from /proc")
def test_memory_and_time_per_call_stay_flat(tmp_path, record_property):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(4, 1, 4, batch_first=True)
    options = {"every": 1, "spectra": 10 * STEPS, "quantities": (), "probes": [Norms()], "strict": True}
    seconds, held = [], []
    with rr.RankTracker(model, tmp_path, **options) as tracker:
        for window in range(STEPS // WINDOW):
            begun = time.process_time()
            for step in range(window * WINDOW + 1, (window + 1) * WINDOW + 1):
                with torch.no_grad():
                    model.self_attn.in_proj_weight[0, 0] += 1e-4
                tracker.step(step, loss=1 / step)
            seconds.append(time.process_time() - begun)
            held.append(held_bytes())
        num_files = len(os.listdir("/proc/self/fd"))
    assert max(held[2:]) - held[1] < 20 * 2**20
    assert statistics.median(seconds[-3:]) < 1.5 * statistics.median(seconds[1:4])
    assert num_files < 100
    table = rr.load_run(tmp_path)
    assert table.num_rows == 3 * STEPS  # the loss and two norms
    record_property("growth after step 20000 (MB)", round((max(held[2:]) - held[1]) / 2**20, 2))
    record_property("ms a call", [round(1e3 * value / WINDOW, 3) for value in seconds])
