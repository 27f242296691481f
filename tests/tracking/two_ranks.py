"""One rank of a distributed training, for `test_distributed`: python -m tests.tracking.two_ranks KIND RANK FOLDER."""

import os
import sys
import warnings
from pathlib import Path

import torch
from tests.tracking.models import small_model
from torch.nn.parallel import DistributedDataParallel

import rankrise as rr

STEPS = 4


def train(model, tracker, *, rank=0, size=1):
    """Each rank takes its share of a batch of four."""
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(1, STEPS + 1):
        x = torch.randn(4, 5, 12, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        x = x.chunk(size)[rank]
        (model(x) - x.flip(1)).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
        tracker.step(step)


def main(kind, rank, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model = small_model(dropout=0.0, dtype=torch.float64)
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    if kind == "fsdp-full-disk" and rank == 0:
        os.environ["RANKRISE_FAILPOINT"] = "spec.write:full"
        warnings.simplefilter("ignore", rr.tracking.TrackingWarning)
    with rr.RankTracker(model, folder / "run", every=1, spectra=2) as tracker:
        assert tracker._is_sharded == (kind != "ddp")
        tracker.estimate()
        train(model, tracker, rank=rank, size=2)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
