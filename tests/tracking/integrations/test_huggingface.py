"""HF Trainer end to end: a small GPT-2 on text, tracked, killed, resumed; the table is that of an uninterrupted run."""

import os
import pickle
import signal
import types
from pathlib import Path

import pytest
import torch
import transformers
from tests.processes import exit_code
from tests.tracking.models import in_order, small_model

import rankrise as rr
from rankrise.tracking.integrations import huggingface_callback

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


def train(folder, dataset, *, kill_at=None, resume=None):
    transformers.set_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, n_positions=LENGTH, vocab_size=256, bos_token_id=0, eos_token_id=0
    )
    arguments = transformers.TrainingArguments(
        str(folder / "hf"), max_steps=STEPS, save_steps=SAVE, logging_steps=1, per_device_train_batch_size=4,
        learning_rate=1e-2, report_to="none", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    callbacks = [huggingface_callback(folder / "run", every=1, spectra=2)]
    if kill_at is not None:
        callbacks.append(KillAt(kill_at))
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config), arguments, train_dataset=dataset, callbacks=callbacks
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)


def killed_and_resumed_equals_uninterrupted(tmp_path, dataset):
    train(tmp_path / "whole", dataset)
    whole = rr.load_run(tmp_path / "whole" / "run")
    cut = tmp_path / "cut"
    assert exit_code(lambda: train(cut, dataset, kill_at=5)) == -signal.SIGKILL
    table = rr.load_run(cut / "run")
    assert max(table["step"].to_pylist()) == 5  # readable as it lies there
    train(cut, dataset, resume=str(cut / "hf" / f"checkpoint-{SAVE}"))
    assert in_order(rr.load_run(cut / "run")).equals(in_order(whole))
    assert {"loss", "learning_rate", "grad_norm", "stable_rank", "spectrum"} <= set(whole["quantity"].to_pylist())
    assert set(whole["step"].to_pylist()) == set(range(1, STEPS + 1))


def test_killed_and_resumed(tmp_path):
    killed_and_resumed_equals_uninterrupted(tmp_path, windows(TEXT * 8))


@pytest.mark.slow
@pytest.mark.skipif("RANKRISE_DATA" not in os.environ, reason="set RANKRISE_DATA to a folder with wikitext-2/")
def test_killed_and_resumed_on_wikitext(tmp_path):
    folder = Path(os.environ["RANKRISE_DATA"]) / "wikitext-2"
    text = (folder / "wiki.train.tokens").read_text(encoding="utf-8")[:100_000]
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
    copy = pickle.loads(pickle.dumps(huggingface_callback(tmp_path, every=7)))
    assert copy._out == tmp_path
    assert copy._options == {"every": 7}
    assert copy.tracker is None


def test_only_the_summary_at_the_end_is_left_out(tmp_path):
    callback = huggingface_callback(tmp_path)
    state = types.SimpleNamespace(global_step=0)
    callback.on_train_begin(None, state, None, model=small_model())
    callback.on_log(None, state, None, logs={"train_accuracy": 0.5, "loss": 1.0})
    callback.on_log(None, state, None, logs={"train_runtime": 3.0, "train_loss": 1.0, "epoch": 1.0})
    assert rr.load_run(tmp_path)["quantity"].to_pylist() == ["train_accuracy", "loss", "epoch"]
    callback.on_train_end(None, state, None)
