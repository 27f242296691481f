"""How many lines and how many seconds until the first picture of one's own run?

    python benchmarks/bench_first_picture.py

Trains a tiny Llama in a plain loop, in HF Trainer and in Lightning, each in a process of its own, and then draws its
run with `rankrise plot`. It prints the lines that rankrise needs, and the CPU and wall time from the end of training to
the picture. Needs `pip install 'rankrise[hf,lightning,track,plot]'`.
"""

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMON = """
import torch, transformers
transformers.set_seed(0)
config = transformers.LlamaConfig(
    vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
)
model = transformers.LlamaForCausalLM(config)
ids = torch.tensor(list((torch.__doc__ * 20).encode("ascii", "replace")))[: 64 * 32].reshape(-1, 32)
"""
LOOPS = {
    "plain loop": """
optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
import rankrise as rr  # *
tracker = rr.RankTracker(model, out="run", every=5)  # *
for step in range(1, 101):
    batch = ids[torch.randint(len(ids), (8,))]
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    tracker.step(step, loss=loss)  # *
tracker.close()  # *
""",
    "HF Trainer": """
arguments = transformers.TrainingArguments(
    "hf", max_steps=100, per_device_train_batch_size=8, learning_rate=3e-3, logging_steps=5, use_cpu=True,
    disable_tqdm=True, save_strategy="no", report_to="tensorboard",
)
data = [{"input_ids": row, "labels": row} for row in ids]
trainer = transformers.Trainer(model, arguments, train_dataset=data)
from rankrise.tracking.integrations.huggingface import RankCallback  # *
RankCallback("run", every=5).attach(trainer)  # *
trainer.train()
""",
    "Lightning": """
import lightning.pytorch as pl
from rankrise.tracking.integrations.lightning import RankCallback  # *


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch, _):
        return self.model(input_ids=batch, labels=batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


trainer = pl.Trainer(
    max_steps=100, max_epochs=-1, accelerator="cpu", enable_progress_bar=False, enable_checkpointing=False,
    enable_model_summary=False, logger=pl.loggers.TensorBoardLogger("board"),
    callbacks=[RankCallback("run", every=5)],  # *
)
trainer.fit(Module(), torch.utils.data.DataLoader(ids, batch_size=8, shuffle=True))
""",
}
PLOT = ["-c", "from rankrise.cli import main; main()", "plot", "training_curves", "run"]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="pictures of each run; the median is printed")
    parser.add_argument("--loops", nargs="*", default=list(LOOPS), choices=list(LOOPS))
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, n = {options.repeats}")
    for name in options.loops:
        loop = LOOPS[name]
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-c", COMMON + loop], cwd=folder, check=True, capture_output=True)
            seconds = sorted(_draw(Path(folder)) for _ in range(options.repeats))
        cpu, wall = seconds[len(seconds) // 2]
        num_lines = loop.count("# *")
        print(f"{name}: {num_lines} lines and 1 command; {cpu:.1f} s of CPU, {wall:.1f} s of wall time", flush=True)


def _draw(folder: Path) -> tuple[float, float]:
    """CPU and wall time of the command that draws the run in a folder."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *PLOT], cwd=folder, check=True, capture_output=True)
    after, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    (picture,) = (folder / "figures").glob("*.png")
    assert picture.stat().st_size > 10_000
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, end - begin


if __name__ == "__main__":
    main()
