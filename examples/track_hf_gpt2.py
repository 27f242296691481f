"""Track a small GPT-2 in HF Trainer, on the bytes of this file; needs `pip install 'rankrise[hf]'`.

python examples/track_hf_gpt2.py
"""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import rankrise as rr
from rankrise.tracking.integrations import huggingface_callback

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
shutil.rmtree("runs/gpt2", ignore_errors=True)
Trainer(
    GPT2LMHeadModel(config),
    arguments,
    train_dataset=windows,
    callbacks=[huggingface_callback("runs/gpt2", every=10)],
).train()

table = rr.load_run("runs/gpt2").filter(pc.field("index") == -1)
for row in table.filter(pc.is_in(table["quantity"], pa.array(["loss", "stable_rank"]))).to_pylist():
    where = f"layer {row['layer']} head {row['head']} {row['circuit']}" if row["circuit"] else ""
    print(f"step {row['step']:3d}  {row['quantity']:12s} {row['value']:7.3f}  {where}")
