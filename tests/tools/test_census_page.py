"""The page of families is what a census of the installed transformers finds today."""

import difflib
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "families.md"


@pytest.mark.slow
@pytest.mark.timeout(7200)  # ten minutes on two idle cores; a busy machine must not fail this
def test_the_page_of_families_is_what_a_census_finds(tmp_path):
    committed = PAGE.read_text(encoding="utf-8")
    assert f"transformers {version('transformers')} " in committed, (
        f"{PAGE.name} was written for another version of transformers than {version('transformers')}, which is "
        "installed: run `make census` and commit the page."
    )
    fresh = tmp_path / "families.md"
    command = [sys.executable, "-W", "ignore", "-m", "tools.census", "--workers", "2", "--page", str(fresh)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}  # as in the Makefile
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    found = fresh.read_text(encoding="utf-8")
    changes = "\n".join(
        difflib.unified_diff(committed.splitlines(), found.splitlines(), "committed", "found", n=0, lineterm="")
    )
    assert found == committed, f"`make census` would change {PAGE.name}:\n{changes}"
    assert "| wrong | 0 |" in found
    assert "| crashed | 0 |" in found
