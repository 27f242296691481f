"""Names on the hub are read from its cache, and refused in a sentence where it has none."""

import json

import pytest
import torch
from safetensors.torch import save_file

from rankrise import _extras
from rankrise.checkpoints import diff, extract_lora, open_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with the models `me/base` and `me/tuned`, and no connection."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name, size in (("base", 1.0), ("tuned", 1.5)):
        place = tmp_path / "hub" / f"models--me--{name}"
        for folder in ("blobs", "refs", f"snapshots/{COMMIT}"):
            (place / folder).mkdir(parents=True)
        save_file({"a.weight": size * torch.eye(3)}, place / "blobs" / "abc")
        (place / "refs" / "main").write_text(COMMIT)
        (place / "snapshots" / COMMIT / "model.safetensors").symlink_to("../../blobs/abc")
    return tmp_path


def test_a_name_is_read_from_the_cache(cache):
    assert open_checkpoint("me/base@main").tensors["a.weight"].shape == (3, 3)
    (row,) = diff("me/base@main", f"me/tuned@{COMMIT}").rows
    assert row.relative == pytest.approx(0.5)
    extract_lora("me/base@main", "me/tuned@main", out=cache / "adapter", rank=1)
    config = json.loads((cache / "adapter" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("me/base", "main")


@pytest.mark.parametrize("name", ["me/other@main", "me/base@v2"])
def test_what_the_cache_does_not_have_is_refused_in_a_sentence(cache, name):
    with pytest.raises(ValueError, match=rf"^{name} must be on the hub or in its cache; .* or name a folder\.$"):
        open_checkpoint(name)


def test_a_path_is_never_taken_for_a_name(cache, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="me/base does not exist"):
        open_checkpoint("me/base")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_checkpoint("me/base@main/../../../other")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "me").mkdir()
    save_file({"b": torch.ones(1)}, tmp_path / "me" / "base@main")
    assert "b" in open_checkpoint("me/base@main").tensors


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("gpt2", "If it is a model on the hub, name its owner and its revision, such as owner/gpt2@main."),
        ("gpt2@main", "If it is a model on the hub, name its owner and its revision, such as owner/gpt2@main."),
        ("me/base", "If it is a model on the hub, name its revision, such as me/base@main."),
        ("https://huggingface.co/me/base", "If it is a model on the hub, name its revision, such as me/base@main."),
        ("hf://me/base", "If it is a model on the hub, name its revision, such as me/base@main."),
        ("./me/base", None),
        ("me/model.safetensors", None),
        ("a/longer/path", None),
    ],
)
def test_a_name_without_its_revision_is_told_how_names_are_written(cache, path, hint):
    with pytest.raises(FileNotFoundError) as refusal:
        open_checkpoint(path)
    assert str(refusal.value) == f"{path} does not exist.{f' {hint}' if hint else ''}"


def test_without_huggingface_hub(monkeypatch):
    monkeypatch.setattr(_extras, "is_installed", lambda module: False)
    with pytest.raises(ModuleNotFoundError, match=r"A checkpoint on the hub needs the package huggingface_hub"):
        open_checkpoint("me/base@main")
