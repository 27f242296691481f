"""Without any extra the library works; what needs one says so in a sentence with the line that installs it."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rankrise._extras import _EXTRAS, require

ROOT = Path(__file__).parents[1]
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# A child process in which no package of an extra can be imported tries every task once, and prints what it was told.
CHILD = """
import importlib, json, sys
blocked = set(json.loads(sys.argv[1]))

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import torch, rankrise as rr
from safetensors.torch import save_file
from typer.testing import CliRunner
from rankrise.cli._main import app
from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.data._text_files import BPETokenizer
from rankrise.tracking import MlflowSink, TensorBoardSink, TrackioSink, WandbSink
from rankrise.view import Axis, FigureData, Panel, diff_page, draw

def said(task):
    try:
        task()
    except ModuleNotFoundError as error:
        return str(error)
    return "nothing"

def command(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output

from pathlib import Path
folder = Path(sys.argv[2])
torch.manual_seed(0)
model = torch.nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=16)
save_file(model.state_dict(), folder / "base.safetensors")
with rr.RankTracker(model, out=folder / "run", every=1) as tracker:
    with torch.no_grad():
        model.self_attn.in_proj_weight += 0.1 * torch.randn(24, 8)
    tracker.step(1)
save_file(model.state_dict(), folder / "tuned.safetensors")
pair = folder / "base.safetensors", folder / "tuned.safetensors"
found = rr.diff(*pair)
figure = FigureData("a", "a", "a", (Panel("", Axis("x"), Axis("y")),), 1, 1, ())
image_folder = DataConfig("image_folder", path="images", image_size=8)
works = {
    "track": rr.load_run(folder / "run").num_rows > 0,
    "diff": "weights changed" in command("diff", *pair),
    "help": "Usage" in command("--help"),
    "lora": "modules" in command("lora", *pair, "--rank", 1),
}
print(json.dumps(works))
print(json.dumps({
    "a figure": said(lambda: draw(figure, folder / "a.svg")),
    "figure": said(lambda: command("figure", "all", "--runs", folder)),
    "a page": said(lambda: diff_page(found)),
    "--html": said(lambda: command("diff", *pair, "--html", folder / "a.html")),
    "report": said(lambda: command("report", "--runs", folder)),
    "serve": said(lambda: command("serve", folder)),
    "sweep": said(lambda: command("sweep", "toy-stages", "--scale", "smoke", "--out", folder)),
    "images": said(lambda: load_dataset(image_folder, root=folder)),
    "encoding": said(lambda: BPETokenizer(folder)),
    "hf": said(lambda: importlib.import_module("rankrise.tracking.integrations.huggingface")),
    "lightning": said(lambda: importlib.import_module("rankrise.tracking.integrations.lightning")),
    "verify": said(lambda: command("lora", *pair, "--out", folder / "adapter", "--verify")),
    "tensorboard": said(lambda: TensorBoardSink(folder)),
    "wandb": said(lambda: WandbSink()),
    "trackio": said(lambda: TrackioSink()),
    "mlflow": said(lambda: MlflowSink()),
    "digits": said(lambda: load_dataset(DataConfig("digits"))),
}))
"""
SAID = {
    "a figure": "Drawing a figure needs the package matplotlib, which is not installed: pip install 'rankrise[plot]'.",
    "figure": "Drawing a figure needs the package matplotlib, which is not installed: pip install 'rankrise[plot]'; "
    "or ask for --format csv.",
    "a page": "Writing a page needs the package jinja2, which is not installed: pip install 'rankrise[report]'.",
    "--html": "`--html` needs the package jinja2, which is not installed: pip install 'rankrise[report]'.",
    "report": "The report needs the packages jinja2 and matplotlib, which are not installed: "
    "pip install 'rankrise[report,plot]'.",
    "serve": "`rankrise serve` needs the packages starlette and uvicorn, which are not installed: "
    "pip install 'rankrise[serve]'.",
    "sweep": "A sweep needs the packages dask, distributed and cryptography, which are not installed: "
    "pip install 'rankrise[sweep]'.",
    "images": "Reading image files needs the package pillow, which is not installed: pip install 'rankrise[images]'.",
    "encoding": "GPT-2's encoding needs the package tokenizers, which is not installed: pip install 'rankrise[hf]'; "
    "or ask for tokenizer='bytes'.",
    "hf": "The callback of HF Trainer needs the package transformers, which is not installed: "
    "pip install 'rankrise[hf]'.",
    "lightning": "The callback of Lightning needs the package lightning, which is not installed: "
    "pip install 'rankrise[lightning]'.",
    "verify": "`verify` needs the packages transformers and peft, which are not installed: "
    "pip install 'rankrise[hf,peft]'; or leave it out: the factors are checked without.",
    "tensorboard": "A TensorBoardSink needs the package tensorboard, which is not installed: "
    "pip install 'rankrise[track]'.",
    "wandb": "A WandbSink needs the package wandb, which is not installed: pip install 'rankrise[track]'.",
    "trackio": "A TrackioSink needs the package trackio, which is not installed: pip install 'rankrise[track]'.",
    "mlflow": "An MlflowSink needs the package mlflow-skinny, which is not installed: pip install 'rankrise[track]'.",
    "digits": "Loading the digits needs the package scikit-learn, which is not installed: "
    "pip install 'rankrise[demo]'.",
}


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extras")
    for split in ("train", "val"):
        (folder / "images" / split / "cat").mkdir(parents=True)
        (folder / "images" / split / "cat" / "1.png").write_bytes(b"")
    blocked = json.dumps([*_EXTRAS, "PIL", "accelerate", "pytorch_lightning", "markupsafe"])
    done = subprocess.run([sys.executable, "-c", CHILD, blocked, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("task", ["track", "diff", "help", "lora"])
def test_the_library_works_without_extras(child, task):
    assert child[0][task] is True


@pytest.mark.parametrize("task", SAID)
def test_a_missing_extra_is_one_sentence(child, task):
    assert child[1][task] == SAID[task]


def test_the_metadata_has_every_extra_that_a_sentence_names():
    extras = METADATA["optional-dependencies"]
    for package, extra in _EXTRAS.values():
        assert any(line.startswith(package) for line in extras[extra]), (package, extra)


def test_all_has_every_extra_of_a_user():
    extras = METADATA["optional-dependencies"]
    (line,) = extras["all"]
    listed = line.removeprefix("rankrise[").removesuffix("]").split(",")
    assert sorted(listed) == sorted(set(extras) - {"all", "docs", "bench", "dev"})


def test_the_sdist_holds_what_the_tests_read():
    with (ROOT / "pyproject.toml").open("rb") as file:
        included = set(tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    read = {name for path in ROOT.rglob("tests/**/*.py") for name in re.findall(r'\bROOT / "(\w+)', path.read_text())}
    assert {"src", "results", "docs"} <= read
    assert {name for name in read if (ROOT / name).is_dir()} <= included


def imported(path):
    """Modules of other packages that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module


def test_the_package_imports_only_what_it_or_an_extra_brings():
    brought = {"torch", "numpy", "scipy", "safetensors", "pyarrow", "typer", "rich", "rankrise", *_EXTRAS}
    brought |= {"markupsafe", "triton"}  # of jinja2 and of torch
    brought |= {"pandas", "polars"}  # of the user; `to_pandas` and `to_polars` of a run say so in a sentence
    found = {
        (name.partition(".")[0], path.name)
        for path in (ROOT / "src").rglob("*.py")
        for name in imported(path)
        if name.partition(".")[0] not in sys.stdlib_module_names
    }
    assert {entry for entry in found if entry[0] not in brought} == set()
    assert {line.partition(">")[0] for line in METADATA["dependencies"]} < brought


def test_what_is_installed_is_not_refused():
    require("Sorting", "matplotlib")
