"""Track a small GPT-2 in HF Trainer, on the bytes of this file; needs `pip install 'rankrise[hf]'`.

    python examples/track_hf_gpt2.py

The run stays in `runs/gpt2`: `rankrise plot training_curves runs/gpt2` draws it. The callback is attached to the
trainer, so that the trainer's own loggers (`report_to="tensorboard"`) get six numbers for each layer as well.
"""

from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments

import rankrise as rr
from rankrise.tracking.integrations.huggingface import RankCallback

length = 64
text = torch.tensor(list(Path(__file__).read_bytes()))
windows = [{"input_ids": w, "labels": w} for w in text.unfold(0, length, 8)]

torch.manual_seed(0)
config = GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=length, vocab_size=256, bos_token_id=0, eos_token_id=0)
arguments = TrainingArguments(
    "runs/gpt2-checkpoints",
    max_steps=40,
    per_device_train_batch_size=8,
    learning_rate=3e-3,
    logging_steps=10,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=windows)
trainer.remove_callback(PrinterCallback)  # it would print the numbers of every layer
RankCallback("runs/gpt2", every=10, exist="overwrite").attach(trainer)
trainer.train()

run = rr.open_run("runs/gpt2")
print(run)
for circuit in ("kq", "vo"):
    ranks = run.curve("stable_rank", circuit=circuit)
    for step, mean in zip(ranks.steps, ranks.mean(), strict=True):
        print(f"step {step:3.0f}  {circuit}  mean stable rank {mean:.2f}")
