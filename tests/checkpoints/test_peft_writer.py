"""Nothing half-written, ever: a full disk leaves nothing, a killed process leaves no adapter, and both can go again."""

import errno
import os
import signal

import pytest
import torch
from safetensors.torch import save_file
from tests.processes import exit_code

from rankrise.checkpoints import extract_lora, open_checkpoint, resize_lora
from rankrise.store._failpoints import ADAPTER_FAILPOINTS, VARIABLE

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
AFTER = ("adapter.sync", "adapter.done")  # it has its name by then


@pytest.fixture
def pair(tmp_path):
    generator = torch.Generator().manual_seed(0)
    weight, left, right = (torch.randn(*s, generator=generator) for s in ((20, 30), (20, 2), (2, 30)))
    save_file({"a.weight": weight}, tmp_path / "base.safetensors")
    save_file({"a.weight": weight + 0.1 * left @ right}, tmp_path / "tuned.safetensors")
    return tmp_path / "base.safetensors", tmp_path / "tuned.safetensors"


@pytest.mark.parametrize("failpoint", ADAPTER_FAILPOINTS)
@pytest.mark.parametrize("action", ["full", "readonly"])
def test_full_disk_leaves_nothing(tmp_path, pair, monkeypatch, failpoint, action):
    monkeypatch.setenv(VARIABLE, f"{failpoint}:{action}")
    with pytest.raises(OSError, match=r"No space left|Read-only"):
        extract_lora(*pair, out=tmp_path / "out" / "adapter", rank=2)
    monkeypatch.delenv(VARIABLE)
    left = sorted(p.name for p in (tmp_path / "out").iterdir()) if (tmp_path / "out").exists() else []
    assert left == (["adapter"] if failpoint in AFTER else [])
    assert extract_lora(*pair, out=tmp_path / "again", rank=2).error < 1e-4


@pytest.mark.parametrize("failpoint", ADAPTER_FAILPOINTS)
def test_killed_anywhere_there_is_a_whole_adapter_or_none(tmp_path, pair, failpoint):
    def work():
        os.environ[VARIABLE] = f"{failpoint}:kill"
        torch.set_num_threads(1)
        extract_lora(*pair, out=tmp_path / "adapter", rank=2)

    assert exit_code(work) == -signal.SIGKILL
    if failpoint in AFTER:
        assert open_checkpoint(tmp_path / "adapter").kind == "peft"
        return
    assert not (tmp_path / "adapter").exists()
    extract_lora(*pair, out=tmp_path / "adapter", rank=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["adapter", "base.safetensors", "tuned.safetensors"]


def test_no_room_is_said_before_writing(tmp_path, pair, monkeypatch):
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(
        OSError, match=r"No space left on device; 0\.0004 MB are needed\. Make room, or choose another `out`"
    ):
        extract_lora(*pair, out=tmp_path / "adapter", rank=2)
    assert not list(tmp_path.glob(".tmp*"))


def test_a_file_beyond_the_limit_is_named(tmp_path, pair, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr("rankrise.checkpoints.lora._peft_writer.stream_tensors", refuse)
    with pytest.raises(OSError, match=r"File too large; .* Make room, or choose another `out`: '.*adapter'"):
        extract_lora(*pair, out=tmp_path / "adapter", rank=2)
    assert not list(tmp_path.glob(".tmp*"))


def test_resize_leaves_nothing_either(tmp_path, pair, monkeypatch):
    extract_lora(*pair, out=tmp_path / "adapter", rank=2)
    before = sorted(p.name for p in tmp_path.iterdir())
    monkeypatch.setenv(VARIABLE, "adapter_config.rename:full")
    with pytest.raises(OSError, match="No space left"):
        resize_lora(tmp_path / "adapter", out=tmp_path / "small", rank=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_files_have_the_permissions_of_the_umask(tmp_path, pair):
    extract_lora(*pair, out=tmp_path / "adapter", rank=2)
    mask = os.umask(0)
    os.umask(mask)
    modes = {p.stat().st_mode & 0o777 for p in (tmp_path / "adapter").iterdir()}
    assert modes == {0o666 & ~mask}
    assert {p.name for p in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "rankrise.json",
    }  # fmt: skip
