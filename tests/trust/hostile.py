"""Hostile inputs under 5 MB, each with the command that meets it; `docs/log/trust.md` lists what becomes of them.

Every entry of `INPUTS` is a function that writes its files below a folder and returns the arguments of `rankrise`.
"""

import hashlib
import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RESULTS = Path(__file__).parents[2] / "results" / "runs"
DEEP = "[" * 100_000
ESCAPE = "\x1b[2J\x1b]0;owned\x07"
NUM = 10**9
TASK = {"kind": "toy", "dim": 50, "tokens": 10, "samples": 1000}


def good_runs(folder, *names):
    """Copy committed runs, of each name the first."""
    for name in names:
        source = min((RESULTS / name).iterdir())
        shutil.copytree(source, folder / name / source.name)
    return folder


def forged(
    folder, name="00000000000a", *, experiment="toy-stages", spec=None, table=None, times=1, config=None, **files
):
    """A copy of a run with some of its content replaced, and a manifest that agrees."""
    run = folder / experiment / name
    shutil.copytree(min((RESULTS / experiment).iterdir()), run)
    if spec is not None or config is not None:
        record = json.loads((run / "spec.json").read_text())
        record["config"] = config if config is not None else record["config"] | {"spec": spec}
        (run / "spec.json").write_text(json.dumps(record))
    if table is not None:
        with pq.ParquetWriter(run / "metrics.parquet", table.schema, compression="zstd") as writer:
            for _ in range(times):
                writer.write_table(table)
    for file, content in files.items():
        (run / file.replace("_", ".")).write_text(content)
    manifest = json.loads((run / "MANIFEST.json").read_text())
    for file in manifest["files"]:
        manifest["files"][file] = hashlib.sha256((run / file).read_bytes()).hexdigest()
    (run / "MANIFEST.json").write_text(json.dumps(manifest))
    return run


def own_spec(experiment="toy-stages"):
    """The spec of a committed run."""
    return json.loads((min((RESULTS / experiment).iterdir()) / "spec.json").read_text())["config"]["spec"]


def table_of(num_rows, **columns):
    """A table of a run in which every column not given is constant."""
    values = {"step": 1, "layer": 0, "head": 0, "circuit": "kq", "quantity": "product", "index": 0, "value": 1.0}
    types = {"step": "int64", "layer": "int32", "head": "int32", "index": "int32", "value": "float64"}
    arrays = {
        name: pa.array(columns[name], types.get(name, "string"))
        if name in columns
        else pa.array([value], types.get(name, "string")).take(pa.array(np.zeros(num_rows, np.int32)))
        for name, value in values.items()
    }
    schema = pa.schema([pa.field(name, array.type, nullable=False) for name, array in arrays.items()])
    return pa.table(list(arrays.values()), schema=schema)


def hostile_runs(folder):
    """Runs of toy-stages and of toy-adam that must be passed over; their names."""
    spec = own_spec()
    training = own_spec("vit-cifar10")
    made = [
        forged(folder, "00000000000a", spec={"task": 3}),
        forged(folder, "00000000000b", spec=spec | {"task": spec["task"] | {"dim": NUM}}),
        forged(folder, "00000000000c", spec=spec | {"seed": [1]}),
        forged(folder, "00000000000d", spec=spec | {"kind": {"a": 1}}),
        forged(folder, "00000000000e", spec=[]),
        forged(folder, "00000000000f", config=[1]),
        forged(folder, "00000000001a", spec_json=DEEP),
        forged(folder, "00000000001b", spec_json='{"config":' * 100_000),
        forged(folder, "00000000001c", spec_json="3"),
        forged(folder, "00000000001d", config={"experiment": ESCAPE, "spec": spec}),
        forged(folder, "00000000001e", config={"experiment": {}, "spec": spec}),
        forged(folder, "00000000001f", table=pa.table({"a": [1]})),
        forged(folder, "00000000002a", table=table_of(1_000_000), times=60),
        forged(folder, "00000000002b", table=table_of(3, index=[-5, 0, 1])),
        forged(folder, "00000000002c", spec=training | {"model": {"kind": "vit", "num_layers": NUM}}),
        forged(folder, "00000000002d", spec=training | {"training": []}),
        forged(folder, "00000000002e", spec=training | {"data": {"kind": "data", "name": "cifar10", "augment": "x"}}),
        forged(folder, "00000000003a", experiment="toy-adam", spec={"task": {}, "kind": "descent"}),
        forged(folder, f"3b{ESCAPE}", experiment="toy-adam"),
    ]
    for name, content in (("00000000003c", DEEP), ("00000000003d", "[1]"), ("00000000003e", json.dumps({ESCAPE: 1}))):
        made.append(forged(folder, name))
        (made[-1] / "MANIFEST.json").write_text(content)
    for name, plant in (("00000000004a", os.mkfifo), ("00000000004b", lambda path: path.symlink_to("/etc/hosts"))):
        made.append(forged(folder, name))
        (made[-1] / "spec.json").unlink()
        plant(made[-1] / "spec.json")
    return [path.name for path in made]


def npz(path, **members):
    """An .npz whose members are given as a header and the number of zero bytes behind it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (head, num_zeros) in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(head)
                for _ in range(num_zeros >> 20):
                    file.write(bytes(2**20))
    return path


def npy_head(shape, kind="<f8"):
    """The head of an .npy of this shape."""
    text = str({"descr": kind, "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode()


def torch_archive(path, description, **members):
    """A file of torch.save with any description of its tensors."""
    with zipfile.ZipFile(path, "w", members.pop("compression", zipfile.ZIP_STORED), compresslevel=9) as archive:
        archive.writestr("x/data.pkl", description)
        archive.writestr("x/version", "3\n")
        for name, content in members.items():
            archive.writestr(f"x/data/{name}", content)
    return path


def one_tensor(num, *, key="0"):
    """The description of one tensor of float32."""
    size = b"\x8a\4" + struct.pack("<i", num)
    storage = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" + key.encode() + b"X\3\0\0\0cpu" + size + b"tQ"
    return b"\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\0" + size + b"\x85K\1\x85\x89NtRs."


def only_torch(folder):
    path = torch_archive(folder / "x.pt", one_tensor(NUM // 4), compression=zipfile.ZIP_DEFLATED, **{"0": bytes(NUM)})
    with path.open("ab") as file:
        file.write(b"PK\5\6")
    return ["diff", str(path), str(path), "--allow-torch-load", "--dry-run"]


def unfilled(folder):
    """A stream of 318 bytes or so that claims 600 million numbers and holds none of them."""
    parts = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
    description = one_tensor(600_000_000).replace(b"tQ", b"NtQ")
    (folder / "x.pt").write_bytes(b"".join(parts) + description + pickle.dumps([], 2))
    return ["diff", str(folder / "x.pt"), str(folder / "x.pt"), "--allow-torch-load"]


def pickled(description):
    def make(folder):
        path = torch_archive(folder / "x.pt", description)
        return ["diff", str(path), str(path), "--allow-torch-load"]

    return make


def stages_of(**members):
    def make(folder):
        return ["stages", "--input", str(npz(folder / "x.npz", **members))]

    return make


def latent_of(shape, content, kind="<f8"):
    def make(folder):
        (folder / "x.npy").write_bytes(npy_head(shape, kind) + content)
        return ["latent", str(folder / "x.npy")]

    return make


def function_of(**members):
    def make(folder):
        return ["function", str(folder), str(folder), "--data", str(npz(folder / "x.npz", **members))]

    return make


def foreign_code(folder):
    """A model whose config and tokenizer name Python files of its own, and whose weights lead elsewhere."""
    model = folder / "model"
    model.mkdir()
    auto = {"AutoConfig": "mine.Config", "AutoTokenizer": ["mine.Tokenizer", None]}
    for name in ("config", "tokenizer_config"):
        (model / f"{name}.json").write_text(json.dumps({"model_type": "mine", "auto_map": auto}))
    (model / "mine.py").write_text(f"open({str(folder / 'outside' / 'victim')!r}, 'w')")
    (model / "model.safetensors").symlink_to(folder / "outside" / "victim")
    (folder / "x.txt").write_text("some text")
    return ["function", str(model), str(model), "--data", str(folder / "x.txt")]


def report_of(make_one):
    def make(folder):
        make_one(good_runs(folder / "runs", "toy-stages"))
        return ["report", "--runs", str(folder / "runs"), "--out", str(folder / "report")]

    return make


def planted_run(name):
    """A run that was begun, with one name leading to a file of the user, and the command that goes on with it."""

    def make(folder):
        import torch

        from rankrise.lab.experiments import experiments, spec_hash, to_json
        from rankrise.store import create_run, rows

        spec = experiments()["toy-stages"].smoke
        config = {"experiment": "toy-stages", "spec": to_json(spec)}
        place = folder / "runs" / "toy-stages" / spec_hash(spec)
        run = create_run(place, spec={"kind": "theory", "config": config}, initial={"x": torch.ones(2)})
        run.append(rows(1, "loss", [1.0]))
        run.close()
        (place / name).unlink(missing_ok=True)
        (place / name).symlink_to(folder / "outside" / "victim")
        return ["run", "toy-stages", "--scale", "smoke", "--out", str(folder / "runs")]

    return make


def planted_checkpoint(folder):
    """A checkpoint whose shards and config lead out of its folder."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").symlink_to(folder / "outside" / "victim")
    (model / "a.safetensors").symlink_to(folder / "outside" / "victim")
    index = {"weight_map": {"w": "a.safetensors", "v": "../outside/victim"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return ["diff", str(model), str(model)]


def planted_output(folder):
    """A folder for results in which the names of the results lead elsewhere."""
    out = folder / "out"
    out.mkdir()
    for name in ("stages.json", "stages.csv"):
        (out / name).symlink_to(folder / "outside" / "victim")
    return ["stages", "--dim", "2", "--samples", "20", "--out", str(out)]


def run_of(**change):
    def make(folder):
        (folder / "spec.json").write_text(json.dumps({"schema_version": 1} | own_spec() | change))
        return ["run", str(folder / "spec.json"), "--out", str(folder / "runs")]

    return make


def adapter(config, names=("c",)):
    def make(folder):
        header, at = {}, 0
        for name in names:
            for letter, shape in (("A", [2, 4]), ("B", [6, 2])):
                size = 4 * shape[0] * shape[1]
                entry = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
                header[f"base_model.model.{name}.lora_{letter}.weight"], at = entry, at + size
        text = json.dumps(header).encode()
        (folder / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))
        record = {"peft_type": "LORA", "r": 2, "lora_alpha": 4} | config
        (folder / "adapter_config.json").write_text(json.dumps(record))
        return ["diff", str(folder)]

    return make


def distinct(num):
    """A table in which every row has ids of its own, so that an array over all ids would have num to the fourth."""
    ids = np.arange(num)
    return table_of(num, step=ids, layer=ids, head=ids, index=ids)


DOTTED = ["a." * 220 + f"b{n}" for n in range(30)]
HASH = b"\x80\2})" + b"q\0h\0h\0\x86" * 60 + b"Ns."
INPUTS = {
    "archive that only torch opens": only_torch,
    "stream with unfilled storages": unfilled,
    "pickle whose key takes for ever": pickled(HASH),
    "pickle with the last place of the memo": pickled(b"\x80\2}r\xff\xff\xff\x7f."),
    "pickle of 4.8 million dictionaries": pickled(b"\x80\2" + b"}" * 4_800_000 + b"."),
    "pickle that claims 2 GB": pickled(one_tensor(500_000_000)),
    "patterns with two gaps": adapter(
        {"alpha_pattern": {".*a." * 2 + "a." * 200 + f"{n}": 2 for n in range(60)}}, DOTTED
    ),
    "patterns of 2.5 MB": adapter({"alpha_pattern": {"." * 990 + f"{n}": 2 for n in range(2500)}}, DOTTED),
    "config nested deeply": adapter({"a": json.loads("[" * 900 + "]" * 900)}),
    "npz that unpacks to gigabytes": stages_of(
        x=(npy_head((NUM // 80, 10, 10)), NUM), y=(npy_head((NUM // 80, 10, 10)), NUM)
    ),
    "npz of 8-bit numbers": stages_of(
        x=(npy_head((2**24, 10, 10), "|u1"), 2**30), y=(npy_head((2**24, 10, 10), "|u1"), 2**30)
    ),
    "npz with a header of a gigabyte": stages_of(
        x=(b"\x93NUMPY\2\0" + struct.pack("<I", 2**30), 2**30), y=(npy_head((1, 1, 1)), 8)
    ),
    "npy that claims a gigabyte": latent_of((2**27, 1), bytes(8)),
    "npy of millions of 8-bit rows": latent_of((4_800_000, 1), bytes([0, 1]) * 2_400_000, "|u1"),
    "npy of millions of columns": latent_of((1, 4_800_000), bytes(4_800_000), "|u1"),
    "inputs that unpack to gigabytes": function_of(input_ids=(npy_head((NUM // 8, 8)), NUM)),
    "model with code of its own": foreign_code,
    "spec of a billion tokens": run_of(task=TASK | {"tokens": NUM}),
    "spec of a billion dimensions": run_of(task=TASK | {"dim": NUM}),
    "run with a billion dimensions": report_of(
        lambda runs: forged(runs, spec=own_spec() | {"task": TASK | {"dim": NUM}, "seed": 7})
    ),
    "run with a billion layers": report_of(
        lambda runs: forged(
            runs, experiment="vit-cifar10", spec=own_spec("vit-cifar10") | {"model": {"kind": "vit", "num_layers": NUM}}
        )
    ),
    "table of 60 million rows": report_of(lambda runs: forged(runs, table=table_of(1_000_000), times=60)),
    "table of half a million rows": report_of(lambda runs: forged(runs, table=table_of(500_000))),
    "table of distinct ids": report_of(lambda runs: forged(runs, table=distinct(20_000))),
    "spec nested 100,000 deep": report_of(lambda runs: forged(runs, spec_json=DEEP)),
    "spec of 5 MB of lists": report_of(lambda runs: forged(runs, spec_json="[" + "[]," * 1_600_000 + "[]]")),
    "environment nested 100,000 deep": report_of(lambda runs: forged(runs, env_json=DEEP)),
    **{
        f"run whose {name} is a link": planted_run(name)
        for name in (".lock", "initial.safetensors", "metrics.arrows", "directions")
    },
    "checkpoint full of links": planted_checkpoint,
    "output folder full of links": planted_output,
    "hostile runs of all kinds": report_of(hostile_runs),
}
