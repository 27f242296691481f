"""Every example runs, as a newcomer would run it."""

import json
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


NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs_from_top_to_bottom_and_is_committed_without_outputs(path, tmp_path):
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    script = "import matplotlib; matplotlib.use('Agg')\n" + "\n\n".join("".join(cell["source"]) for cell in code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "rank.png").is_file()
