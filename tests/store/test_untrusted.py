"""A received run folder cannot reach files outside it, hang a reader, fill the memory, or write to the terminal."""

import contextlib
import copy
import json
import os
import pickle
import shutil
import signal
import stat
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.processes import exit_code

from rankrise.store import (
    TrainingState,
    UntrustedFolder,
    UntrustedInputError,
    create_run,
    find_checkpoint,
    has_run,
    is_locked,
    load_directions,
    load_initial,
    load_run,
    load_spec,
    prune_checkpoints,
    replacing,
    resume_run,
    rows,
    save_checkpoint,
    schema,
    verify_run,
    write_json,
)
from rankrise.store._atomic import sha256

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*was cut off or damaged")
FILES = ("spec.json", "env.json", "initial.safetensors", "MANIFEST.json", "metrics.arrows", "metrics.parquet", ".lock")
READERS = (load_run, load_spec, load_initial, load_directions, verify_run)


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


def begin(folder, *, seal=False):
    run = create_run(folder, spec={"a": 1}, initial={"w": torch.ones(2)})
    run.append(rows(1, "loss", [1.0]))
    run.save_directions(1, {"d": torch.ones(1)})
    run.seal() if seal else run.close()
    return folder


def swap_in(path, make):
    path.unlink(missing_ok=True)
    make(path)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_linked_lock_does_not_reach_its_target(tmp_path, victim, link):
    folder = begin(tmp_path / "run")
    swap_in(folder / ".lock", lambda path: link(victim, path))
    with pytest.raises(UntrustedInputError, match=r"\.lock must"):
        resume_run(folder, step=1)


@pytest.mark.parametrize("name", [*FILES, "step-000000001.safetensors"])
def test_planted_temporary_files_are_not_followed(tmp_path, victim, name):
    folder = begin(tmp_path / "run")
    parent = folder / "directions" if name.startswith("step") else folder
    (parent / f".tmp-{name}-{os.getpid()}").symlink_to(victim)
    run = resume_run(folder, step=0)
    run.save_directions(1, {"d": torch.ones(1)})
    run.seal()
    verify_run(folder)


def test_planted_temporary_file_beside_any_output(tmp_path, victim):
    (tmp_path / f".tmp-out.json-{os.getpid()}").symlink_to(victim)
    write_json(tmp_path / "out.json", [1], "spec")
    assert json.loads((tmp_path / "out.json").read_text()) == [1]
    with replacing(tmp_path / "out.json", "spec") as temporary:
        assert not temporary.is_symlink()
        temporary.write_text("new")
    assert (tmp_path / "out.json").read_text() == "new"


@pytest.mark.parametrize("name", ["spec.json", "initial.safetensors", "MANIFEST.json", "metrics.parquet"])
def test_links_are_not_read(tmp_path, name):
    folder = begin(tmp_path / "run", seal=True)
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UntrustedInputError, match="must be a regular file"):
        verify_run(folder)


def test_linked_folders_inside_are_not_entered(tmp_path):
    other, folder = begin(tmp_path / "other"), begin(tmp_path / "run")
    save_checkpoint(other, TrainingState(3, {"w": torch.ones(1)}, {}, {}))
    shutil.rmtree(folder / "directions")
    (folder / "directions").symlink_to(other / "directions")
    (folder / "checkpoints").symlink_to(other / "checkpoints")
    for call in (
        lambda: resume_run(folder, step=-1),
        lambda: load_directions(folder),
        lambda: prune_checkpoints(folder, keep=[]),
        lambda: save_checkpoint(folder, TrainingState(4, {"w": torch.ones(1)}, {}, {})),
        lambda: find_checkpoint(folder),
    ):
        with pytest.raises(UntrustedInputError, match="must be a folder"):
            call()
    assert [p.name for p in (other / "checkpoints").iterdir()] == ["step-000000003"]
    assert [p.name for p in (other / "directions").iterdir()] == ["step-000000001.safetensors"]


def test_folder_that_the_user_names_may_be_a_link(tmp_path):
    folder = begin(tmp_path / "run")
    (tmp_path / "link").symlink_to(folder)
    resume_run(tmp_path / "link", step=1).seal()
    assert load_run(tmp_path / "link").num_rows == 1


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("sealed", [False, True])
def test_pipes_do_not_hang(tmp_path, name, sealed):
    folder = begin(tmp_path / "run", seal=sealed)
    swap_in(folder / name, os.mkfifo)

    def read_all():
        signal.alarm(20)
        for read in (*READERS, has_run, is_locked, lambda path: resume_run(path, step=1)):
            with contextlib.suppress(ValueError, FileNotFoundError):
                read(folder)

    assert exit_code(read_all) == 0


def test_writer_of_a_recreated_folder_stops(tmp_path):
    folder = tmp_path / "run"
    old = create_run(folder, spec={}, initial={"w": torch.ones(2)})
    shutil.rmtree(folder)
    new = create_run(folder, spec={}, initial={"w": torch.ones(2)})
    new.append(rows(7, "loss", [1.0]))
    before = sorted(p.name for p in folder.rglob("*"))
    old.append(rows(1, "loss", [1.0]))
    for call in (
        old.sync,
        old.seal,
        lambda: old.save_directions(1, {"d": torch.ones(1)}),
        lambda: save_checkpoint(folder, TrainingState(1, {"w": torch.ones(1)}, {}, {})),
    ):
        with pytest.raises(FileNotFoundError, match="the run directory was removed"):
            call()
    old.close()
    assert sorted(p.name for p in folder.rglob("*")) == before
    new.seal()
    assert load_run(folder)["step"].to_pylist() == [7]


def test_swapped_parent_leads_no_write_elsewhere(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with UntrustedFolder(tmp_path / "a") as folder:
        (tmp_path / "a").rename(tmp_path / "moved")
        (tmp_path / "a").symlink_to(tmp_path / "b")
        os.close(folder.create("file"))
    assert (tmp_path / "moved" / "file").exists()
    assert not (tmp_path / "b" / "file").exists()


@pytest.mark.parametrize("name", ["../x", "/x", "a/../x", "", ".", "a//b", "x\0", "\udcff"])
def test_names_that_lead_outside(tmp_path, name):
    with UntrustedFolder(tmp_path) as folder, pytest.raises(UntrustedInputError, match="must lead to a file inside"):
        folder.open(name)


def test_umask_of_other_threads_is_left_alone(tmp_path):
    stop, modes, mask = threading.Event(), set(), os.umask(0o077)

    def other():
        while not stop.is_set():
            (tmp_path / "other").unlink(missing_ok=True)
            (tmp_path / "other").touch(0o666)
            modes.add(stat.S_IMODE((tmp_path / "other").stat().st_mode))

    thread = threading.Thread(target=other)
    thread.start()
    try:
        called = []
        original, os.umask = os.umask, lambda value: called.append(value) or original(value)
        try:
            write_json(tmp_path / "out.json", {}, "spec")
        finally:
            os.umask = original
    finally:
        stop.set()
        thread.join()
        os.umask(mask)
    assert not called
    assert modes <= {0o600}
    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("path", [os.fsdecode(b"bad\xff"), "a\0b", "\ud800"])
def test_path_that_is_no_text(tmp_path, path):
    for call in (
        lambda: create_run(tmp_path / path, spec={}, initial={"w": torch.ones(1)}),
        lambda: load_run(tmp_path / path),
    ):
        with pytest.raises(UntrustedInputError, match="A path must"):
            call()


def test_place_that_is_no_disk_is_called_by_its_error():
    with pytest.raises(OSError, match=r"/proc/x|/proc") as caught:
        create_run("/proc/x", spec={}, initial={"w": torch.ones(1)})
    assert "space" not in str(caught.value)


DEEP = "[" * 100_000
HOSTILE = [DEEP, '{"a":' * 100_000, "[" * 500 + "]" * 500, "null", "3", '"x"', "[1]", "\\", "\xff", "1" * 10_000, "{"]


@pytest.mark.parametrize("content", HOSTILE)
@pytest.mark.parametrize("name", ["spec.json", "MANIFEST.json"])
def test_hostile_json_is_refused_in_one_sentence(tmp_path, name, content):
    folder = begin(tmp_path / "run", seal=True)
    (folder / name).write_text(content, encoding="latin-1")
    if name != "MANIFEST.json":
        forge(folder, name)
    with pytest.raises(UntrustedInputError, match=rf"{name} must") as caught:
        load_spec(folder)
    assert "\n" not in str(caught.value)


def forge(folder, name):
    """Let the manifest say that a file is as it should be."""
    path = folder / "MANIFEST.json"
    manifest = json.loads(path.read_text())
    with UntrustedFolder(folder) as handle:
        manifest["files"][name] = sha256(handle, name)
    path.write_text(json.dumps(manifest))


LAYER = {"index": 0, "name": "a", "num_heads": 1, "head_dim": 1, "views": {"q": {"parameter": "w"}}}


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 3},
        {"layers": [3]},
        {"layers": [{}]},
        {"layers": [LAYER | {"views": 3}]},
        {"layers": [LAYER | {"num_heads": "2"}]},
        {"layers": [LAYER | {"views": {"q": {}}}]},
        {"layers": [LAYER | {"views": {"q": {"parameter": "w", "adapters": [3]}}}]},
        {"layers": [LAYER | {"views": {"q": {"parameter": "w", "norm": 3}}}]},
        {"config": None},
        {"kind": 3},
        {"quantities": "all"},
    ],
)
def test_specs_of_other_types_are_refused(tmp_path, change):
    folder = begin(tmp_path / "run", seal=True)
    (folder / "spec.json").write_text(json.dumps({"kind": "tracker", "layers": [LAYER]}))
    forge(folder, "spec.json")
    load_spec(folder)
    (folder / "spec.json").write_text(json.dumps({"kind": "tracker", "layers": [LAYER]} | change))
    forge(folder, "spec.json")
    with pytest.raises(UntrustedInputError, match=r"spec\.json must be the spec of a run"):
        load_spec(folder)


@pytest.mark.parametrize("where", ["key", "state", "file", "version"])
def test_terminal_escapes_do_not_reach_the_terminal(tmp_path, where):
    folder = begin(tmp_path / "run", seal=True)
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    escape = "\x1b[2J\u202e"
    change = {
        "key": {escape: 1},
        "state": {"state": escape},
        "file": {"files": manifest["files"] | {escape: "0"}},
        "version": {"schema_version": escape},
    }[where]
    (folder / "MANIFEST.json").write_text(json.dumps(manifest | change))
    with pytest.raises(UntrustedInputError) as caught:
        verify_run(folder)
    assert str(caught.value).isprintable()


def plant_table(folder, table, **options):
    pq.write_table(table, folder / "metrics.parquet", **options)
    forge(folder, "metrics.parquet")


def repeated(num_rows, name="loss"):
    one = rows(1, name, [1.0])
    return pa.Table.from_batches([one]).take(pa.array([0] * num_rows))


def test_small_files_do_not_fill_the_memory(tmp_path, monkeypatch):
    folder = begin(tmp_path / "run", seal=True)
    plant_table(folder, repeated(100_000), compression="zstd")
    assert load_run(folder).num_rows == 100_000
    with pytest.raises(UntrustedInputError, match="it has 100000 rows, more than 99999"):
        load_run(folder, most_rows=99_999)
    monkeypatch.setenv("RANKRISE_MOST_ROWS", "10")
    with pytest.raises(UntrustedInputError, match="it has 100000 rows, more than 10: set RANKRISE_MOST_ROWS"):
        load_run(folder)
    monkeypatch.setenv("RANKRISE_MOST_ROWS", "ten")
    with pytest.raises(ValueError, match="RANKRISE_MOST_ROWS must be a number"):
        load_run(folder)


def test_long_name_in_every_row_is_refused(tmp_path):
    folder = begin(tmp_path / "run", seal=True)
    plant_table(folder, repeated(2000, "x" * 10_000))
    assert (folder / "metrics.parquet").stat().st_size < 10**5
    with pytest.raises(UntrustedInputError, match="its names unpack to more than 128000 bytes"):
        load_run(folder, most_rows=2000)


@pytest.mark.parametrize("content", ["other", "columns", "not"])
def test_other_tables_are_refused(tmp_path, content):
    folder = begin(tmp_path / "run", seal=True)
    if content == "not":
        (folder / "metrics.parquet").write_bytes(b"PAR1nothing")
        forge(folder, "metrics.parquet")
    else:
        table = pa.table({"a\x1b[2J": [1]}) if content == "other" else repeated(3).drop_columns(["value"])
        plant_table(folder, table)
    with pytest.raises(UntrustedInputError, match="must be the table of a run") as caught:
        load_run(folder)
    assert str(caught.value).isprintable()


def test_compressed_or_huge_streams_are_refused(tmp_path):
    folder = begin(tmp_path / "run")
    block = repeated(1000).combine_chunks().to_batches()[0]
    with pytest.raises(UntrustedInputError, match="at most 0 rows"):
        load_run(folder, most_rows=0)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(folder / "metrics.arrows", schema(), options=options) as writer:
        writer.write_batch(block, custom_metadata={b"crc32": b"0"})
    with pytest.raises(UntrustedInputError, match="must not be compressed"):
        load_run(folder)
    os.truncate(folder / "metrics.arrows", 2**42)
    with pytest.raises(UntrustedInputError, match="must have at most"):
        load_run(folder)


def test_run_is_inert_in_a_forked_child(tmp_path):
    run = create_run(tmp_path / "run", spec={}, initial={"w": torch.ones(2)})
    run.append(rows(1, "loss", [1.0]))

    def child():
        assert not run.is_ours
        run.append(rows(2, "loss", [2.0]), sync=True)
        run.save_directions(2, {"d": torch.ones(1)})
        run.seal()
        run.close()

    assert exit_code(child) == 0
    assert is_locked(run.folder)
    run.append(rows(3, "loss", [3.0]))
    run.seal()
    assert load_run(run.folder)["step"].to_pylist() == [1, 3]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_run_is_not_copied(tmp_path, duplicate):
    run = create_run(tmp_path / "run", spec={}, initial={"w": torch.ones(2)})
    with pytest.raises(TypeError, match="must not be copied or pickled"):
        duplicate(run)
    run.close()


def test_compressed_block_after_good_ones_is_said(tmp_path):
    """The good blocks are kept, and nobody is left to think that they are all."""
    folder = begin(tmp_path / "run")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema(), options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        head = sink.tell()
        writer.write_batch(repeated(100_000).combine_chunks().to_batches()[0], custom_metadata={b"crc32": b"0"})
        data = sink.tell()
    with (folder / "metrics.arrows").open("ab") as file:
        file.write(sink.getvalue().to_pybytes()[head:data])
    with pytest.warns(UserWarning, match=rf"cut off or damaged: {data - head} bytes after step 1 could not be read"):
        assert load_run(folder).num_rows == 1
    with pytest.warns(UserWarning, match="What was recorded in between is lost"):
        resume_run(folder, step=5).close()
