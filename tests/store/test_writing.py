"""Life of a run directory: begun once, written by one, resumed from a checkpoint, sealed."""

import json
import resource
import shutil
import signal

import pyarrow.parquet as pq
import pytest
import torch
from tests.processes import exit_code

from rankrise.store import create_run, load_initial, load_run, resume_run, rows
from rankrise.store._lock import RunLock

INITIAL = {"w": torch.ones(2, 3)}


def begin(folder, steps=0):
    run = create_run(folder, spec={"a": 1}, initial=INITIAL)
    for step in range(1, steps + 1):
        run.append(rows(step, "loss", [1 / step]))
    return run


def test_layout(tmp_path):
    begin(tmp_path, 3).seal()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".lock", "MANIFEST.json", "env.json", "initial.safetensors", "metrics.parquet", "spec.json",
    ]  # fmt: skip
    assert pq.read_table(tmp_path / "metrics.parquet").num_rows == 3
    manifest = json.loads((tmp_path / "MANIFEST.json").read_text())
    assert manifest["state"] == "sealed"
    assert manifest["num_rows"] == 3
    assert sorted(manifest["files"]) == ["env.json", "initial.safetensors", "metrics.parquet", "spec.json"]


def test_second_run_in_a_folder_is_refused(tmp_path):
    begin(tmp_path).close()
    with pytest.raises(ValueError, match=r"must not hold a run yet; it does\. Resume it, or choose another folder"):
        begin(tmp_path)


def test_files_of_somebody_else_are_not_overwritten(tmp_path):
    (tmp_path / "spec.json").write_text("mine")
    with pytest.raises(ValueError, match=r"must not hold spec\.json of something else"):
        begin(tmp_path)
    assert (tmp_path / "spec.json").read_text() == "mine"


@pytest.mark.parametrize("seal", [True, False])
def test_resume_truncates_to_the_checkpoint(tmp_path, seal):
    run = begin(tmp_path, 5)
    run.save_directions(2, {"d": torch.ones(1)})
    run.save_directions(4, {"d": torch.ones(1)})
    run.seal() if seal else run.close()
    run = resume_run(tmp_path, step=3)
    assert load_run(tmp_path)["step"].to_pylist() == [1, 2, 3]
    assert run.last_directions().keys() == {"d"}
    assert [p.name for p in (tmp_path / "directions").iterdir()] == ["step-000000002.safetensors"]
    run.append(rows(4, "loss", [9.0]))
    run.seal()
    assert load_run(tmp_path)["value"].to_pylist()[-1] == 9.0
    assert torch.equal(load_initial(tmp_path)["w"], INITIAL["w"])


def test_two_writers(tmp_path):
    run = begin(tmp_path)
    with pytest.raises(ValueError, match="must have one writer"):
        resume_run(tmp_path, step=0)
    run.close()


def test_changed_initial_weights_are_refused(tmp_path):
    begin(tmp_path).close()
    path = tmp_path / "initial.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"initial\.safetensors must be as the manifest says; it is not"):
        resume_run(tmp_path, step=0)
    with pytest.raises(ValueError, match=r"initial\.safetensors must be as the manifest says; it is not"):
        load_initial(tmp_path)


def test_damage_before_the_checkpoint_is_said_on_resume(tmp_path):
    begin(tmp_path, 5).close()
    path = tmp_path / "metrics.arrows"
    content = bytearray(path.read_bytes())
    place = content.find(bytes.fromhex("000000000000d03f"))  # 1/4, of step 4
    content[place + 6] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=r"can be read to step 3, and is resumed from step 5.*is lost"):
        run = resume_run(tmp_path, step=5)
    run.close()
    assert load_run(tmp_path)["step"].to_pylist() == [1, 2, 3]


def test_damage_before_sealing_leaves_the_run_unsealed(tmp_path):
    run = begin(tmp_path, 5)
    with (tmp_path / "metrics.arrows").open("r+b") as file:
        file.seek(-40, 2)
        file.write(b"\xff" * 8)
    with pytest.raises(OSError, match="is damaged; the run is left unsealed"):
        run.seal()
    run.close()
    with pytest.warns(UserWarning, match="after step 4 could not be read"):
        assert load_run(tmp_path)["step"].to_pylist() == [1, 2, 3, 4]


def test_lost_blocks_are_counted(tmp_path, monkeypatch):
    run = begin(tmp_path, 1)
    monkeypatch.setenv("RANKRISE_FAILPOINT", "block.half:full")
    with pytest.raises(OSError, match="No space"):
        run.append(rows(2, "loss", [1.0]))
    monkeypatch.delenv("RANKRISE_FAILPOINT")
    run.append(rows(3, "loss", [1.0]))
    run.seal()
    assert load_run(tmp_path)["step"].to_pylist() == [1, 3]
    assert json.loads((tmp_path / "MANIFEST.json").read_text())["num_lost_blocks"] == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_file_size_limit_stands_for_a_full_disk(tmp_path):
    def child():
        run = begin(tmp_path, 2)
        size = (tmp_path / "metrics.arrows").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with pytest.raises(OSError, match="File too large"):
            run.append(rows(3, "loss", [1.0]))
        assert load_run(tmp_path)["step"].to_pylist() == [1, 2]

    assert exit_code(child) == 0
    assert load_run(tmp_path)["step"].to_pylist() == [1, 2]  # without a warning: nothing is torn


def test_removed_directory_is_noticed_at_the_next_sync(tmp_path):
    run = begin(tmp_path / "run", 1)
    shutil.rmtree(tmp_path / "run")
    run.append(rows(2, "loss", [1.0]))
    with pytest.raises(FileNotFoundError, match="the run directory was removed"):
        run.append(rows(3, "loss", [1.0]), sync=True)
    run.close()


def test_sync_reaches_the_disk_only_when_asked_for(tmp_path, monkeypatch):
    run = begin(tmp_path)
    synced = []
    monkeypatch.setattr("rankrise.store._blocks.os.fsync", synced.append)
    run.append(rows(1, "loss", [1.0]))
    assert synced == []
    run.append(rows(2, "loss", [1.0]), sync=True)
    assert len(synced) == 1
    run.close()


def test_run_sealed_just_before_the_lock_is_taken(tmp_path, monkeypatch):
    run = begin(tmp_path, 3)

    def lock(folder):
        run.seal()
        return RunLock(folder)

    monkeypatch.setattr("rankrise.store._writing.RunLock", lock)
    resume_run(tmp_path, step=2).close()
    assert load_run(tmp_path)["step"].to_pylist() == [1, 2]
