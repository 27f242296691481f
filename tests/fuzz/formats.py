"""The formats that come from somebody else: how to make a valid file, how to change it, and who reads it.

Whatever a file holds, reading it either works or raises a `ValueError` or `FileNotFoundError` of our own with one
sentence; and the report of a folder of runs is made whatever one of them holds.
"""

import json
import os
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tests.checkpoints import files
from tests.fuzz import mutations
from tests.lab.figures.runs import flow_run, network_run

import rankrise
from rankrise.checkpoints import diff, open_checkpoint
from rankrise.cli._stages import _network as read_npz
from rankrise.lab.claims import evaluate_claims
from rankrise.lab.experiments import runs_by_experiment, summarise_run
from rankrise.lab.figures import build_figures, describe_run
from rankrise.lab.report import environment_of
from rankrise.runs import NotMeasurable, find_runs, open_run
from rankrise.store import (
    UntrustedFolder,
    UntrustedInputError,
    create_run,
    load_initial,
    load_run,
    load_spec,
    resume_run,
    rows,
    verify_run,
)
from rankrise.store._atomic import sha256

DOCUMENTED = (ValueError, UntrustedInputError, NotMeasurable, FileNotFoundError)
_OURS = os.path.dirname(os.path.abspath(rankrise.__file__))
_MODULES = {"h.0.q": (6, 4), "h.0.v": (6, 4)}
_RUN = "vit-cifar10/000000000000"
_TOY = "toy-flow-1e-8/000000000000"


def _nothing(folder):
    pass


@dataclass(frozen=True)
class Format:
    """A kind of file."""

    name: str
    make: Callable  # writes valid files into a folder
    file: str  # the one that is changed
    read: Callable  # what programs do with the folder
    reshape: Callable  # a change of the structure: (data, random, valid) -> data
    fit: Callable = _nothing  # what a sender would change along, such as checksums
    is_changed_by_reading: bool = False
    is_ever_refused: bool = True  # a damaged environment is passed over, because no number depends on it

    def valid(self):
        """The content of a valid file."""
        with tempfile.TemporaryDirectory() as folder:
            self.make(Path(folder))
            return (Path(folder) / self.file).read_bytes()

    def mutate(self, data, random, valid):
        """A changed file, whose change lies in its bytes, in its structure, or in both."""
        if random.random() < 0.7:
            data = self.reshape(data, random, valid)
        if random.random() < 0.4:
            data = mutations.change_bytes(data, random, valid)
        return data


class Reader:
    """Gives contents of the file of a format to its readers, in a folder of valid files."""

    def __init__(self, form, folder):
        self._form, self._folder = form, folder / "whole"
        self._pristine = folder / "pristine"
        form.make(self._folder)
        if form.is_changed_by_reading:
            shutil.copytree(self._folder, self._pristine)

    def __call__(self, content):
        """Whether it was read; False if it was refused as documented. Anything else is raised."""
        if self._form.is_changed_by_reading:
            shutil.rmtree(self._folder)
            shutil.copytree(self._pristine, self._folder)
        (self._folder / self._form.file).write_bytes(content)
        self._form.fit(self._folder)
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            try:
                self._form.read(self._folder)
            except DOCUMENTED as error:
                check_refusal(error)
                return False
        return True


def check_refusal(error):
    """An error is raised by a line of ours, is of a type that is documented, and says one sentence."""
    place = traceback.extract_tb(error.__traceback__)[-1].filename
    assert type(error) in DOCUMENTED, f"{type(error).__name__} is not documented: {error}"
    assert place.startswith(_OURS), f"{place} raised from within: {error}"
    message = str(error)
    assert message.isprintable(), f"not printable: {message!a}"
    assert len(message) < 1500, f"too long: {message[:200]!a}"
    assert message.endswith((".", ")")), f"no sentence: {message}"


def _read_checkpoint(path, *, allow_torch_load=False):
    checkpoint = open_checkpoint(path, allow_torch_load=allow_torch_load)
    for name in checkpoint.tensors:
        checkpoint.read(name)


# Checkpoints and adapters


def _make_pair(folder):
    state = {"h.0.weight": torch.eye(4), "h.1.weight": torch.ones(2, 3), "h.bias": torch.ones(3)}
    for name in ("base", "tuned"):
        files.save(folder / name, state, files.CONFIG)


def _read_pair(folder):
    _read_checkpoint(folder / "tuned")
    diff(folder / "base", folder / "tuned")


def _make_adapter(folder):
    files.save_peft(
        folder, _MODULES, alpha_pattern={"h.0.q": 8, ".*v": 2}, rank_pattern={"q": 2}, use_rslora=False, use_dora=False,
        init_lora_weights=True, fan_in_fan_out=False, target_modules=["q", "v"], lora_dropout=0.0,
    )  # fmt: skip


def _make_shards(folder):
    files.save_shards(folder, {f"h.{n}.weight": torch.eye(3) * n for n in range(4)}, num=2)


def _make_torch(folder):
    folder.mkdir(exist_ok=True)
    torch.save({"state_dict": {"h.0.weight": torch.ones(3, 4), "h.bias": torch.ones(2)}, "epoch": 3}, folder / "x.pt")


def _make_npz(folder):
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    np.savez(folder / "x.npz", x=generator.standard_normal((5, 3)), y=generator.standard_normal(5))


# Runs


def _make_network(folder):
    ranks = {step: [[1.0, 1.2], [1.5, 1.7]] for step in (0, 10, 20)}
    spectra = {step: [[[4.0, 1.0]] * 2] * 2 for step in (10, 20)}
    network_run(folder, "vit-cifar10", ranks=ranks, spectra=spectra, initial=[[[2.0, 1.9]] * 2] * 2)


def _make_flow(folder):
    products = [[0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, -2]]
    flow_run(folder, -8.0, times=[0, 1, 2], losses=[3, 2, 0], products=products)


def _make_live(folder):
    run = create_run(folder, spec={"kind": "tracker"}, initial={"w": torch.ones(2)})
    for step in (1, 2, 3):
        run.append(rows(step, "spectrum", [[3.0, 2.0, 1.0]], circuit="q", layers=[0]))
        run.append(rows(step, "loss", [1 / step]))
    run.close()


def _forge(run, name):
    """Let the manifest say that a file is as it should be."""

    def fit(root):
        path = root / run / "MANIFEST.json"
        manifest = json.loads(path.read_text())
        with UntrustedFolder(root / run) as folder:
            manifest["files"][name] = sha256(folder, name)
        path.write_text(json.dumps(manifest))

    return fit


def _report(root):
    """What `rankrise report` reads; one run that is not sound must not stop it."""
    found = runs_by_experiment(root)
    evaluate_claims(found)
    build_figures(found)
    environment_of(found)
    for run in (run for runs in found.values() for run in runs):
        describe_run(run)
        summarise_run(run)


def _read_run(place, quantity, circuit):
    def read(root):
        try:
            _report(root)
        except Exception as error:
            raise AssertionError(f"one run stops the report: {type(error).__name__}: {error}") from error
        find_runs(root)
        verify_run(root / place)
        load_spec(root / place)
        load_run(root / place)
        load_initial(root / place)
        open_run(root / place).path(quantity, circuit)

    return read


def _read_live(folder):
    load_run(folder)
    run = resume_run(folder, step=2)
    run.append(rows(4, "loss", [1.0]))
    run.seal()
    load_run(folder)


_READ_RUN = _read_run(_RUN, "stable_rank", "kq")
_READ_TOY = _read_run(_TOY, "product", "kq")
FORMATS = {
    form.name: form
    for form in (
        Format("safetensors", _make_pair, "tuned/model.safetensors", _read_pair, mutations.change_safetensors),
        Format("config", _make_pair, "tuned/config.json", _read_pair, mutations.change_json),
        Format("adapter_config", _make_adapter, "adapter_config.json", diff, mutations.change_json),
        Format("adapter", _make_adapter, "adapter_model.safetensors", diff, mutations.change_safetensors),
        Format("index", _make_shards, "model.safetensors.index.json", _read_checkpoint, mutations.change_json),
        Format(
            "pt", _make_torch, "x.pt", lambda folder: _read_checkpoint(folder / "x.pt", allow_torch_load=True),
            mutations.change_zip,
        ),
        Format(
            "npz", _make_npz, "x.npz", lambda folder: read_npz(folder / "x.npz", dim=1, tokens=1, samples=1, seed=0),
            mutations.change_zip,
        ),
        Format("manifest", _make_network, f"{_RUN}/MANIFEST.json", _READ_RUN, mutations.change_json),
        Format("spec", _make_network, f"{_RUN}/spec.json", _READ_RUN, mutations.change_json, _forge(_RUN, "spec.json")),
        Format(
            "toy_spec", _make_flow, f"{_TOY}/spec.json", _READ_TOY, mutations.change_json, _forge(_TOY, "spec.json")
        ),
        Format(
            "env", _make_network, f"{_RUN}/env.json", _READ_RUN, mutations.change_json, _forge(_RUN, "env.json"),
            is_ever_refused=False,
        ),
        Format(
            "parquet", _make_network, f"{_RUN}/metrics.parquet", _READ_RUN, mutations.change_parquet,
            _forge(_RUN, "metrics.parquet"),
        ),
        Format(
            "toy_parquet", _make_flow, f"{_TOY}/metrics.parquet", _READ_TOY, mutations.change_parquet,
            _forge(_TOY, "metrics.parquet"),
        ),
        Format(
            "arrow", _make_live, "metrics.arrows", _read_live, mutations.change_stream, is_changed_by_reading=True
        ),
    )
}  # fmt: skip
