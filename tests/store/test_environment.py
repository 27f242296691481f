"""The environment record goes through JSON and names nobody."""

import getpass
import json
import os
import platform
import subprocess
import sys

import pytest

from rankrise.store import _environment, environment


def test_record_goes_through_json_and_names_nobody():
    record = environment()
    text = json.dumps(record)
    assert json.loads(text) == record
    assert record["packages"]["torch"]
    assert platform.node() not in text or not platform.node()
    user = getpass.getuser()
    assert f"/{user}" not in text


def test_the_record_is_the_same_with_and_without_torch():
    """Without torch the threads and the accelerator are read from the system; torch must agree."""
    code = (
        "from rankrise.store import environment\n"
        "before = environment()\n"
        "import torch\n"
        "assert environment() == before, (before, environment())"
    )
    free = {name: value for name, value in os.environ.items() if name not in _environment._THREAD_VARIABLES}
    done = subprocess.run([sys.executable, "-c", code], env=free, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# What torch 2.13 answers on two cores of one thread each.
@pytest.mark.parametrize(
    ("mkl", "omp", "threads"),
    [(None, None, 2), (None, "1", 1), (None, "3", 2), ("1", "3", 1), ("2", "1", 2), (None, "1,4", 1), (None, "x", 2),
     (None, "0", 2), ("5", None, 2)],
)  # fmt: skip
def test_threads_follow_the_variables_and_the_cores(mkl, omp, threads, monkeypatch):
    two_cores(monkeypatch)
    for name, value in zip(_environment._THREAD_VARIABLES, (mkl, omp), strict=True):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert _environment._threads_without_torch() == threads


def test_torch_is_asked_where_the_system_does_not_tell(monkeypatch, tmp_path):
    two_cores(monkeypatch)
    assert _environment._threads_without_torch() == 2
    with monkeypatch.context() as patch:
        patch.setenv("MKL_DYNAMIC", "FALSE")
        assert _environment._threads_without_torch() is None
    with monkeypatch.context() as patch:
        patch.setattr(_environment, "_ACCELERATOR_FILES", (str(tmp_path),))
        assert _environment._threads_without_torch() is None
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        assert _environment._threads_without_torch() is None


def two_cores(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(_environment, "_core_of", str)
    monkeypatch.setattr(_environment, "_ACCELERATOR_FILES", ())
    for name in [name for name in os.environ if name.startswith(("MKL_", "OMP_", "KMP_"))]:
        monkeypatch.delenv(name)
