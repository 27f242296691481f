"""Studies and tools are users of the package: they import its public names only."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "studies").glob("*.py"), *(ROOT / "tools").glob("*.py")])


def imported(path):
    """Every module and name of rankrise that a file imports, dotted."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_imports_are_public(path):
    names = [name for name in imported(path) if name.split(".")[0] == "rankrise"]
    assert [name for name in names if any(part.startswith("_") for part in name.split("."))] == []
