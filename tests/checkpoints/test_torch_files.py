"""Files of `torch.save` where they are allowed: which mapping is the model, and what is not stored in them."""

import copy
import os
import pickle
import warnings
import zipfile

import pytest
import torch
from tests.checkpoints import files
from tests.processes import exit_code

from rankrise.checkpoints import diff, open_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


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


def allowed(path):
    return open_checkpoint(path, allow_torch_load=True)


@pytest.mark.parametrize("is_archive", [True, False])
def test_every_kind_of_tensor_comes_back(tmp_path, is_archive):
    plain = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)
    whole = torch.arange(24.0).reshape(4, 6)
    state = {str(dtype): (whole % 2).to(dtype) for dtype in plain} | {
        "transposed": whole.T,
        "part": whole[1:3, ::2],
        "tied": whole,
        "nothing": torch.empty(0, 3),
        "scalar": torch.tensor(5.0),
        "parameter": torch.nn.Parameter(whole.clone()),
    }
    if is_archive:
        state["float8"], state["unsigned"] = whole.to(torch.float8_e4m3fn), whole[0].to(torch.uint16)
    torch.save({"model": state, "step": 3, "names": ["a", {"b": (1, None)}]}, tmp_path / "x.pt",
               _use_new_zipfile_serialization=is_archive)  # fmt: skip
    checkpoint = allowed(tmp_path / "x.pt")
    assert set(checkpoint.tensors) == set(state)
    for name, tensor in state.items():
        assert torch.equal(checkpoint.read(name).float(), tensor.detach().float()), name
        assert checkpoint.read(name).dtype == tensor.dtype
        if tensor.ndim == 2 and len(tensor) > 1:
            assert torch.equal(checkpoint.read_rows(name, 1, 2).float(), tensor.detach()[1:2].float())


def test_an_archive_that_only_torch_can_open_is_refused(tmp_path):
    """Python's reader stops at the last signature of the end; torch's goes back to one with room behind it."""
    path = tmp_path / "x.pt"
    torch.save({"w": torch.zeros(2000, 2000)}, path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    with path.open("ab") as file:
        file.write(b"PK\5\6")
    assert path.stat().st_size < 100_000
    assert torch.load(path, weights_only=True)["w"].nbytes == 16_000_000
    with pytest.raises(ValueError, match=r"x\.pt is damaged: its list of members is missing"):
        allowed(path)


def legacy(path, state, change):
    """An old stream of pickles in which what follows the description of the tensors is changed."""
    torch.save(state, path, _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    keys = data.rindex(b"\x80\2]")  # the list of storages, which is pickled last
    path.write_bytes(data[:keys] + change(data[keys:]))


def test_a_stream_that_does_not_fill_its_storages_is_refused(tmp_path):
    """Torch reads it, and leaves whatever is in the memory."""
    state = {"w": torch.ones(100, 100)}
    legacy(tmp_path / "x.pt", state, lambda _: pickle.dumps([], protocol=2))
    assert torch.load(tmp_path / "x.pt", weights_only=True)["w"].shape == (100, 100)
    with pytest.raises(ValueError, match="must hold the 40000 bytes of 'w'; it does not"):
        allowed(tmp_path / "x.pt")
    legacy(tmp_path / "x.pt", state, lambda tail: tail[:-1])
    with pytest.raises(ValueError, match="it ends within a storage"):
        allowed(tmp_path / "x.pt")


def described(path, data):
    """An archive of torch with another description of its tensors."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", data)
        archive.writestr("x/data/0", bytes(16))
    return path


STORAGE = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\4tQ"  # four numbers


def rebuilt(storage=STORAGE, offset=b"K\0", shape=b"K\2K\2\x86", stride=b"K\2K\1\x86"):
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + offset + shape + stride + b"\x89NtR"
    return b"\x80\2}X\1\0\0\0w" + tensor + b"s."


HASH = b"\x80\2})" + b"q\0h\0h\0\x86" * 60 + b"Ns."  # a key made of pairs of pairs, 60 deep: its hash takes for ever


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (HASH, "a key is a tuple"),
        (b"\x80\2}" + b"r\xff\xff\xff\x7f" + b".", "must hold a state dict"),
        (b"\x80\2" + b"}" * 4_000_000 + b".", "takes more than 2000000 operations"),
        (b"\x80\4\x95" + bytes(8) + b"N.", "is none of pickle protocol 2"),
        (b"cos\nsystem\n(X\2\0\0\0lstR.", "it asks for os.system"),
        (b"cbuiltins\neval\n(X\1\0\0\x001tR.", "it asks for builtins.eval"),
        (b"\x80\2ccollections\nOrderedDict\n(]tR.", "a dictionary is made of other values"),
        (rebuilt(offset=b"K\1"), "reaches beyond its storage"),
        (rebuilt(shape=b"J\xff\xff\xff\x7fK\2\x86", stride=b"K\0K\0\x86"), "repeats some"),
        (rebuilt(shape=b"J\xff\xff\xff\xffK\2\x86"), "has no storage, no shape"),
        (rebuilt(stride=b"K\1\x85"), "has no storage, no shape"),
        (rebuilt(storage=b"N"), "has no storage, no shape"),
        (rebuilt(storage=STORAGE.replace(b"K\4", b"K\3")), "reaches beyond its storage"),
        (rebuilt(storage=STORAGE.replace(b"K\4", b"K\5")), "must hold the 20 bytes of 'w'"),
        (rebuilt(storage=STORAGE.replace(b"\x000X", b"\x001X")), "must hold the 16 bytes of 'w'"),
        (rebuilt(storage=STORAGE.replace(b"storage", b"pathway")), "no storage"),
        (b"\x80\2", "its pickle is damaged"),
        (b"\x80\2a.", "its pickle is damaged"),
    ],
)
def test_descriptions_made_to_mislead(tmp_path, data, words):
    good = allowed(described(tmp_path / "good.pt", rebuilt()))
    assert good.read("w").tolist() == [[0.0, 0.0], [0.0, 0.0]]
    with pytest.raises(ValueError, match=words) as caught:
        allowed(described(tmp_path / "x.pt", data))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("is_archive", [True, False])
def test_a_torch_file_that_is_truncated_while_it_is_read(tmp_path, is_archive):
    """A mapped file would end the process with a bus error."""
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(1000, 1000)}, path, _use_new_zipfile_serialization=is_archive)
    checkpoint = allowed(path)
    os.truncate(path, 5000)

    def read():
        with pytest.raises(ValueError, match="it was replaced or changed"):
            checkpoint.read_rows("w", 900, 1000).sum()

    assert exit_code(read) == 0
