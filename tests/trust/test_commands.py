"""Every hostile input under 5 MB costs at most 500 MB and 10 seconds, and reaches nothing outside the given folders."""

import json
import os
import subprocess
import sys

import pytest
from tests.trust import hostile

MOST_MEGABYTES, MOST_SECONDS = 500, 10
# Runs a command, and writes down what it cost and which paths it opened or changed.
WATCH = """
import json, os, sys, time
seen, log = [], sys.argv.pop(1)
CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
           "os.chown", "os.utime", "shutil.rmtree", "subprocess.Popen", "os.system", "socket.connect")
def hook(event, arguments):
    if event == "open" or event in CHANGES:
        writes = event != "open" or bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        seen.append([event, str(arguments[0]), writes])
sys.addaudithook(hook)
import rankrise.cli
code = 0
try:
    rankrise.cli.main()
except SystemExit as end:
    code = end.code or 0
peak = [int(line.split()[1]) / 1e3 for line in open("/proc/self/status") if line.startswith("VmHWM")]
with open(log, "w") as file:
    json.dump({"megabytes": peak[0], "seconds": time.process_time(), "seen": seen}, file)
sys.exit(code)
"""


def outside(folder):
    """Files that no command may read or change; reading one of them would move its time of access."""
    (folder / "outside").mkdir()
    for name in ("victim", "other"):
        (folder / "outside" / name).write_text("precious")
        os.utime(folder / "outside" / name, (0, 1))
    return folder / "outside"


def state(place):
    return [(path.name, path.stat().st_atime_ns, path.stat().st_mtime_ns) for path in sorted(place.iterdir())]


def run(folder, arguments):
    """Run a command under the watch; the finished process and its record."""
    log = folder / "log.json"
    done = subprocess.run(
        [sys.executable, "-c", WATCH, str(log), *arguments], cwd=folder, capture_output=True, text=True,
        timeout=900, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return done, json.loads(log.read_text())


def strays(folder, seen):
    """What was opened or changed outside the folder by a path that says so.

    A name without a slash is relative to a handle on a folder. Python, its packages and the system are read.
    """
    apart = [(event, path) for event, path, writes in seen if path.startswith("/") and writes]
    allowed = (f"{folder}/", "/dev/", "/proc/self/fd/", "/tmp/", os.path.expanduser("~/.cache/"))
    named = [(event, path) for event, path, _ in seen if "/outside/" in path or path in ("/etc/hosts", "/etc/passwd")]
    return [(event, path) for event, path in apart if not path.startswith(allowed)] + named


@pytest.mark.slow
@pytest.mark.timeout(1000)  # of the clock; what is bounded is the time of the processor
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
@pytest.mark.parametrize("name", hostile.INPUTS)
def test_hostile_input(tmp_path, name, record_property):
    place = outside(tmp_path)
    before = state(place)
    arguments = hostile.INPUTS[name](tmp_path)
    sizes = [path.lstat().st_size for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert max(sizes) < 5e6
    done, record = run(tmp_path, arguments)
    for key in ("megabytes", "seconds"):
        record_property(key, record[key])
    print(f"{name} | {done.returncode} | {record['megabytes']:.0f} MB | {record['seconds']:.1f} s")  # noqa: T201
    assert done.returncode in (0, 1, 2)  # read, refused, or refused as an argument of the command line
    assert "Traceback" not in done.stderr
    assert all(line.isprintable() for line in (*done.stderr.splitlines(), *done.stdout.splitlines()))
    assert record["megabytes"] <= MOST_MEGABYTES
    assert record["seconds"] <= MOST_SECONDS
    assert strays(tmp_path, record["seen"]) == []
    assert state(place) == before
    assert (place / "victim").read_text() == "precious"


@pytest.mark.skipif(sys.platform != "linux", reason="the watch reads /proc")
def test_the_watch_sees_what_it_is_there_for(tmp_path):
    """Otherwise nothing would ever be found."""
    place = outside(tmp_path)
    before = state(place)
    assert (place / "victim").read_text() == "precious"
    if state(place) == before:
        pytest.skip("this file system does not move times of access")
    done, record = run(tmp_path, ["env"])
    assert done.returncode == 0
    assert 20 < record["megabytes"] < MOST_MEGABYTES
    assert any((event == "open" and path.endswith(".py")) or path.endswith(".pyc") for event, path, _ in record["seen"])
    assert strays(tmp_path, [["open", "/etc/x", True], ["open", "/root/outside/victim", False]]) != []
