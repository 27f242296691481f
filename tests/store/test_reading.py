"""A run is read finished, live, cut off, and refused when it is not what it says."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rankrise.store import (
    UntrustedFolder,
    UntrustedInputError,
    create_run,
    load_directions,
    load_run,
    load_spec,
    resume_run,
    rows,
    scalar_rows,
    verify_run,
)
from rankrise.store._table import read_parquet


@pytest.fixture
def run(tmp_path):
    run = create_run(tmp_path / "run", spec={}, initial={"w": torch.ones(2)})
    for step in (1, 2, 3):
        run.append(rows(step, "loss", [1 / step]))
    yield run
    run.close()


def test_live_torn_and_sealed_agree(run):
    live = load_run(run.folder)
    assert live["step"].to_pylist() == [1, 2, 3]
    run.seal()
    assert load_run(run.folder).equals(live)


def test_half_a_block_of_a_live_run_is_silent_and_of_a_dead_one_is_said(run):
    path = run.folder / "metrics.arrows"
    path.write_bytes(path.read_bytes()[:-8])
    assert load_run(run.folder)["step"].to_pylist() == [1, 2]
    run.close()
    with pytest.warns(UserWarning, match=r"was cut off or damaged: \d+ bytes after step 2 could not be read"):
        assert load_run(run.folder)["step"].to_pylist() == [1, 2]


def test_bit_flip_in_a_sealed_table_is_refused(run):
    run.seal()
    path = run.folder / "metrics.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"metrics\.parquet must be as the manifest says; it is not"):
        load_run(run.folder)


def test_unknown_version_is_refused(run):
    run.seal()
    path = run.folder / "MANIFEST.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 99}))
    with pytest.raises(ValueError, match="must have schema_version 1, the one this rankrise reads; got 99"):
        load_run(run.folder)


def test_stream_left_by_a_kill_after_sealing_is_ignored(run):
    content = (run.folder / "metrics.arrows").read_bytes()
    run.seal()
    (run.folder / "metrics.arrows").write_bytes(content[:100])
    assert load_run(run.folder).num_rows == 3


def test_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="Check the path"):
        load_run(tmp_path)
    with pytest.raises(FileNotFoundError, match="Check the path"):
        load_directions(tmp_path)


def test_directions_come_by_step(run):
    run.save_directions(20, {"0.kq.left": torch.ones(1)})
    run.save_directions(3, {"0.kq.left": torch.zeros(1)})
    assert list(load_directions(run.folder)) == [3, 20]


@pytest.mark.parametrize("damage", ["flip", "remove", "add"])
def test_damaged_directions_of_a_sealed_run_are_refused(run, damage):
    run.save_directions(3, {"0.kq.left": torch.ones(4)})
    run.seal()
    assert list(load_directions(run.folder)) == [3]
    path = run.folder / "directions" / "step-000000003.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
        path.write_bytes(content)
    elif damage == "remove":
        path.unlink()
    else:
        path.with_name("step-000000004.safetensors").write_bytes(content)
    for read in (load_directions, lambda folder: resume_run(folder, step=3)):
        with pytest.raises(ValueError, match=r"step-00000000[34]\.safetensors(; it is missing| must be as)"):
            read(run.folder)


def test_spec_comes_back_and_is_checked(run):
    assert load_spec(run.folder) == {}
    (run.folder / "spec.json").write_text("{ }")
    with pytest.raises(ValueError, match=r"spec\.json must be as the manifest says"):
        load_spec(run.folder)


@pytest.mark.parametrize("name", ["spec.json", "env.json", "initial.safetensors", "metrics.parquet"])
def test_every_file_of_a_sealed_run_is_verified(run, name):
    run.seal()
    verify_run(run.folder)
    path = run.folder / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=f"{name} must be as the manifest says; it is not"):
        verify_run(run.folder)
    path.unlink()
    with pytest.raises(ValueError, match=f"must hold {name}; it is missing"):
        verify_run(run.folder)


def test_no_run_to_verify(tmp_path):
    with pytest.raises(FileNotFoundError, match="must hold MANIFEST"):
        verify_run(tmp_path)


def test_arrow_lets_go_of_nothing_that_belongs_to_python(tmp_path, monkeypatch):
    """Arrow frees memory while the interpreter ends, and a training that had read its own run ended in an abort."""
    create_run(tmp_path / "run", spec={}, initial={}).seal()
    sources, real = [], pq.ParquetFile
    monkeypatch.setattr(pq, "ParquetFile", lambda source, **options: sources.append(source) or real(source, **options))
    load_run(tmp_path / "run")
    assert [type(source) for source in sources] == [pa.BufferReader]


def test_a_sparse_file_that_would_fill_the_memory_is_refused(tmp_path):
    run = create_run(tmp_path / "run", spec={}, initial={})
    run.append(scalar_rows([(1, "loss", 0.5)]))
    run.seal()
    with open(tmp_path / "run" / "metrics.parquet", "r+b") as file:
        file.truncate(2**26)
    with UntrustedFolder(tmp_path / "run") as folder, pytest.raises(UntrustedInputError, match="it has 67108864 bytes"):
        read_parquet(folder, "metrics.parquet", most_rows=1000)
