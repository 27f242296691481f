"""Lightning, under both of its names: tracked, stopped, resumed."""

import importlib
import pickle
import sys

import pytest
import torch
from tests.tracking.integrations.boards import assert_board_has_the_run
from tests.tracking.models import in_order, select, small_model

import rankrise as rr

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # several seconds of import, and its own warnings


def callback_of(out, **options):
    """A callback of both names; Lightning is imported here because that takes seconds."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        importlib.import_module(name)
    return importlib.import_module("rankrise.tracking.integrations.lightning").RankCallback(out, **options)


def logger_of(folder):
    return importlib.import_module("lightning.pytorch.loggers").TensorBoardLogger(folder / "board")


def train(namespace, folder, *, steps, resume=None, accumulate=1, logger=False, every=1):
    pl = importlib.import_module(namespace)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = small_model(dropout=0.0)

        def training_step(self, batch, _):
            return (self.model(batch) - batch.flip(1)).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    data = torch.randn(16, 5, 12, generator=torch.Generator().manual_seed(0))
    callback = callback_of(folder / "run", every=every, spectra=2)
    assert isinstance(callback, pl.Callback)
    trainer = pl.Trainer(
        max_steps=steps, accelerator="cpu", logger=logger, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[callback], default_root_dir=folder, enable_checkpointing=False, accumulate_grad_batches=accumulate,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=2), ckpt_path=resume)
    return trainer


@pytest.mark.parametrize("namespace", ["lightning.pytorch", "pytorch_lightning"])
def test_tracked_and_resumed(tmp_path, namespace):
    train(namespace, tmp_path / "whole", steps=6)
    whole = rr.load_run(tmp_path / "whole" / "run")
    assert set(whole["step"].to_pylist()) == set(range(1, 7))
    assert select(whole, quantity="loss").size == 6
    assert select(whole, quantity="learning_rate").tolist() == pytest.approx([0.1] * 6)

    trainer = train(namespace, tmp_path / "cut", steps=4)
    trainer.save_checkpoint(tmp_path / "four.ckpt")
    train(namespace, tmp_path / "cut", steps=6, resume=tmp_path / "four.ckpt")
    resumed = rr.load_run(tmp_path / "cut" / "run")
    before = [t.filter(t["step"].to_numpy() <= 4) for t in (resumed, whole)]
    assert in_order(before[0]).equals(in_order(before[1]))
    assert set(resumed["step"].to_pylist()) == set(range(1, 7))
    assert (
        rr.store.load_initial(tmp_path / "cut" / "run").keys()
        == rr.store.load_initial(tmp_path / "whole" / "run").keys()
    )


def test_accumulated_gradients_count_as_one_step(tmp_path):
    train("lightning.pytorch", tmp_path, steps=3, accumulate=2)
    assert select(rr.load_run(tmp_path / "run"), quantity="loss").size == 3


def test_both_names_at_once(tmp_path):
    first, second = (importlib.import_module(name) for name in ("lightning.pytorch", "pytorch_lightning"))
    callback = callback_of(tmp_path)
    assert isinstance(callback, first.Callback)
    assert isinstance(callback, second.Callback)
    assert {"lightning.pytorch", "pytorch_lightning"} <= sys.modules.keys()


def test_callback_can_be_pickled(tmp_path):
    copy = pickle.loads(pickle.dumps(callback_of(tmp_path, every=7)))
    assert copy._out == tmp_path
    assert copy._options == {"every": 7}
    assert copy.tracker is None


def test_the_trainers_own_logger_has_the_numbers_of_the_run(tmp_path):
    logger = logger_of(tmp_path)
    train("lightning.pytorch", tmp_path, steps=6, logger=logger, every=2)  # log_every_n_steps is 50
    assert_board_has_the_run(tmp_path / "board", tmp_path / "run")


def test_a_clock_that_never_strikes_still_reaches_the_logger(tmp_path):
    logger = logger_of(tmp_path)
    train("lightning.pytorch", tmp_path, steps=1, logger=logger, every=200)
    assert_board_has_the_run(tmp_path / "board", tmp_path / "run")
