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
from safetensors.torch import save_file
from tests.checkpoints import files
from tests.fuzz import mutations
from tests.lab.figures.runs import flow_run, network_run

import rankrise
from rankrise.checkpoints import diff, open_checkpoint
from rankrise.checkpoints.function import read_inputs
from rankrise.cli._stages import _network as read_own_data
from rankrise.lab.claims import evaluate_claims
from rankrise.lab.experiments import runs_by_experiment, summarise_run
from rankrise.lab.figures import build_figures, describe_run
from rankrise.lab.report import environment_of
from rankrise.runs import NotMeasurable, RunData, find_runs, open_run
from rankrise.store import (
    RunFollower,
    UntrustedFolder,
    UntrustedInputError,
    create_run,
    load_initial,
    load_run,
    load_spec,
    read_npy,
    resume_run,
    rows,
    verify_run,
)
from rankrise.store._atomic import sha256
from rankrise.view.live._catalogue import Catalogue
from rankrise.view.live._snapshot import snapshot, summary

DOCUMENTED = (ValueError, UntrustedInputError, NotMeasurable, FileNotFoundError)
_OURS = os.path.dirname(os.path.abspath(rankrise.__file__))
_SHAPES = (("A", (2, 4)), ("B", (6, 2)))
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


def _read_image_adapter(folder):
    diff(folder / "x.safetensors")


def _make_shards(folder):
    files.save_shards(folder, {f"h.{n}.weight": torch.eye(3) * n for n in range(4)}, num=2)


def _make_kohya(folder):
    folder.mkdir(exist_ok=True)
    stem = "lora_unet_down_blocks_0_attn1_to_q"
    tensors = {f"{stem}.lora_down.weight": torch.ones(2, 4), f"{stem}.lora_up.weight": torch.ones(6, 2)}
    save_file(tensors | {f"{stem}.alpha": torch.tensor(1.0)}, folder / "x.safetensors", {"ss_network_dim": "2"})


def _make_diffusers(folder):
    folder.mkdir(exist_ok=True)
    tensors = {f"unet.{n}.to_q.lora_{side}.weight": torch.ones(shape) for n in (0, 1) for side, shape in _SHAPES}
    config = {"unet.r": 2, "unet.lora_alpha": 4, "unet.alpha_pattern": {"0.to_q": 8}, "unet.use_rslora": False}
    save_file(tensors, folder / "x.safetensors", {"lora_adapter_metadata": json.dumps(config)})


def _make_torch(folder):
    folder.mkdir(exist_ok=True)
    torch.save({"state_dict": {"h.0.weight": torch.ones(3, 4), "h.bias": torch.ones(2)}, "epoch": 3}, folder / "x.pt")


def _read_npz(folder):
    read_inputs(folder / "x.npz", folder)
    read_own_data(folder / "x.npz", dim=1, tokens=1, samples=1, seed=0)


def _make_npy(folder):
    folder.mkdir(exist_ok=True)
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal((5, 3)))


def _read_npy(folder):
    read_npy(folder / "x.npy", argument="data")


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


def _make_verdicts(folder):
    folder.mkdir(exist_ok=True)
    claim = {"claim": {"statement": "heads rise"}, "verdict": "holds", "reason": "n = 3", "runs": ["a", "b"]}
    (folder / "verdicts.json").write_text(json.dumps([claim] * 3))


def _read_verdicts(folder):
    catalogue = Catalogue(folder)
    catalogue.refresh()
    json.dumps(catalogue.verdicts(), allow_nan=False)


def _live_page(root):
    """What the live page reads: the list names every run, and a run is shown or refused."""
    catalogue = Catalogue(root)
    catalogue.refresh()
    for entry in catalogue.entries():
        json.dumps(entry.to_json(), allow_nan=False)
        try:
            with catalogue.folder(entry.path) as folder:
                run = RunData.of_followed(root / entry.path, RunFollower(folder).read())
            found = [summary(run), snapshot(run, entry.state, run.stages())]
        except DOCUMENTED as error:
            check_refusal(error)
        else:
            json.dumps(found, allow_nan=False)


def _read_run(place, quantity, circuit):
    def read(root):
        try:
            _report(root)
            _live_page(root)
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
        Format("npy", _make_npy, "x.npy", _read_npy, mutations.change_bytes),
        Format("npz", _make_npz, "x.npz", _read_npz, mutations.change_zip),
        Format("kohya", _make_kohya, "x.safetensors", _read_image_adapter, mutations.change_safetensors),
        Format("diffusers", _make_diffusers, "x.safetensors", _read_image_adapter, mutations.change_metadata),
        Format(
            "verdicts", _make_verdicts, "verdicts.json", _read_verdicts, mutations.change_json, is_ever_refused=False
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
