"""A follower sees what `load_run` sees at every moment, reads each block once, and notices a run that was replaced."""

import os
import threading

import pytest
import torch

from rankrise.store import RunFollower, UntrustedFolder, create_run, load_run, resume_run, rows, scalar_rows
from rankrise.store import _blocks as blocks
from rankrise.store._lock import is_locked


def begin(path, **spec):
    return create_run(path, spec=spec, initial={"w": torch.zeros(1)})


def test_it_sees_every_block_once_and_the_end(tmp_path, monkeypatch):
    run = begin(tmp_path)
    follower = RunFollower(UntrustedFolder(tmp_path))
    read = []
    add = blocks._Reader._add
    monkeypatch.setattr(blocks._Reader, "_add", lambda self, block: (read.append(block.num_rows), add(self, block)))
    for step in range(1, 201):
        stamp = follower.stamp()
        run.append(rows(step, "spectrum", [[2.0, 1.0]], circuit="q", layers=[0]))
        assert follower.stamp() != stamp
        assert follower.read().table.num_rows == 2 * step
    assert sum(read) == 400
    monkeypatch.undo()
    assert follower.read().table.equals(load_run(tmp_path))
    assert follower.read().state == "running"
    run.seal()
    assert follower.read().state == "finished"
    assert follower.read().table.equals(load_run(tmp_path))


def test_rows_are_kept_packed_between_readings(tmp_path):
    run = begin(tmp_path)
    follower = RunFollower(UntrustedFolder(tmp_path))
    for step in range(1, 36):
        run.append(rows(step, "spectrum", [[2.0 + step] * 500], circuit="q", layers=[0]))
        table = follower.read().table
    kept = follower._tail._packed.size + follower._tail._loose.nbytes
    assert kept < table.nbytes / 4
    assert table.equals(load_run(tmp_path))


def test_half_a_block_is_read_when_it_is_whole(tmp_path):
    run = begin(tmp_path)
    follower = RunFollower(UntrustedFolder(tmp_path))
    stream = tmp_path / "metrics.arrows"
    before = stream.read_bytes()
    run.append(scalar_rows([(1, "loss", 0.5)]))
    run.append(scalar_rows([(2, "loss", 0.4)]))
    whole = stream.read_bytes()
    for length in range(len(before), len(whole) + 1):
        with stream.open("r+b") as file:  # the same file grows, byte by byte
            file.seek(0)
            file.truncate()
            file.write(whole[:length])
        found = follower.read().table["step"].to_pylist()
        assert found == [1, 2][: len(found)]
    assert found == [1, 2]


def test_blocks_after_a_torn_one_are_read(tmp_path):
    run = begin(tmp_path)
    follower = RunFollower(UntrustedFolder(tmp_path))
    run.append(scalar_rows([(1, "loss", 0.5)]))
    assert follower.read().table.num_rows == 1
    stream = tmp_path / "metrics.arrows"
    before = stream.read_bytes()
    run.append(scalar_rows([(2, "loss", 0.4)]))
    block = stream.read_bytes()[len(before) :]
    with stream.open("r+b") as file:
        file.truncate(len(before) + len(block) // 2)
    follower.read()
    with stream.open("ab") as file:
        file.write(block)
    assert follower.read().table["step"].to_pylist() == load_run(tmp_path)["step"].to_pylist() == [1, 2]


def test_a_run_that_was_resumed_or_replaced_is_read_anew(tmp_path):
    run = begin(tmp_path)
    for step in (1, 2, 3):
        run.append(scalar_rows([(step, "loss", 0.5)]))
    follower = RunFollower(UntrustedFolder(tmp_path))
    assert follower.read().table.num_rows == 3
    run.close()
    assert follower.read().state == "stopped"
    resumed = resume_run(tmp_path, step=1)
    assert follower.read().table["step"].to_pylist() == [1]
    resumed.close()
    create_run(tmp_path, spec={"kind": "other"}, initial={"w": torch.zeros(1)}, overwrite=True).close()
    found = follower.read()
    assert (found.spec, found.table.num_rows) == ({"kind": "other"}, 0)


def test_a_damaged_or_lost_run_is_refused(tmp_path):
    begin(tmp_path).close()
    follower = RunFollower(UntrustedFolder(tmp_path))
    (tmp_path / "metrics.arrows").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="must be the Arrow stream of a run"):
        follower.read()
    os.remove(tmp_path / "MANIFEST.json")
    with pytest.raises(FileNotFoundError, match=r"must hold MANIFEST\.json"):
        follower.read()


def test_somebody_who_asks_for_the_lock_does_not_keep_a_writer_out(tmp_path):
    begin(tmp_path).close()
    is_over = threading.Event()

    def ask():
        while not is_over.is_set():
            is_locked(tmp_path)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(200):
            resume_run(tmp_path, step=None).close()
    finally:
        is_over.set()
        thread.join()
