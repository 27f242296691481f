"""`rankrise serve` as a process: what it prints and refuses, and that its streams tell of what happens to runs."""

import signal
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest
import torch
from tests.runs.test_open_run import planted
from tests.view.live.server import ask, events, serving

from rankrise.cli import main
from rankrise.store import Alert, alert_rows, create_run, rows, scalar_rows
from rankrise.view.live import Catalogue, _watch, snapshot

LAYER = {"index": 0, "name": "a", "num_heads": 2, "head_dim": 2, "views": {}}


def begin(folder):
    return create_run(folder, spec={"layers": [LAYER]}, initial={"w": torch.zeros(1)})


def record(run, step, rank=1.0):
    run.append(scalar_rows([(step, "loss", 1 / step)]))
    run.append(rows(step, "stable_rank", [[rank, rank]], circuit="kq", layers=(0,), heads=True))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    planted(root / "mine")
    return root


@pytest.fixture(scope="module")
def server(root):
    with serving(root) as process:
        yield process


def until(stream, is_there):
    """The first event of which something is true."""
    return next(data for _, data in stream if is_there(data))


def test_the_list_and_a_run_follow_a_training_within_two_seconds(server, root):
    with events(server.url) as listing:
        assert [run["path"] for run in next(listing)[1]["runs"]] == ["mine"]
        run = begin(root / "new")
        new = until(listing, lambda data: any(run["path"] == "new" for run in data["runs"]))
        (run_id,) = (one["id"] for one in new["runs"] if one["path"] == "new")
        with events(server.url, f"events?run={run_id}") as stream:
            assert next(stream)[1]["lastStep"] is None
            seconds = []
            for step in range(1, 31):
                record(run, step, rank=1.0 + (step > 15))
                if step in (1, 2, 3, 4, 30):
                    written = time.monotonic()
                    found = until(stream, lambda data, step=step: data["lastStep"] == step)
                    seconds.append(time.monotonic() - written)
            assert sorted(seconds)[2] < 2, seconds  # one may be late on a busy machine
            assert found["curves"]["stable_rank"]["kq"]["values"] == [[1] * 15 + [2] * 15]
            staged = until(stream, lambda data: data["stages"])
            assert [(stage["layer"], stage["circuit"]) for stage in staged["stages"] if stage["kind"] == "rank"] == [
                (0, "kq")
            ]
            run.close()  # as a killed process leaves it
            assert until(stream, lambda data: data["state"] != "running")["state"] == "stopped"
        until(listing, lambda data: any((one["path"], one["state"]) == ("new", "stopped") for one in data["runs"]))
        until(listing, lambda data: any((one["path"], one.get("step")) == ("new", 30) for one in data["runs"]))
        (root / "new").rename(root.parent / "away")
        assert until(listing, lambda data: data["gone"])["gone"] == [run_id]


def test_a_foreign_host_a_missing_token_and_steps_upwards_are_refused(server):
    path = urlsplit(server.url).path
    assert ask(server.url, f"{path}runs")[0] == 200
    assert ask(server.url, f"{path}runs", headers={"Host": "evil.example"})[0] == 400
    assert ask(server.url, "/runs")[0] == 403
    for way_up in ("../", "%2e%2e/", "..%2f", "assets/../../"):
        status, _, body = ask(server.url, f"{path}{way_up}{way_up}etc/passwd")
        assert status in (403, 404)
        assert b"root:" not in body
    status, headers, _ = ask(server.url, f"{path}runs", method="POST")
    assert (status, headers["allow"], headers["server"]) == (405, "GET, HEAD", None)


def test_control_c_ends_it_at_once_though_pages_are_open(root):
    with serving(root) as process, events(process.url) as stream:
        next(stream)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert process.stderr.read().splitlines() == [
            f"showing the runs in {root}; Ctrl-C stops this page and no training"
        ]


def test_the_server_starts_and_a_run_with_alerts_is_shown_without_torch(tmp_path):
    layer = {"index": 0, "name": "a", "num_heads": 1, "head_dim": 1, "views": {}}
    run = create_run(
        tmp_path / "run", spec={"layers": [layer], "alerts": ["rank_collapse"]}, initial={"w": torch.zeros(1)}
    )
    run.append(alert_rows([Alert("rank_collapse", 1, 0, -1, "kq", 1.0, 4.0)]))
    run.seal()
    program = """
import sys
from pathlib import Path
import rankrise.view.live as live
loaded = {"torch", "scipy", "matplotlib", "uvicorn"} & set(sys.modules)
from rankrise.runs import open_run
shown = live.snapshot(open_run(sys.argv[1]), "finished", None)
print(*loaded, len(shown["alerts"]), "torch" in sys.modules)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]


def test_a_machine_that_is_busy_does_not_postpone_the_next_look(tmp_path, monkeypatch):
    run = begin(tmp_path / "run")
    record(run, 1)
    catalogue = Catalogue(tmp_path)
    (entry,) = catalogue.refresh().changed
    watched = _watch.Watched(entry.id, entry.path, catalogue)
    waits = [1.5, 0.0]  # seconds in which another process has the core

    def late(*arguments):
        time.sleep(waits.pop(0))
        return snapshot(*arguments)

    monkeypatch.setattr(_watch, "snapshot", late)
    assert watched.look()
    record(run, 2)
    time.sleep(1.0)  # the CPU time of the first look asks for a shorter rest
    assert watched.look()
    watched.close()
    run.close()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere"], "must be a folder; nowhere does not exist. Begin a training that writes it, or name another."),
        ([__file__], "is a file. Name its folder."),
        ([".", "--port", "0"], "--port"),
    ],
)
def test_wrong_usage(args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rankrise", "serve", *args])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_port_that_is_taken_is_said(server, root, monkeypatch, capsys):
    port = urlsplit(server.url).port
    monkeypatch.setattr(sys, "argv", ["rankrise", "serve", str(root), "--port", str(port)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    assert f"`--host` and `--port` must be free; 127.0.0.1:{port} is not" in capsys.readouterr().err


def test_a_page_of_a_run_follows_its_place_when_it_is_removed_replaced_or_linked(server, root):
    """A new run at the place of one that was moved away is another run, though the folder of the first still exists."""
    run = begin(root / "placed")
    record(run, 1)
    run.close()
    (run_id,) = (one["id"] for one in list_now(server) if one["path"] == "placed")
    with events(server.url, f"events?run={run_id}") as stream:
        assert until(stream, lambda data: data["lastStep"] == 1)["state"] == "stopped"
        (root / "placed").rename(root.parent / "moved")
        gone = until(stream, lambda data: data["state"] == "removed")
        assert (gone["name"], gone["problem"]) == (
            "placed",
            "The run was removed from the folder; what is below was read before.",
        )
        assert ask(server.url, f"{urlsplit(server.url).path}spectra?run={run_id}&layer=0&head=0")[0] == 404
        run = begin(root / "placed")
        record(run, 7)
        assert until(stream, lambda data: data.get("lastStep") == 7)["state"] == "running"
        run.close()
        (root / "placed").rename(root.parent / "moved-too")
        begin(root / "placed").close()
        assert until(stream, lambda data: data.get("lastStep", 0) is None)["state"] == "stopped"
        (root / "placed").rename(root.parent / "moved-thrice")
        (root / "placed").symlink_to(root.parent / "moved")
        until(stream, lambda data: data["state"] == "damaged")


def list_now(server):
    with events(server.url) as listing:
        return next(listing)[1]["runs"]
