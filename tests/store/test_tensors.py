"""Tensors come back as they were; their file has the user's permissions."""

import os
import stat

import pytest
import torch

from rankrise.store import load_tensors, save_tensors


def test_round_trip_and_mode(tmp_path):
    tensors = {"a": torch.randn(3, 4).mT, "b": torch.tensor([torch.nan, torch.inf], dtype=torch.float64)}
    mask = os.umask(0o022)
    try:
        save_tensors(tmp_path / "t.safetensors", tensors, "initial")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "t.safetensors").stat().st_mode) == 0o644
    found = load_tensors(tmp_path / "t.safetensors")
    for name, tensor in tensors.items():
        assert torch.equal(found[name].nan_to_num(7.0), tensor.nan_to_num(7.0))


def test_damaged_file_is_named(tmp_path):
    (tmp_path / "t.safetensors").write_bytes(b"\0" * 5)
    with pytest.raises(ValueError, match=r"t\.safetensors must be a safetensors file"):
        load_tensors(tmp_path / "t.safetensors")
