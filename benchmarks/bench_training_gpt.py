"""Tokens per second of GPT-2 small in bf16: `rankrise.lab.training.train` against HF's GPT2LMHeadModel in a plain loop.

Both train on WikiText-2 (synthetic tokens of the same vocabulary without --data), sequences of 1024, the same batch,
AdamW; ours with its rank tracking.

    python benchmarks/bench_training_gpt.py --data DIR --out benchmarks/results
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from rankrise.lab.data import Batch, DataConfig, Dataset, load_dataset
from rankrise.lab.models import GPTConfig, build_model
from rankrise.lab.training import TrainingConfig, train
from rankrise.store import environment

COMMAND = re.sub(r" --(out|data) \S+", "", " ".join(["python", f"benchmarks/{Path(__file__).name}", *sys.argv[1:]]))
BATCH, CONTEXT = 16, 1024


@Dataset.register
class Clocked:
    """A data set that notes the time every ten batches; the device is waited for then."""

    def __init__(self, dataset) -> None:
        self._dataset, self.times = dataset, []

    def __getattr__(self, name: str):
        return getattr(self._dataset, name)

    def to(self, device) -> "Clocked":
        """On another device."""
        self._dataset = self._dataset.to(device)
        return self

    def train_batches(self, **options) -> Iterator[Batch]:
        """Those of the data set."""
        for n, batch in enumerate(self._dataset.train_batches(**options)):
            if n % 10 == 0:
                torch.cuda.synchronize()
                self.times.append(time.perf_counter())
            yield batch


def tokens_per_second(times: list[float], skip: int) -> float:
    """Median over pieces of ten batches, the first `skip` left out."""
    pieces = [b - a for a, b in zip(times[skip:], times[skip + 1 :], strict=False)]
    return 10 * BATCH * CONTEXT / statistics.median(pieces)


def ours(dataset) -> float:
    """The whole of `train`."""
    clocked = Clocked(dataset)
    config = TrainingConfig(
        epochs=1, batch_size=BATCH, optimiser="adamw", learning_rate=3e-4, precision="bf16", track_every=50,
        num_spectra=1,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        train(build_model(GPTConfig()), clocked, config, out=folder, device="cuda")
    return tokens_per_second(clocked.times, skip=3)


def hugging_face(dataset) -> float:
    """A plain loop, as in a tutorial."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)).to("cuda")
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4)
    clocked = Clocked(dataset)
    for n, (inputs, _) in enumerate(clocked.train_batches(batch_size=BATCH, seed=0, epoch=0)):
        if n > 70:
            break
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=inputs, labels=inputs).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return tokens_per_second(clocked.times, skip=2)


def main() -> None:
    """Run both, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with wikitext-2 and gpt2-bpe")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.data:
        config = DataConfig("text", path="wikitext-2", context=CONTEXT, tokenizer="gpt2")
    else:
        config = DataConfig("synthetic_text", context=CONTEXT, num_train=2400)
    dataset = load_dataset(config, root=arguments.data).to("cuda")
    row = {"data": config.name, "batch_size": BATCH, "context": CONTEXT}
    row["rankrise_tokens_per_second"] = ours(dataset)
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    row["hf_tokens_per_second"] = hugging_face(dataset)
    row["times_hf"] = row["rankrise_tokens_per_second"] / row["hf_tokens_per_second"]
    print(row, flush=True)
    if arguments.out is not None:
        record = {"command": COMMAND, "seed": 0, "environment": environment(), "rows": [row]}
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "training_gpt.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
