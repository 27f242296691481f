"""Large synthetic pairs, written tensor by tensor, and the anonymous memory of a process that reads them.

By hand: `python -m tests.checkpoints.large 3.2e9 FOLDER` writes a pair, runs `rankrise diff --summary`, prints what
it took, and removes the pair. It needs four bytes of disk a parameter.
"""

import json
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

SIZES = {  # parameters: width, MLP width, layers, vocabulary
    5e7: (512, 2048, 8, 32000),
    1e9: (2048, 5632, 20, 50304),
    3.2e9: (3072, 8192, 28, 128256),
}
RANK, SIZE = 4, 0.01


def shapes(num_parameters):
    width, mlp, num_layers, vocabulary = SIZES[num_parameters]
    found = {"model.embed_tokens.weight": (vocabulary, width)}
    for n in range(num_layers):
        block = f"model.layers.{n}"
        for role, rows in {"q": width, "k": width // 4, "v": width // 4, "o": width}.items():
            found[f"{block}.self_attn.{role}_proj.weight"] = (rows, width)
        found |= {f"{block}.mlp.{name}_proj.weight": (mlp, width) for name in ("gate", "up")}
        found |= {f"{block}.mlp.down_proj.weight": (width, mlp), f"{block}.input_layernorm.weight": (width,)}
    return found


def write_pair(folder: Path, num_parameters):
    """A base and a tuned of rank 4 in every matrix, in bfloat16, a shard for about every 2 GB."""
    config = {"model_type": "llama", "num_attention_heads": SIZES[num_parameters][0] // 64}
    shards, filled = [[]], 0
    for name, shape in shapes(num_parameters).items():
        num_bytes = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        if filled + num_bytes > 2e9 and shards[-1]:
            shards.append([])
            filled = 0
        shards[-1].append((name, shape, num_bytes))
        filled += num_bytes
    for side in ("base", "tuned"):
        (folder / side).mkdir(parents=True)
        (folder / side / "config.json").write_text(json.dumps(config))
    weight_map = {}
    generator = torch.Generator().manual_seed(0)
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        header, at = {}, 0
        for tensor, shape, num_bytes in shard:
            header[tensor] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + num_bytes]}
            at += num_bytes
            weight_map[tensor] = name
        text = json.dumps(header).encode()
        with (folder / "base" / name).open("wb") as base, (folder / "tuned" / name).open("wb") as tuned:
            for file in (base, tuned):
                file.write(struct.pack("<Q", len(text)) + text)
            for _, shape, _ in shard:
                _write_tensor(base, tuned, shape, generator)
    for side in ("base", "tuned"):
        total = sum((folder / side / name).stat().st_size for name in set(weight_map.values()))
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map})
        (folder / side / "model.safetensors.index.json").write_text(text)
    return folder / "base", folder / "tuned"


def _write_tensor(base, tuned, shape, generator):
    columns = shape[1] if len(shape) > 1 else 1
    right = torch.randn(RANK, columns, generator=generator)
    for begin in range(0, shape[0], 2**23 // columns):
        rows = min(shape[0], begin + 2**23 // columns) - begin
        weight = torch.randn(rows, columns, generator=generator) / 30
        change = torch.randn(rows, RANK, generator=generator) @ right * (SIZE / 30 / RANK**0.5)
        for file, values in ((base, weight), (tuned, weight if len(shape) == 1 else weight + change)):
            file.write(values.bfloat16().view(torch.uint8).numpy().data)


def watched(command):
    """Output of a command, its seconds, and its largest anonymous memory in bytes."""
    began, peak = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, text=True)
        while process.poll() is None:
            peak = max(peak, _anonymous(process.pid))
            time.sleep(0.05)
        seconds = time.monotonic() - began
        out.seek(0)
        err.seek(0)
        return process.returncode, out.read(), err.read(), seconds, peak


def _anonymous(pid):
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


def summarise(folder, num_parameters):
    base, tuned = write_pair(folder, num_parameters)
    command = [sys.executable, "-m", "rankrise", "diff", str(base), str(tuned), "--summary", "--json"]
    return watched(command)


def check(result, limit=4e9):
    """What must hold of a summary of such a pair, within `limit` of anonymous memory."""
    code, out, err, _, peak = result
    assert code == 0, err
    assert 0 < peak < limit
    rows = [row for row in json.loads(out)["rows"] if row["kind"] == "matrix"]
    assert len(rows) > 50
    for row in rows:
        assert abs(row["relative"] - SIZE) < 0.2 * SIZE, row
        assert 1 < row["stable_rank"] < 8, row
        assert row["rank_above_floor"] == RANK, row


def main():
    num_parameters, folder = float(sys.argv[1]), Path(sys.argv[2])
    try:
        result = summarise(folder, num_parameters)
        sys.stdout.write(f"{result[2][-1500:]}\n{result[3]:.0f} s, {result[4] / 1e9:.2f} GB anonymous\n")
        check(result)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
