"""Crashes of real sweeps: processes killed, a full disk, a scheduler restarted, a stranger refused; same tables."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from rankrise.lab.experiments import execute_run
from rankrise.lab.sweep import Grid, Workers, _cluster, _sweep, sweep
from rankrise.store import load_run, verify_run

pytest.importorskip("distributed")
import psutil

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # each takes ten to thirty seconds on a machine that is idle
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRAINING = "rankrise.lab.sweep._process"  # what the command line of a training's process holds
SECONDS = 5.0  # in which whatever a killed sweep had begun must be gone
PATIENCE = 120.0  # for things that must happen, also on a busy machine
FLOWS = Grid(("toy-flow-1e-8",), {"task.dim": (4,)}, num_seeds=4, scale="smoke")
TRAININGS = Grid(
    ("vit-cifar10",), {"training.epochs": (120,), "training.track_every": (40,)}, num_seeds=2, scale="smoke"
)
FLOW_WORDS = ("toy-flow-1e-8", "--scale", "smoke", "--grid", "task.dim=4", "--seeds", "4")
TRAINING_WORDS = ("vit-cifar10", "--scale", "smoke", "--grid", "training.epochs=120", "--grid")
TRAINING_WORDS += ("training.track_every=40", "--seeds", "2")


class Watch:
    """Notes what a sweep tells, and does something once when it tells that runs are running."""

    def __init__(self, strike=lambda standing: False):
        self.notes, self.strike, self.has_struck = [], strike, False

    def update(self, standing):
        self.has_struck = self.has_struck or bool(self.strike(standing))

    def end(self, attempt, standing):
        self.update(standing)

    def note(self, text):
        self.notes.append(text)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The tables of both grids, each run made alone."""
    out = tmp_path_factory.mktemp("alone")
    plans = [*FLOWS.plan(out=out), *TRAININGS.plan(out=out)]
    for plan in plans:
        execute_run(plan, device="cpu")
    return {f"{plan.name}/{plan.hash}": load_run(plan.folder) for plan in plans}


@pytest.fixture
def start():
    """Begin programs that end with the test."""
    with contextlib.ExitStack() as stack:

        def start(words, *, host=(), **environment):
            process = subprocess.Popen(
                [*host, sys.executable, *words],
                env=os.environ | {"PYTHONPATH": os.pathsep.join([ROOT, *sys.path])} | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        yield start


def check(plans, tables):
    """Every run is whole, and its table is that of a run made alone."""
    for plan in plans:
        verify_run(plan.folder)
        assert load_run(plan.folder).equals(tables[f"{plan.name}/{plan.hash}"])


def below(process):
    """The processes that a process has begun, with theirs."""
    try:
        return psutil.Process(process).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def trainings(process):
    """The trainings below a process, each with its worker."""
    found = []
    for child in below(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            if TRAINING in child.cmdline():
                found.append((child, child.parent()))
    return found


def wait_for(what):
    """Wait until a function returns something, and return that."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.05)
    raise TimeoutError("It did not happen.")


def test_a_killed_worker_takes_its_training_along_and_the_run_is_made_elsewhere(tmp_path, tables):
    struck = []

    def strike(standing):
        for training, worker in trainings(os.getpid()):
            worker.kill()
            struck.append(training)
            _, alive = psutil.wait_procs([training], timeout=SECONDS)
            assert not alive
            return True
        return False

    watch = Watch(strike)
    plans = [*TRAININGS.plan(out=tmp_path), *FLOWS.plan(out=tmp_path)]
    attempts = sweep(plans, out=tmp_path, workers=Workers(2), device="cpu", watch=watch)
    assert len(struck) == 1
    assert [attempt.fate for attempt in attempts] == ["finished"] * 6
    check(plans, tables)


def test_a_killed_command_leaves_no_process_and_the_same_command_goes_on(tmp_path, tables, start):
    words = ("-m", "rankrise", "sweep", *TRAINING_WORDS, "--workers", "2", "--device", "cpu", "--out", str(tmp_path))
    process = start(words)
    wait_for(lambda: len(trainings(process.pid)) == 2)
    begun = below(process.pid)
    assert len(begun) >= 4  # two workers, two trainings
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(begun, timeout=SECONDS)
    assert not alive
    again = start(words)
    out, err = again.communicate(timeout=PATIENCE * 2)
    assert again.returncode == 0, err
    assert "2 finished" in out
    check(TRAININGS.plan(out=tmp_path), tables)


@pytest.mark.parametrize(
    ("place", "dying", "message"),
    [
        ("checkpoint.begin", "vit-cifar10", "Its process was ended by signal 9"),  # a training in a process of its own
        ("block.write@5", "toy-flow-1e-8", "It killed its worker 2 times"),  # the theory inside a worker
    ],
)
def test_a_run_that_always_dies_is_reported_and_the_others_finish(tmp_path, monkeypatch, place, dying, message):
    """The failpoint is passed only by the longer runs."""
    monkeypatch.setenv("RANKRISE_FAILPOINT", f"{place}:kill")
    for module in (_cluster, _sweep):
        monkeypatch.setattr(module, "ALLOWED_FAILURES", 1)
    others = Grid(("toy-stages",), {"task.dim": (2,)}, num_seeds=1, scale="smoke").plan(out=tmp_path)
    fields = {"task.dim": (4,)} if dying.startswith("toy") else {}
    plans = [*Grid((dying,), fields, num_seeds=1, scale="smoke").plan(out=tmp_path), *others]
    attempts = sweep(plans, out=tmp_path, workers=Workers(1), device="cpu")
    assert [attempt.fate for attempt in attempts] == ["failed", "finished"]
    assert attempts[0].message == message
    verify_run(others[0].folder)


def test_a_full_disk_stops_the_sweep_and_with_room_it_goes_on(disk, tables):
    plans = FLOWS.plan(out=disk)
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while file.write(b"\0" * 512):
            pass
    attempts = sweep(plans, out=disk, workers=Workers(1))
    assert [attempt.fate for attempt in attempts] == ["full"]
    ballast.unlink()
    attempts = sweep(plans, out=disk, workers=Workers(1))
    assert [attempt.fate for attempt in attempts] == ["finished"] * 4
    check(plans, tables)


def test_a_scheduler_that_is_restarted_gets_the_rest(tmp_path, tables, start):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"

    def begin():
        scheduler = start(("-m", "distributed.cli.dask_scheduler", "--host", address, "--no-dashboard", "--no-show"))
        start(("-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard"))
        return scheduler

    schedulers = [begin()]

    def strike(standing):
        if standing.num_done == 0 or len(schedulers) > 1:
            return False
        schedulers[0].kill()  # its worker is left as it is
        schedulers[0].wait()
        schedulers.append(begin())
        return True

    watch = Watch(strike)
    plans = FLOWS.plan(out=tmp_path)
    attempts = sweep(plans, out=tmp_path, workers=Workers(scheduler=address), watch=watch)
    assert len(schedulers) == 2
    assert watch.notes == ["the scheduler went away; trying to reach it again"]
    assert {attempt.fate for attempt in attempts} <= {"finished", "skipped"}
    check(plans, tables)


@pytest.fixture
def hosts():
    """Two hosts, as words before a command, and the address of the first: network namespaces where they are allowed."""
    first, second = f"rr{os.getpid()}a", f"rr{os.getpid()}b"
    setup = (
        f"netns add {first}",
        f"netns add {second}",
        f"link add {first} netns {first} type veth peer name {second} netns {second}",
        f"-n {first} addr add 10.213.7.1/24 dev {first}",
        f"-n {second} addr add 10.213.7.2/24 dev {second}",
        *(f"-n {name} link set {device} up" for name in (first, second) for device in (name, "lo")),
    )
    are_apart = all(ip(line) for line in setup)
    if are_apart:
        yield ("ip", "netns", "exec", first), ("ip", "netns", "exec", second), "10.213.7.1"
    else:
        yield (), (), "127.0.0.1"
    for name in (first, second):
        ip(f"netns del {name}")


def ip(line):
    """Whether a command of iproute2 could be carried out."""
    try:
        return subprocess.run(["ip", *line.split()], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def certificate(folder):
    """Files of a new authority and of a certificate that it gave, as options of Dask."""
    from distributed import Security

    made = Security.temporary()
    folder.mkdir()
    for name, text in (("ca", made.tls_ca_file), ("cert", made.tls_worker_cert), ("key", made.tls_worker_key)):
        (folder / f"{name}.pem").write_text(text)
    return [
        word
        for name in ("ca-file", "cert", "key")
        for word in (f"--tls-{name}", f"{folder / name.removesuffix('-file')}.pem")
    ]


def test_a_worker_with_a_certificate_of_another_authority_is_refused(tmp_path, tables, start, hosts, record_property):
    first, second, at = hosts
    record_property("hosts", "two network namespaces" if first else "one host")
    ours, theirs = certificate(tmp_path / "ours"), certificate(tmp_path / "theirs")
    address = f"tls://{at}:8786"
    scheduler = start(
        ("-m", "distributed.cli.dask_scheduler", "--host", address, "--no-dashboard", "--no-show", *ours), host=first
    )
    worker = ("-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard")
    stranger = start((*worker, *theirs, "--death-timeout", "10"), host=second)
    _, said = stranger.communicate(timeout=PATIENCE)
    assert "Timed out starting worker" in said
    assert "Registered to" not in said
    start((*worker, *ours), host=second)
    folder = tmp_path / "ours"
    done = start(
        ("-m", "rankrise", "sweep", *FLOW_WORDS, "--scheduler", address, "--out", str(tmp_path / "runs"), "--json"),
        host=first,
        DASK_DISTRIBUTED__COMM__TLS__CA_FILE=str(folder / "ca.pem"),
        DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT=str(folder / "cert.pem"),
        DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY=str(folder / "key.pem"),
    )
    out, err = done.communicate(timeout=PATIENCE)
    assert done.returncode == 0, err
    assert [row["fate"] for row in json.loads(out)] == ["finished"] * 4
    check(FLOWS.plan(out=tmp_path / "runs"), tables)
    scheduler.kill()
    assert "TLS handshake failed" in scheduler.communicate()[1]
