"""Whatever a received file holds, it is read or refused in one sentence, with little time and memory."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.formats import FORMATS, Reader
from tests.fuzz.limits import CPU_SECONDS, MOST_BYTES, limit_memory, peak_bytes
from tests.processes import exit_code

REGRESSIONS = sorted(path for path in (Path(__file__).parent / "regressions").glob("*/*") if path.is_file())
ROOT = Path(__file__).parents[2]
# The memory of a search is bounded by its addresses, of which every further thread takes 64 MB, used or not.
FRUGAL = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
OF_RUNS = {"manifest", "spec", "toy_spec", "env", "parquet", "toy_parquet"}  # their readers make a report


@pytest.mark.parametrize("name", FORMATS)
def test_changed_files_are_read_or_refused(tmp_path, name):
    form, valid = FORMATS[name], FORMATS[name].valid()
    read = Reader(form, tmp_path)
    assert read(valid)
    assert read(b"") == form.is_passed_over

    @settings(max_examples=2 if name in OF_RUNS else 8, suppress_health_check=list(HealthCheck), database=None)
    @given(random=st.randoms(use_true_random=True))
    def attempt(random):
        read(form.mutate(valid, random, valid))

    attempt()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_found_once_is_read_or_refused(tmp_path, path):
    def child():
        os.fsync = os.fstat
        read = Reader(FORMATS[path.parent.name], tmp_path)
        before = peak_bytes()
        limit_memory()
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        read(path.read_bytes())
        assert peak_bytes() < max(MOST_BYTES, before + 2**26)

    assert path.stat().st_size <= 2**16
    assert exit_code(child) == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)  # the search is bounded by the time of the processor, of which a busy machine gives little
def test_search(tmp_path):
    """Four seconds of the processor for each format; what is found belongs into `regressions`, once it is mended."""
    command = [sys.executable, "-m", "tests.fuzz.engine", "--out", str(tmp_path), "--seconds", "4", "--seed", "0"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | FRUGAL
    done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [counts["format"] for counts in found] == list(FORMATS)
    for counts in found:
        reasons = [path.read_text() for path in (tmp_path / counts["format"]).glob("*.txt")]
        assert (counts["ended"], counts["findings"], reasons) == (0, 0, []), counts
        assert counts["cases"] == counts["read"] + counts["refused"] > 50
        assert counts["read"] > 0
        assert (counts["refused"] > 0) != FORMATS[counts["format"]].is_passed_over
        assert counts["slowest"] < CPU_SECONDS
        assert counts["peak_mb"] * 2**20 < MOST_BYTES
