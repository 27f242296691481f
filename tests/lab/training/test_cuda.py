"""On a GPU: steps do not wait for it, compiled or not; a resumed run comes to the same; switches are put back."""

import dataclasses

import numpy as np
import pytest
import torch
from tests.lab.training.tasks import RECIPE, BreaksAt, Interrupted, tiny_data, tiny_model
from tests.tracking.models import in_order

from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.training import Processes, build_optimiser, train
from rankrise.lab.training._step import Readback, build_step
from rankrise.store import find_checkpoint, load_run
from rankrise.tracking import TrackingWarning

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),  # advice of the compiler
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),  # where a graph has nothing to record
]
CUDA = torch.device("cuda")


def train_on_gpu(out, config=RECIPE, *, data=None, **options):
    return train(tiny_model(), tiny_data() if data is None else data, config, out=out, device="cuda", **options)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature:UserWarning")
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_steps_do_not_wait(precision, compile):
    config = dataclasses.replace(RECIPE, precision=precision, clip_norm=1.0)
    model = tiny_model().cuda()
    data = load_dataset(DataConfig("digits", num_train=320, augment=("crop",)), root=None).to("cuda")
    optimiser = build_optimiser(model, config, CUDA)
    parts = {"task": "classify", "device": CUDA, "processes": Processes(), "compile": compile}
    step = build_step(model, optimiser, config, **parts)
    readback, totals = Readback(CUDA, 16), torch.zeros(2, dtype=torch.float64, device="cuda")
    first = data.train_batches(batch_size=16, seed=0, epoch=0)
    for _ in range(8):  # compile, make the optimiser's state, record graphs
        step(next(first), 1e-3)
    try:
        torch.cuda.set_sync_debug_mode("error")
        for n, batch in enumerate(first):
            metrics = step(batch, 1e-3 / (n + 1))
            totals += metrics
            readback.add(n + 1, metrics)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    readback.settle()
    assert readback.diverged_at is None
    assert 0 < readback.loss < 10


@pytest.mark.parametrize("compile", [False, True])
def test_same_as_on_the_cpu(tmp_path, compile):
    on_cpu = train(tiny_model(), tiny_data(), RECIPE, out=tmp_path / "cpu", device="cpu")
    on_gpu = train_on_gpu(tmp_path / "gpu", compile=compile)
    assert (on_gpu.status, on_gpu.step) == ("finished", 15)
    assert on_gpu.test_loss == pytest.approx(on_cpu.test_loss, rel=1e-3)
    tables = [in_order(load_run(tmp_path / place)) for place in ("cpu", "gpu")]
    assert tables[0].drop_columns("value").equals(tables[1].drop_columns("value"))


def test_resumed(tmp_path):
    train_on_gpu(tmp_path / "whole", compile=False)
    with pytest.raises(Interrupted):
        train_on_gpu(tmp_path / "resumed", data=BreaksAt(tiny_data().to("cuda"), 9), checkpoint_every=4, compile=False)
    train_on_gpu(tmp_path / "resumed", compile=False)
    tables = [in_order(load_run(tmp_path / name)) for name in ("whole", "resumed")]
    assert tables[0].drop_columns("value").equals(tables[1].drop_columns("value"))
    values = [t["value"].to_numpy() for t in tables]
    np.testing.assert_allclose(values[1], values[0], rtol=1e-2, atol=1e-4)
    last = find_checkpoint(tmp_path / "resumed")[0]
    assert {t.item() for name, t in last.optimiser.items() if name.startswith("step/")} == {15.0}


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_switches_are_put_back(tmp_path, precision):
    def switches():
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    before = switches()
    result = train_on_gpu(tmp_path, dataclasses.replace(RECIPE, precision=precision, accumulate=2), compile=False)
    assert result.status == "finished"
    assert switches() == before


def test_nan_is_found_before_it_is_saved(tmp_path):
    class Poisoned(BreaksAt):
        def train_batches(self, **options):
            for batch in self._data.train_batches(**options):
                self._left -= 1
                yield batch._replace(inputs=batch.inputs * float("nan")) if self._left == 0 else batch

    with pytest.warns(TrackingWarning, match="The weights must be finite"):
        result = train_on_gpu(tmp_path, data=Poisoned(tiny_data().to("cuda"), 7), checkpoint_every=4, compile=False)
    assert result.status == "diverged"
    assert "at step 7. The last good checkpoint is of step 4" in result.message
