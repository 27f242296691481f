"""HF Trainer with two more lines, killed and resumed; two processes of DDP."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.growth.models import batch, byte_gpt

import rankrise as rr

pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]


def train(folder, *, until=None, resume=None):
    """Train by a script with two lines more than one without growth; `until` is the step at which it is broken off."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Kill(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == until:
                raise KeyboardInterrupt

    torch.manual_seed(0)
    rows = batch(torch.Generator().manual_seed(0), size=160, length=16)
    data = [{"input_ids": row, "labels": row} for row in rows]
    arguments = TrainingArguments(
        str(folder), max_steps=60, per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=2e-3,
        save_steps=7, report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no", seed=0,
    )  # fmt: skip
    model = rr.growing_lora(byte_gpt(), rank=1)
    growth = rr.GrowthCallback(model)
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[growth, Kill()])
    try:
        trainer.train(resume_from_checkpoint=resume)
    except KeyboardInterrupt:
        assert until is not None
    return model, growth


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("killed_at", [16, 33])
def test_a_killed_and_resumed_trainer_ends_in_the_same_bits(tmp_path, killed_at):
    expected, whole = train(tmp_path / "whole")
    train(tmp_path / "cut", until=killed_at)
    step = killed_at // 7 * 7
    again, resumed = train(tmp_path / "cut", resume=str(tmp_path / "cut" / f"checkpoint-{step}"))
    states = expected.state_dict(), again.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert whole.growth.history == resumed.growth.history
    assert any(decision.kind == "grow" for decision in whole.growth.history)
    assert any(decision.kind == "cut" for decision in whole.growth.history)
    (tmp_path / "cut" / "checkpoint-7" / "growth.pt").unlink()
    with pytest.raises(ValueError, match=r"growth\.pt, which is not there"):
        train(tmp_path / "cut", resume=str(tmp_path / "cut" / "checkpoint-7"))


def test_the_parameters_in_use_are_logged_beside_the_loss_for_the_run_and_its_page():
    model = rr.growing_lora(byte_gpt(), rank=1)
    callback = rr.GrowthCallback(model)
    args, state = (
        SimpleNamespace(fp16=False, gradient_accumulation_steps=1),
        SimpleNamespace(max_steps=60, global_step=0),
    )
    callback.on_train_begin(args, state, None, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3))
    logs, other = {"loss": 2.0}, {"train_runtime": 1.0}
    callback.on_log(args, state, None, logs=logs)
    callback.on_log(args, state, None, logs=other)
    assert logs == {"loss": 2.0, "adapter_parameters": callback.growth.parameters}
    assert other == {"train_runtime": 1.0}


SCRIPT = """
import json, os, sys, torch
from tests.growth.models import batch, byte_gpt, loss_of
from rankrise.growth import Growth, growing_lora

world = int(os.environ.get("WORLD_SIZE", 1))
rank = int(os.environ.get("RANK", 0))
torch.manual_seed(0)
model = growing_lora(byte_gpt(), rank=1)
inner = model
if world > 1:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
growth = Growth(model, optimiser, total_steps=50, accumulate=2 // world)
generator = torch.Generator().manual_seed(0)
for _ in range(50):
    pieces = [batch(generator, size=8) for _ in range(2)]
    for ids in pieces[rank::world]:
        (loss_of(model, ids) * world / 2).backward()
    optimiser.step(); optimiser.zero_grad(); growth.step()
if rank == 0:
    done = [[d.step, d.kind, d.module, d.slot] for d in growth.history if d.kind in ("grow", "cut")]
    json.dump({"done": done, "ranks": growth.ranks}, open(sys.argv[1], "w"))
"""


@pytest.mark.slow
def test_two_processes_make_the_decisions_of_one(tmp_path):
    """The same micro-batches, in one process by accumulation and in two by DDP."""
    (tmp_path / "script.py").write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    alone = subprocess.run([sys.executable, tmp_path / "script.py", tmp_path / "one.json"], env=base, check=False)
    assert alone.returncode == 0
    network = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    both = [
        subprocess.Popen(
            [sys.executable, tmp_path / "script.py", tmp_path / "two.json"], env=base | network | {"RANK": str(r)}
        )
        for r in range(2)
    ]
    assert [process.wait(240) for process in both] == [0, 0]
    one, two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert one == two
    assert any(kind == "grow" for _, kind, _, _ in one["done"])
