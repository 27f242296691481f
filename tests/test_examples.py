"""Every example runs, as a newcomer would run it."""

import json
import re
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


def code_of(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def printed(cells):
    """The text that the stored outputs of cells hold, line by line."""
    outputs = [output for cell in cells for output in cell["outputs"] if output["output_type"] == "stream"]
    return "".join("".join(output["text"]) for output in outputs).splitlines()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_stored_with_its_outputs(path):
    """The last picture is the figure of the run, and the rank of the run that is stored has risen."""
    cells = code_of(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = [output["output_type"] for cell in cells for output in cell["outputs"]]
    assert set(kinds) <= {"stream", "display_data", "execute_result"}  # no error
    assert any("image/png" in output.get("data", {}) for output in cells[-1]["outputs"])
    line = next(line for line in printed(cells) if line.startswith("stable rank of the value-output change"))
    early, late = (float(word) for word in re.findall(r"\d+\.\d+", line))
    assert late > early
    assert str(Path.home()) not in path.read_text()
    assert "/tmp" not in path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs_from_top_to_bottom(path, tmp_path):
    cells = code_of(path)
    script = "import matplotlib; matplotlib.use('Agg')\n" + "\n\n".join("".join(cell["source"]) for cell in cells)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "rank.png").is_file()
    assert done.stdout.splitlines()[0] == printed(cells)[0]  # the theory is the same on every machine
