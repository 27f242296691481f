"""The live page's server: the list, one run, spectra, claims; and what is refused."""

import json
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.runs.test_open_run import planted

import rankrise as rr
from rankrise.store import alert_rows, create_run, rows, scalar_rows
from rankrise.tracking import Alert
from rankrise.view import live, summarise
from rankrise.view.live import Hub, live_app

TOKEN = "secret-token"
HOST = {"host": "127.0.0.1:8321"}


def client_of(root, **options):
    from starlette.testclient import TestClient

    return TestClient(live_app(Hub(root), token=TOKEN, **options), base_url="http://127.0.0.1:8321")


def listed(client):
    return {run["path"]: run for run in client.get(f"/{TOKEN}/runs").json()["runs"]}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("folder")
    planted(root / "deep" / "er" / "mine", config={"experiment": "<b>bold</b>"})
    planted(root / "cut", steps=range(1, 8), seal=False)
    planted(root / "empty", steps=())
    (root / "damaged").mkdir()
    (root / "damaged" / "MANIFEST.json").write_text("{}")
    (root / "secret.txt").write_text("nobody may read this")
    verdict = {"claim": {"statement": "ranks rise"}, "verdict": "holds", "reason": "0.9", "runs": ["er/mine"]}
    (root / "deep" / "verdicts.json").write_text(json.dumps([verdict, 7]))
    return root


@pytest.fixture(scope="module")
def client(root):
    with client_of(root) as client:
        yield client


def test_the_list_has_every_run_with_its_state(client):
    found = listed(client)
    assert {path: run["state"] for path, run in found.items()} == {
        "cut": "stopped",
        "damaged": "damaged",
        "deep/er/mine": "finished",
        "empty": "finished",
    }
    assert found["deep/er/mine"]["experiment"] == "<b>bold</b>"
    assert (found["cut"]["layers"], found["cut"]["heads"]) == (2, [3, 3])
    assert "must have schema_version 1" in found["damaged"]["problem"]


def test_one_run(client, root):
    run_id = listed(client)["deep/er/mine"]["id"]
    found = client.get(f"/{TOKEN}/run?run={run_id}").json()
    run = rr.open_run(root / "deep" / "er" / "mine")
    assert (found["state"], found["firstStep"], found["lastStep"], found["rows"]) == ("finished", 1, 40, 40 + 40 * 24)
    assert found["scalars"]["loss"] == {"steps": list(range(1, 41)), "values": [2] * 20 + [1] * 20, "last": 1}
    kq = found["curves"]["stable_rank"]["kq"]
    assert (kq["layers"], kq["values"][1]) == ([0, 1], [1] * 20 + [2] * 20)
    assert [(head["layer"], head["head"]) for head in found["heads"]] == [(h.layer, h.head) for h in run.heads()]
    assert (found["stages"], found["notes"], found["spectra"]) == (None, ["one note"], [])


def test_a_damaged_an_empty_and_a_diverged_run(client, root, tmp_path):
    found = listed(client)
    assert client.get(f"/{TOKEN}/run?run={found['damaged']['id']}").json()["state"] == "damaged"
    assert client.get(f"/{TOKEN}/run?run={found['empty']['id']}").json()["lastStep"] is None
    planted(tmp_path / "nan", diverges_at=40)
    with client_of(tmp_path / "nan") as other:
        (run,) = listed(other).values()
        answer = other.get(f"/{TOKEN}/run?run={run['id']}").text
    assert run["path"] == ""
    assert json.loads(answer, parse_constant=pytest.fail)["curves"]["stable_rank"]["kq"]["values"][1][-2:] == [2, None]


def test_claims_are_those_that_were_judged(client):
    client.get(f"/{TOKEN}/runs")
    assert client.get(f"/{TOKEN}/verdicts").json() == [
        {"folder": "deep", "verdict": "holds", "claim": "ranks rise", "reason": "0.9", "runs": ["er/mine"]}
    ]


@pytest.mark.parametrize("content", ["3", "[" * 100_000, "[" + "{}," * 2_000_000 + "{}]"])
def test_verdicts_that_are_none_are_passed_over(tmp_path, content):
    (tmp_path / "verdicts.json").write_text(content)
    with client_of(tmp_path) as client:
        client.get(f"/{TOKEN}/runs")
        assert client.get(f"/{TOKEN}/verdicts").json() == []


def test_no_script_makes_markup_of_a_text():
    """The name of a run reaches the page as text; the policy in the headers would stop a script anyway."""
    scripts = {path.name: path.read_text() for path in (Path(live.__file__).parent / "assets").glob("*.js")}
    assert "list.js" in scripts
    for name, text in scripts.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function", text), name


def test_spectra_of_one_head(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.MultiheadAttention(8, 2, bias=False)
    with rr.RankTracker(model, out=tmp_path / "run", every=1, spectra=1) as tracker:
        for step in (1, 2):
            with torch.no_grad():
                model.in_proj_weight += torch.randn(24, 8)
            tracker.step(step)
    want = rr.open_run(tmp_path / "run").curve("spectrum", circuit="vo", layer=0, head=1)
    with client_of(tmp_path) as client:
        run_id = listed(client)["run"]["id"]
        assert client.get(f"/{TOKEN}/run?run={run_id}").json()["spectra"] == ["kq", "vo"]
        found = client.get(f"/{TOKEN}/spectra?run={run_id}&circuit=vo&layer=0&head=1").json()
        assert found["steps"] == [1, 2]
        assert np.allclose(found["values"], want.values, rtol=1e-4)
        for query in ("circuit=vo&layer=9&head=1", "circuit=x&layer=0&head=0", "circuit=vo&layer=a&head=0", ""):
            assert client.get(f"/{TOKEN}/spectra?run={run_id}&{query}").status_code == 404


def test_what_probes_read_is_shown(tmp_path):
    layers = [{"index": n, "name": str(n), "num_heads": 2, "head_dim": 2, "views": {}} for n in range(2)]
    run = create_run(tmp_path / "probed", spec={"layers": layers}, initial={"w": torch.zeros(1)})
    for step in (1, 2):
        run.append(scalar_rows([(step, "loss", 1.0), (step, "jacobian_change", 9.0)]))
        run.append(rows(step, "jacobian_change", [3.0, 4.0], layers=(0, 1)))
        run.append(rows(step, "kernel_cosine", [0.5], circuit="ntk"))
        run.append(
            rows(step, "attention_entropy_share", [[0.2, 0.4], [0.6, 0.8]], circuit="kq", layers=(0, 1), heads=True)
        )
    run.seal()
    with client_of(tmp_path) as client:
        found = client.get(f"/{TOKEN}/run?run={listed(client)['probed']['id']}").json()
    assert {name: curve["last"] for name, curve in found["scalars"].items()} == {
        "loss": 1,
        "jacobian_change": 9,
        "kernel_cosine": 0.5,
    }
    assert found["curves"]["jacobian_change"] == {"": {"layers": [0, 1], "steps": [1, 2], "values": [[3, 3], [4, 4]]}}
    assert found["curves"]["attention_entropy_share"]["kq"]["values"] == [[0.3, 0.3], [0.7, 0.7]]
    summary = summarise(rr.open_run(tmp_path / "probed"), advise=rr.checkpoints.advise_run)
    said = "jacobian_change 9, kernel_cosine 0.5, attention_entropy_share of the lowest head 0.2"
    assert f"Recorded too, at the end: {said}." in summary.remarks()


def test_runs_of_a_folder_are_told_apart_by_what_differs(tmp_path):
    def run(name, **config):
        planted(tmp_path / name, config={"experiment": "mine", "spec": {"model": config, "steps": 40}})

    run("sweep/1f3a", init_scale=0.3, seed=0)
    with client_of(tmp_path) as client:
        assert listed(client)["sweep/1f3a"]["differs"] == ""
    run("sweep/77b0", init_scale=0.3, seed=1)
    run("sweep/9c2d", init_scale=0.1, seed=0)
    run("other/aaaa", init_scale=7, seed=7)  # of another folder
    with client_of(tmp_path) as client:
        found = {path: (run["id"], run["differs"]) for path, run in listed(client).items()}
        assert {path: differs for path, (_, differs) in found.items()} == {
            "sweep/1f3a": "init_scale = 0.3, seed = 0",
            "sweep/77b0": "init_scale = 0.3, seed = 1",
            "sweep/9c2d": "init_scale = 0.1, seed = 0",
            "other/aaaa": "",
        }
        one = client.get(f"/{TOKEN}/run?run={found['sweep/77b0'][0]}").json()
    assert one["differs"] == "init_scale = 0.3, seed = 1"


def test_heads_without_sizes_stand_in_their_order(tmp_path):
    layers = [{"index": n, "name": str(n), "num_heads": 2, "head_dim": 2, "views": {}} for n in range(2)]
    run = create_run(tmp_path / "thin", spec={"layers": layers}, initial={"w": torch.zeros(1)})
    for step in (0, 1):
        run.append(rows(step, "stable_rank", [[1.0, 2.0], [3.0, 4.0]], circuit="vo", layers=(0, 1), heads=True))
    run.seal()
    with client_of(tmp_path) as client:
        found = client.get(f"/{TOKEN}/run?run={listed(client)['thin']['id']}").json()
    assert [(head["layer"], head["head"], head["ranks"]) for head in found["heads"]] == [
        (0, 0, {"vo": 1}),
        (0, 1, {"vo": 2}),
        (1, 0, {"vo": 3}),
        (1, 1, {"vo": 4}),
    ]
    assert {head["learned"] for head in found["heads"]} == {None}
    assert "no `frobenius_norm` of heads" in found["headsMissing"]
    assert found["curves"]["stable_rank"]["vo"]["steps"] == [1]  # at step 0 nothing had changed


def test_steps_and_counts_keep_their_digits(tmp_path):
    run = create_run(tmp_path / "long", spec={}, initial={"w": torch.zeros(1)})
    run.append(scalar_rows([(1_234_567, "adapter_parameters", 7_340_033.0), (1_234_568, "loss", 1 / 3)]))
    run.seal()
    with client_of(tmp_path) as client:
        found = client.get(f"/{TOKEN}/run?run={listed(client)['long']['id']}").json()["scalars"]
    assert found["adapter_parameters"] == {"steps": [1_234_567], "values": [7_340_033], "last": 7_340_033}
    assert found["loss"]["values"] == [0.33333]
    summary = summarise(rr.open_run(tmp_path / "long"), advise=rr.checkpoints.advise_run)
    assert "Recorded too, at the end: adapter_parameters 7340033." in summary.remarks()


def test_many_alerts_do_not_bury_the_curves(tmp_path):
    layer = {"index": 0, "name": "a", "num_heads": 12, "head_dim": 2, "views": {}}
    run = create_run(tmp_path / "run", spec={"layers": [layer], "alerts": ["mine"]}, initial={"w": torch.zeros(1)})
    for head in range(12):
        run.append(alert_rows([Alert("mine", 1, 0, head, "kq", 2.0, 1.0)]))
    run.seal()
    with client_of(tmp_path) as client:
        found = client.get(f"/{TOKEN}/run?run={listed(client)['run']['id']}").json()["alerts"]
    assert found[0] == "At step 1 `mine` was found at layer 0 head 0 (kq): 2, against 1."
    assert (len(found), found[-1]) == (11, "There are 2 more alerts.")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (f"/{TOKEN}/runs", {"host": "evil.example"}, 400),
        (f"/{TOKEN}/runs", {"host": "evil.example:8321"}, 400),
        (f"/{TOKEN}/runs", {"host": "127.0.0.1:8321.evil.example"}, 400),
        (f"/{TOKEN}/runs", {"host": "192.168.0.7:8321"}, 400),
        ("/runs", HOST, 403),
        ("/", HOST, 403),
        ("/wrong/runs", HOST, 403),
        (f"/{TOKEN}x/runs", HOST, 403),
        (f"/{TOKEN}", HOST, 403),
        ("/%F0%9F%98%80/", HOST, 403),
        (f"/{TOKEN}/secret.txt", HOST, 404),
        (f"/{TOKEN}/..%2Fsecret.txt", HOST, 404),
        (f"/{TOKEN}/..%2F..%2Fetc%2Fpasswd", HOST, 404),
        (f"/{TOKEN}/run?run=../secret.txt", HOST, 404),
        (f"/{TOKEN}/run?run=cut", HOST, 404),
        (f"/{TOKEN}/run", HOST, 404),
        (f"/{TOKEN}/events?run=cut", HOST, 404),
        (f"/{TOKEN}/events?{'&'.join(f'run={n}' for n in range(13))}", HOST, 400),
        (f"/{TOKEN}/runs", {"host": "localhost:1"}, 200),
        (f"/{TOKEN}/runs", {"host": "[::1]:8321"}, 200),
    ],
)
def test_who_is_answered(client, path, headers, status):
    answer = client.get(path, headers=headers)
    assert answer.status_code == status
    assert "nobody may read this" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert TOKEN not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "MOVE"])
def test_other_methods_are_refused(client, method):
    answer = client.request(method, f"/{TOKEN}/runs")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_head_is_answered_without_a_body(client):
    answer = client.head(f"/{TOKEN}/runs")
    assert (answer.status_code, answer.content) == (200, b"")


def test_two_hosts_in_one_request_are_refused(client):
    answer = client.get(f"/{TOKEN}/runs", headers=[("host", "127.0.0.1"), ("host", "evil.example")])
    assert answer.status_code == 400


def test_links_lead_nowhere(tmp_path):
    outside = planted(tmp_path / "outside" / "run")
    root = tmp_path / "root"
    planted(root / "good")
    (root / "link").symlink_to(outside)
    (root / "up").symlink_to(outside.parent)
    planted(root / "linked")
    os.remove(root / "linked" / "metrics.parquet")
    (root / "linked" / "metrics.parquet").symlink_to(outside / "metrics.parquet")
    (root / "verdicts.json").symlink_to(outside / "spec.json")
    planted(root / "swapped" / "run")
    with client_of(root) as client:
        found = listed(client)
        assert sorted(found) == ["good", "linked", "swapped/run"]
        (root / "swapped" / "run").rename(tmp_path / "away")
        (root / "swapped" / "run").symlink_to(outside)  # after it was listed
        for path in ("linked", "swapped/run"):
            answer = client.get(f"/{TOKEN}/run?run={found[path]['id']}").json()
            assert (answer["state"], "scalars" in answer) == ("damaged", False)
        assert client.get(f"/{TOKEN}/verdicts").json() == []


def test_a_table_that_fits_into_no_array_is_refused_before_it_fills_the_memory(tmp_path):
    run = create_run(tmp_path / "evil", spec={}, initial={"w": torch.zeros(1)})
    for place in range(400):
        run.append(rows(place, "stable_rank", [[1.0]], circuit="kq", layers=[place], index=[-1]))
    table = [rows(n, "stable_rank", [[[1.0]]], circuit="kq", layers=[n], index=[n]) for n in range(400, 800)]
    for block in table:
        run.append(block)
    run.append(scalar_rows([(1, "loss", 0.5)]))
    run.seal()
    planted(tmp_path / "good")
    with client_of(tmp_path) as client:
        found = {path: client.get(f"/{TOKEN}/run?run={run['id']}").json() for path, run in listed(client).items()}
    assert (found["evil"]["curves"], found["evil"]["scalars"]["loss"]["last"]) == ({}, 0.5)
    with pytest.raises(ValueError, match="at places that fit into no array"):
        rr.open_run(tmp_path / "evil").curve("stable_rank", circuit="kq")
    assert found["good"]["state"] == "finished"


def test_a_list_of_a_thousand_runs_takes_less_than_a_second(tmp_path):
    whole = planted(tmp_path / "first", steps=range(1, 4))
    files = {path.name: path.read_bytes() for path in whole.iterdir()}
    for number in range(1000):
        folder = tmp_path / "runs" / f"{number:04}"
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    with client_of(tmp_path / "runs") as client:
        begin = time.process_time()
        assert len(listed(client)) == 1000
        assert time.process_time() - begin < 1


def test_a_long_run_opens_in_two_seconds_and_is_thinned(tmp_path):
    layers = [{"index": n, "name": str(n), "num_heads": 12, "head_dim": 4, "views": {}} for n in range(12)]
    run = create_run(tmp_path / "long", spec={"layers": layers}, initial={"w": torch.zeros(1)})
    values = np.random.default_rng(0).random((12, 12))
    for step in range(1740):
        run.append(scalar_rows([(step, "loss", 1 / (step + 1))]))
        for circuit in ("kq", "vo"):
            for quantity in ("stable_rank", "frobenius_norm"):
                run.append(rows(step, quantity, values, circuit=circuit, layers=range(12), heads=True))
    run.close()
    with client_of(tmp_path) as client:
        run_id = listed(client)["long"]["id"]
        begin = time.process_time()
        found = client.get(f"/{TOKEN}/run?run={run_id}").json()
        assert time.process_time() - begin < 2
    assert found["rows"] == 1740 * (1 + 4 * 144) > 10**6
    loss = found["scalars"]["loss"]
    assert len(loss["steps"]) == 400
    assert (loss["steps"][-1], loss["high"][0]) == (1739, 1)
    assert len(found["curves"]["stable_rank"]["vo"]["values"][11]) == 400
