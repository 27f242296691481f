"""HF Trainer end to end: a small GPT-2 on text, tracked, killed, resumed; the table is that of an uninterrupted run."""

import gc
import os
import pickle
import signal
import types
import weakref

import pytest
import torch
import transformers
from tests.processes import exit_code
from tests.tracking.integrations.boards import assert_board_has_the_run, scalars
from tests.tracking.models import in_order, small_model

import rankrise as rr
from rankrise.tracking import TrackingWarning
from rankrise.tracking.integrations.huggingface import RankCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
STEPS, SAVE, LENGTH = 8, 3, 32
TEXT = """Trained from small weights, a transformer learns in stages, and each stage adds at most one rank to what its
heads have learned. Between them the loss hardly moves; then one more direction grows out of nothing, and it falls. """


def windows(text):
    """Bytes of the text, cut into windows."""
    ids = torch.tensor(list(text.encode()))
    return [{"input_ids": w, "labels": w} for w in ids[: len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH)]


class KillAt(transformers.TrainerCallback):
    """A power cut, as far as the process can tell."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def trainer_of(folder, dataset, callbacks=(), **options):
    transformers.set_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, n_positions=LENGTH, vocab_size=256, bos_token_id=0, eos_token_id=0
    )
    options = {"logging_steps": 1, "report_to": "none", "save_steps": SAVE, **options}
    arguments = transformers.TrainingArguments(
        str(folder / "hf"), max_steps=STEPS, per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True,
        disable_tqdm=True, **options,
    )  # fmt: skip
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config), arguments, train_dataset=dataset, callbacks=list(callbacks)
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def train(folder, dataset, *, kill_at=None, resume=None):
    callbacks = [RankCallback(folder / "run", every=1, spectra=2)]
    if kill_at is not None:
        callbacks.append(KillAt(kill_at))
    trainer_of(folder, dataset, callbacks).train(resume_from_checkpoint=resume)


def killed_and_resumed_equals_uninterrupted(tmp_path, dataset):
    train(tmp_path / "whole", dataset)
    whole = rr.load_run(tmp_path / "whole" / "run")
    cut = tmp_path / "cut"
    assert exit_code(lambda: train(cut, dataset, kill_at=5)) == -signal.SIGKILL
    table = rr.load_run(cut / "run")
    assert max(table["step"].to_pylist()) == 5  # readable as it lies there
    with pytest.warns(TrackingWarning, match=r"goes on from the checkpoint of step 3: .* at 2 later steps was dropped"):
        train(cut, dataset, resume=str(cut / "hf" / f"checkpoint-{SAVE}"))
    assert in_order(rr.load_run(cut / "run")).equals(in_order(whole))
    assert {"loss", "learning_rate", "grad_norm", "stable_rank", "spectrum"} <= set(whole["quantity"].to_pylist())
    assert set(whole["step"].to_pylist()) == set(range(1, STEPS + 1))


def test_killed_and_resumed(tmp_path):
    killed_and_resumed_equals_uninterrupted(tmp_path, windows(TEXT * 8))


@pytest.mark.slow
def test_killed_and_resumed_on_wikitext(tmp_path, data_folder):
    text = (data_folder / "wikitext-2" / "wiki.train.tokens").read_text(encoding="utf-8")[:100_000]
    killed_and_resumed_equals_uninterrupted(tmp_path, windows(text))


def test_killed_before_the_first_checkpoint_starts_over(tmp_path):
    dataset = windows(TEXT * 8)
    assert exit_code(lambda: train(tmp_path, dataset, kill_at=2)) == -signal.SIGKILL
    with pytest.warns(rr.tracking.TrackingWarning, match=r"is started over: \d+ rows to step 2 were dropped"):
        train(tmp_path, dataset)
    assert max(rr.load_run(tmp_path / "run")["step"].to_pylist()) == STEPS


def test_checkpoint_without_its_run_is_refused(tmp_path):
    dataset = windows(TEXT * 8)
    train(tmp_path, dataset)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="must hold the run with its initial weights; there is none"):
        train(tmp_path, dataset, resume=str(tmp_path / "hf" / f"checkpoint-{SAVE}"))


def test_callback_can_be_pickled(tmp_path):
    copy = pickle.loads(pickle.dumps(RankCallback(tmp_path, every=7)))
    assert copy._out == tmp_path
    assert copy._options == {"every": 7}
    assert copy.tracker is None


def test_only_the_summary_at_the_end_is_left_out(tmp_path):
    callback = RankCallback(tmp_path)
    state = types.SimpleNamespace(global_step=0)
    callback.on_train_begin(None, state, None, model=small_model())
    callback.on_log(None, state, None, logs={"train_accuracy": 0.5, "loss": 1.0})
    callback.on_log(None, state, None, logs={"train_runtime": 3.0, "train_loss": 1.0, "epoch": 1.0})
    assert rr.load_run(tmp_path)["quantity"].to_pylist() == ["train_accuracy", "loss", "epoch"]
    callback.on_train_end(None, state, None)


def test_the_trainers_own_logger_has_the_numbers_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    trainer = trainer_of(tmp_path, windows(TEXT * 8), report_to="tensorboard", logging_steps=2, save_strategy="no")
    callback = RankCallback(tmp_path / "run", every=2, spectra=4).attach(trainer)
    assert callback.attach(trainer) is callback
    assert trainer.callback_handler.callbacks.count(callback) == 1
    trainer.train()
    assert_board_has_the_run(tmp_path / "board", tmp_path / "run", prefix="train/")
    assert scalars(tmp_path / "board")["train/loss"].keys() == {2, 4, 6, 8}  # the trainer still logs its own loss
    names = rr.load_run(tmp_path / "run")["quantity"].unique().to_pylist()
    assert "loss" in names
    assert not any(name.startswith("rankrise/") for name in names)  # what was logged did not come back
    reference = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert reference() is None  # the callback does not keep the trainer, and its model, alive
    assert callback.tracker is None


def test_the_numbers_of_the_layers_are_not_printed(tmp_path, capsys):
    trainer = trainer_of(tmp_path, windows(TEXT * 8), logging_steps=2, save_strategy="no")
    printer = transformers.PrinterCallback()
    trainer.add_callback(printer)
    RankCallback(tmp_path / "run", every=2).attach(trainer)
    trainer.train()
    printed = capsys.readouterr().out
    assert printed.count("'loss'") == STEPS // 2
    assert "rankrise/" not in printed
    assert printer in trainer.callback_handler.callbacks
    assert any("rankrise/L00/kq/stable_rank/mean" in entry for entry in trainer.state.log_history)


def test_unattached_it_writes_the_run_and_says_once_how_to_attach(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    callback = RankCallback(tmp_path / "run", every=4)
    trainer = trainer_of(tmp_path, windows(TEXT * 8), [callback], report_to="tensorboard", save_strategy="no")
    with pytest.warns(
        TrackingWarning, match=r"go to .*run only; to have them in tensorboard too, call `attach\(trainer"
    ) as r:
        trainer.train()
    assert sum(warning.category is TrackingWarning for warning in r) == 1
    assert {4, 8} <= set(rr.load_run(tmp_path / "run")["step"].to_pylist())
    assert not any("rankrise/" in name for name in scalars(tmp_path / "board"))


def test_the_class_writes_to_the_folder_of_the_trainer(tmp_path):
    with pytest.warns(TrackingWarning, match="Nothing was measured in the 8 steps"):
        trainer_of(tmp_path, windows(TEXT * 8), [RankCallback], save_strategy="no").train()
    assert rr.open_run(tmp_path / "hf" / "rankrise").has("stable_rank", "kq")


def test_a_finished_run_is_never_replaced_unless_asked(tmp_path):
    dataset = windows(TEXT * 8)
    train(tmp_path, dataset)
    with pytest.raises(ValueError, match=r'must not hold a run yet; it holds a finished one\. Pass `exist="resume"`'):
        train(tmp_path, dataset)
    callback = RankCallback(tmp_path / "run", every=8, exist="new")
    trainer_of(tmp_path, dataset, [callback], save_strategy="no").train()
    assert rr.load_run(tmp_path / "run-2").num_rows
    assert set(rr.load_run(tmp_path / "run")["step"].to_pylist()) == set(range(1, STEPS + 1))
