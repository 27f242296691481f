"""Files of `torch.save` where they are allowed: which mapping is the model, and what is not stored in them."""

import copy
import warnings
import zipfile

import pytest
import torch
from tests.checkpoints import files

from rankrise.checkpoints import diff, open_checkpoint


def opened(path, content):
    torch.save(content, path)
    return open_checkpoint(path, allow_torch_load=True)


@pytest.mark.parametrize(
    "outer",
    [{}, {"epoch": torch.tensor(3)}, {"epoch": torch.tensor(3), "loss": torch.tensor(0.5), "lr": torch.tensor(0.1)}],
)
@pytest.mark.parametrize("key", ["model", "state_dict", "module"])
def test_the_inner_mapping_is_the_model(tmp_path, outer, key):
    checkpoint = opened(tmp_path / "x.pt", outer | {key: {"w": torch.ones(2, 2)}})
    assert list(checkpoint.tensors) == ["w"]


def test_an_inner_mapping_without_tensors_is_not(tmp_path):
    checkpoint = opened(tmp_path / "x.pt", {"w": torch.ones(2, 2), "model": {"name": "llama"}})
    assert list(checkpoint.tensors) == ["w"]


def test_parameters_are_read_without_their_graph(tmp_path):
    for name, size in (("base", 1.0), ("tuned", 2.0)):
        torch.save({"h.0.weight": torch.nn.Parameter(size * torch.eye(4))}, tmp_path / f"{name}.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = diff(tmp_path / "base.pt", tmp_path / "tuned.pt", allow_torch_load=True)
    assert found.rows[0].stable_rank == pytest.approx(4.0)
    assert not open_checkpoint(tmp_path / "base.pt", allow_torch_load=True).read("h.0.weight").requires_grad


@pytest.mark.parametrize("tensor", [torch.empty(3, 3, device="meta"), torch.eye(3).to_sparse()])
def test_tensors_without_values_are_refused_by_name(tmp_path, tensor):
    with pytest.raises(ValueError, match=r"must store plain tensors; 'h.0.w' is sparse"):
        opened(tmp_path / "x.pt", {"v": torch.ones(2), "h.0.w": tensor})


def test_members_that_overlap_are_refused(tmp_path):
    """An archive whose directory names the same bytes many times: each small, all together more than the file."""
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(50, 50)}, path)
    assert open_checkpoint(path, allow_torch_load=True).tensors["w"].shape == (50, 50)
    with zipfile.ZipFile(path, "a") as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
        for n in range(20):
            again = copy.copy(largest)
            again.filename = f"x/data/again{n}"
            archive.filelist.append(again)
            archive.NameToInfo[again.filename] = again
        archive._didModify = True  # so that the directory is written
    with pytest.raises(ValueError, match=r"claims .* bytes and has"):
        open_checkpoint(path, allow_torch_load=True)


@pytest.mark.parametrize("change", [-4, 4])
def test_a_file_that_shrinks_or_grows_while_it_is_read(tmp_path, change):
    """In place: the same file by its number, so that only the size tells."""
    path = files.save(tmp_path, files.weights(), None) / "model.safetensors"
    checkpoint = open_checkpoint(path)
    name = next(iter(checkpoint.tensors))
    assert checkpoint.read(name).numel() > 0
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + change)
    for name in checkpoint.tensors:
        with pytest.raises(ValueError, match="it was replaced or changed"):
            checkpoint.read(name)
