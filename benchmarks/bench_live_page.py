"""Does `rankrise serve` stay small and quick, and leave the training alone?

    python benchmarks/bench_live_page.py

Four questions: how long until 1,000 runs are listed, how long until a run of a million rows is open, whether memory
stays flat while 100 event streams look at 50 runs that are written, and whether a training step takes more CPU time
while 100 streams look at its run. Linux only, because memory and CPU time are read from /proc.
Needs `pip install 'rankrise[serve]'`.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import torch

from rankrise.store import Run, create_run, rows, scalar_rows

SERVE = [sys.executable, "-c", "from rankrise.cli import main; main()", "serve"]
LAYERS, HEADS = 4, 4
TRAINING = """
import sys, time, torch, rankrise as rr
torch.manual_seed(0)
torch.set_num_threads(1)
block = torch.nn.TransformerEncoderLayer(d_model=64, nhead=4, dim_feedforward=128, dropout=0.0, batch_first=True)
model = torch.nn.TransformerEncoder(block, num_layers=4, enable_nested_tensor=False)
optimiser = torch.optim.Adam(model.parameters())
with rr.RankTracker(model, out=sys.argv[1], every=10, exist="overwrite") as tracker:
    for step in range(1, int(sys.argv[2]) + 1):
        if step == 21:
            begin = time.process_time()
        x = torch.randn(16, 16, 64)
        loss = (model(x) - x.flip(1)).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        tracker.step(step, loss=loss)
    print((time.process_time() - begin) / (step - 20))
"""


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120, help="how long the streams are open")
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--runs", type=int, default=50, help="runs that are written while the streams are open")
    parser.add_argument("--steps", type=int, default=600, help="of each training")
    parser.add_argument("--repeats", type=int, default=5, help="trainings with and without open streams")
    options = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        list_many(root / "many", 1000)
        open_long(root / "long")
        asyncio.run(stream_many(root / "growing", options, num_before=1, is_whole=True))
        asyncio.run(stream_many(root / "steady", options, num_before=60, is_whole=False))
        asyncio.run(train_beside(root / "training", options))


class Server:
    """`rankrise serve` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen([*SERVE, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().decode().strip()

    def get(self, path: str) -> tuple[str, bytes]:
        """Return in words how long an answer took, and the answer."""
        begin, cpu = time.perf_counter(), self.cpu()
        with urllib.request.urlopen(self.url + path) as answer:
            content: bytes = answer.read()
        return f"{time.perf_counter() - begin:.2f} s ({self.cpu() - cpu:.2f} s of CPU)", content

    def megabytes(self) -> float:
        """How much memory the process holds."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) / 1024

    def cpu(self) -> float:
        """CPU seconds that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()


def begin_run(folder: Path, layers: int = LAYERS, heads: int = HEADS) -> Run:
    """Begin a run without any measurement."""
    record = [{"index": n, "name": str(n), "num_heads": heads, "head_dim": 8, "views": {}} for n in range(layers)]
    return create_run(folder, spec={"layers": record}, initial={"w": torch.zeros(1)})


def record(run: Run, step: int, generator: np.random.Generator, layers: int = LAYERS, heads: int = HEADS) -> int:
    """Write the rows of one measurement, and return their number."""
    run.append(scalar_rows([(step, "loss", 1 / (step + 1))]))
    for circuit in ("kq", "vo"):
        for quantity in ("stable_rank", "frobenius_norm"):
            values = 1 + generator.random((layers, heads))
            run.append(rows(step, quantity, values, circuit=circuit, layers=range(layers), heads=True))
    return 1 + 4 * layers * heads


def list_many(folder: Path, num: int) -> None:
    """Time the list of many runs: the first time, and again when nothing has changed."""
    run = begin_run(folder / "0000")
    for step in range(20):
        record(run, step, np.random.default_rng(0))
    run.seal()
    for number in range(1, num):
        shutil.copytree(folder / "0000", folder / f"{number:04}")
    with Server(folder) as server:
        first, content = server.get("runs")
        time.sleep(2)
        again, _ = server.get("runs")
    assert len(json.loads(content)["runs"]) == num
    print(f"{num} runs listed in {first}, and again in {again}", flush=True)


def open_long(folder: Path) -> None:
    """Time until a run of a million rows is open: one that is being written, and one that is sealed."""
    for name in ("written", "sealed"):
        run, generator, num_rows, step = begin_run(folder / name, 12, 12), np.random.default_rng(0), 0, 0
        while num_rows < 1_000_000:
            step += 1
            num_rows += record(run, step, generator, 12, 12)
        if name == "sealed":
            run.seal()
        else:
            run.close()
    with Server(folder) as server:
        runs = json.loads(server.get("runs")[1])["runs"]
        for found in runs:
            seconds, content = server.get(f"run?run={found['id']}")
            size = len(content) / 1000
            assert json.loads(content)["rows"] == num_rows
            print(f"{num_rows} rows, {found['path']}: open in {seconds}, {size:.0f} kB sent", flush=True)


async def listen(url: str, path: str, counts: list[int], number: int) -> None:
    """Read an event stream until cancelled, and count its events."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**24)
    writer.write(f"GET {parts.path}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    try:
        while line := await reader.readline():
            counts[number] += line.startswith(b"event:")
    finally:
        writer.close()


async def stream_many(folder: Path, options: argparse.Namespace, *, num_before: int, is_whole: bool) -> None:
    """Memory and CPU of the server while streams look at runs, each of which is written every two seconds.

    With `is_whole` a whole measurement is written each time, so that the page grows; otherwise one loss is written, so
    that the page stays nearly the same.
    """
    generator = np.random.default_rng(0)
    runs = [begin_run(folder / f"{number:02}") for number in range(options.runs)]
    num_rows = [sum(record(run, step, generator) for step in range(num_before)) for run in runs]
    with Server(folder) as server:
        ids = [run["id"] for run in json.loads(server.get("runs")[1])["runs"]]
        counts = [0] * options.streams
        tasks = [
            asyncio.create_task(listen(server.url, f"events?run={ids[number % len(ids)]}", counts, number))
            for number in range(options.streams)
        ]
        memory: list[float] = []
        before, step = sum(num_rows), num_before - 1
        begin, cpu = time.monotonic(), server.cpu()
        while time.monotonic() - begin < options.seconds:
            step += 1
            for number, run in enumerate(runs):
                if is_whole:
                    num_rows[number] += record(run, step, generator)
                else:
                    run.append(scalar_rows([(step, "loss", 1 / (step + 1))]))
                    num_rows[number] += 1
            await asyncio.sleep(2.0)
            memory.append(server.megabytes())
        cpu = (server.cpu() - cpu) / (time.monotonic() - begin)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    quarter = len(memory) // 4
    print(
        f"{options.streams} streams on {options.runs} runs for {options.seconds:.0f} s, {sum(num_rows) - before} rows "
        f"beside {before}: {min(counts)} to {max(counts)} events a stream, {cpu:.2f} of a core"
    )
    parts = [statistics.median(memory[n * quarter : (n + 1) * quarter]) for n in range(4)]
    print(
        f"memory by quarter: {', '.join(f'{part:.1f}' for part in parts)} MB; largest {max(memory):.1f} MB", flush=True
    )


async def train_beside(folder: Path, options: argparse.Namespace) -> None:
    """Time a training step in CPU seconds, in turn without an open page and with open streams on its run."""
    begin_run(folder / "run").close()
    found: dict[bool, list[float]] = {False: [], True: []}
    for repeat in range(2 * options.repeats):
        is_watched = bool(repeat % 2)
        with Server(folder) as server:
            (run,) = json.loads(server.get("runs")[1])["runs"]
            counts = [0] * options.streams
            tasks = [
                asyncio.create_task(listen(server.url, f"events?run={run['id']}", counts, number))
                for number in range(options.streams if is_watched else 0)
            ]
            training = await asyncio.create_subprocess_exec(
                sys.executable, "-c", TRAINING, str(folder / "run"), str(options.steps), stdout=subprocess.PIPE
            )
            out, _ = await training.communicate()
            found[is_watched].append(1000 * float(out))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert not is_watched or min(counts) > 1
    for is_watched, words in ((False, "nobody looks"), (True, f"{options.streams} streams look")):
        times = sorted(found[is_watched])
        middle = statistics.median(times)
        print(f"CPU of a step, {words}: median {middle:.2f} ms, {times[0]:.2f} to {times[-1]:.2f}, n = {len(times)}")


if __name__ == "__main__":
    main()
