"""Every example runs, as a newcomer would run it."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SLOW = {"track_hf_gpt2", "track_lightning_vit"}  # their frameworks take many seconds to import


def case(path):
    return pytest.param(path, marks=pytest.mark.slow if path.stem in SLOW else (), id=path.name)


@pytest.mark.parametrize("path", [case(path) for path in EXAMPLES])
def test_example_runs(path, tmp_path):
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
