"""The package as a whole: importing is free, names are listed, files stay small, pages do not drift."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rankrise as rr

ROOT = Path(__file__).parents[1]
ROOMS = ("models", "data", "training", "experiments", "figures", "report", "sweep")
PACKAGES = sorted({*rr._SUBPACKAGES, *(f"lab.{room}" for room in ROOMS)} - {"lab"})
SOURCES = sorted((ROOT / "src" / "rankrise").rglob("*.py"))


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_import_loads_nothing():
    heavy = ("torch", "numpy", "scipy", "typer", "matplotlib", "plotly", "jinja2")
    loaded = run(f"import sys, rankrise; print(*(m for m in {heavy} if m in sys.modules))")
    assert loaded == ""


def test_every_public_name_resolves():
    for name in rr.__all__:
        assert getattr(rr, name) is not None
    assert set(rr.__all__) <= set(dir(rr))


def test_type_checkers_and_the_import_see_the_same_names():
    text = (ROOT / "src/rankrise/__init__.py").read_text()
    declared = set(re.findall(r"^    from \S+ import (\w+) as \1$", text, flags=re.M))
    assert declared == set(rr.__all__) - {"__version__"}


def test_unknown_name_suggests_one():
    with pytest.raises(AttributeError, match=r"no attribute 'delta_spectra'\. Did you mean 'delta_spectrum'"):
        rr.delta_spectra  # noqa: B018


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_source_file_is_one_room(path):
    assert len(path.read_text().splitlines()) <= 400


def imported_names(program, package):
    """Dotted names that a program of a package imports; relative imports become absolute."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            yield from (".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names)


def foreign_private_names(program, package):
    """Imports of private names of another package; a package inside another one may read the private names of that."""
    for name in imported_names(program, package):
        parts = name.split(".")
        private = next((n for n, part in enumerate(parts) if re.match(r"_(?!_)", part)), None)
        if parts[0] == "rankrise" and private is not None and package.split(".")[:private] != parts[:private]:
            yield name


def test_a_package_imports_only_public_names_of_another():
    found = []
    for folder in ("src", "studies", "tools", "benchmarks", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            package = ".".join(path.relative_to(ROOT / "src" if folder == "src" else ROOT).parent.parts)
            names = foreign_private_names(path.read_text(), package)
            found += [f"{path.relative_to(ROOT)} imports {name}" for name in names]
    assert found == []


@pytest.mark.parametrize(
    ("package", "program", "is_foreign"),
    [
        ("rankrise.view", "from rankrise.store._table import rows", True),
        ("rankrise.view", "from rankrise.store import _table", True),
        ("rankrise.view", "import rankrise.store._table as t", True),
        ("rankrise.view", "from ..store._table import rows", True),
        ("rankrise.view", "from .._lazy import lazy_names", False),
        ("rankrise.view", "def f():\n from rankrise.store._table import rows", True),
        ("rankrise.view", "from rankrise.store import rows, __doc__", False),
        ("rankrise.view", "from ._draw import draw", False),
        ("rankrise.lab.experiments", "from rankrise.lab.experiments.kinds._kind import Kind", True),
        ("rankrise.lab.experiments.kinds", "from rankrise.lab.experiments._experiment import Scale", False),
        ("studies", "from rankrise._arguments import as_count", True),
        ("studies", "from studies._own import mine", False),
    ],
)
def test_imports_of_private_names_are_seen(package, program, is_foreign):
    assert bool(list(foreign_private_names(program, package))) == is_foreign


def decisions_from_prose(program):
    """Lines where a program decides by the text of an error or a warning: by comparing it, or by a pattern."""
    tree = ast.parse(program)
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name]
    caught = "|".join(dict.fromkeys(names)) or "(?!)"
    prose = re.compile(rf"\bstr\(({caught})\)|\b({caught})\.args\b|\.message\)")
    by_text = re.compile(r"\bre\.\w+$|\.(match|search|fullmatch|startswith|endswith|find|index|count)$")
    for node in ast.walk(tree):
        if isinstance(node, ast.Match):
            asked = node.subject
        elif isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and by_text.search(ast.unparse(node.func))):
            asked = node
        else:
            continue
        if prose.search(ast.unparse(asked)):
            yield node.lineno


def test_nothing_is_decided_by_the_text_of_an_error_or_a_warning():
    found = [f"{path.relative_to(ROOT)}:{n}" for path in SOURCES for n in decisions_from_prose(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("use", "is_decision"),
    [
        ('if "disk full" in str(error): pass', True),
        ('if str(error).startswith("no"): pass', True),
        ('if re.search("a", str(error)): pass', True),
        ("if PATTERN.fullmatch(str(error)): pass", True),
        ('if error.args[0] == "no": pass', True),
        ('if "a" in str(caught.message): pass', True),
        ('raise ValueError(f"It failed: {error}") from None', False),
        ("print(str(error).strip())", False),
        ("if error.errno == 28: pass", False),
    ],
)
def test_decisions_from_prose_are_seen(use, is_decision):
    program = f"try:\n pass\nexcept OSError as error:\n {use}"
    assert bool(list(decisions_from_prose(program))) == is_decision


def ladders_over_kinds(program):
    """Lines where a program asks of which kind a spec is by its type, in place of asking its kind."""
    is_of_a_kind = re.compile(r"\b(?!NamedSpec\b|Spec\b)[A-Z]\w*(Spec|Kind)\b")
    for node in ast.walk(ast.parse(program)):
        asked = []
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            asked = node.args[1:]
        elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node.left):
            asked = node.comparators
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        if any(is_of_a_kind.search(ast.unparse(one)) for one in asked):
            yield node.lineno


def test_only_the_kinds_know_their_specs_by_type():
    kinds = ROOT / "src" / "rankrise" / "lab" / "experiments" / "kinds"
    others = [path for path in SOURCES if kinds not in path.parents]
    found = [f"{path.relative_to(ROOT)}:{n}" for path in others for n in ladders_over_kinds(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("program", "is_ladder"),
    [
        ("isinstance(spec, TrainingSpec)", True),
        ("isinstance(spec, FlowSpec | StagesSpec)", True),
        ("type(spec) is kinds.FlowSpec", True),
        ("match spec:\n case FlowSpec():\n  pass", True),
        ("isinstance(kind, TrainingKind)", True),
        ("isinstance(what, NamedSpec)", False),
        ("isinstance(what, Spec)", False),
        ("kind_of(spec).is_network", False),
    ],
)
def test_ladders_over_kinds_are_seen(program, is_ladder):
    assert bool(list(ladders_over_kinds(program))) == is_ladder


def public_names(package):
    module = __import__(f"rankrise.{package}", fromlist=["_"])
    return sorted(n for n in dir(module) if not n.startswith("_") and hasattr(getattr(module, n), "__module__"))


@pytest.mark.parametrize("package", PACKAGES)
def test_api_page_lists_every_public_name(package):
    page = (ROOT / "docs" / "api" / f"{package.replace('.', '/')}.md").read_text()
    listed = re.findall(r"^\| `(\w+)", page, flags=re.M)
    assert sorted(listed) == public_names(package)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_docstring(package):
    module = __import__(f"rankrise.{package}", fromlist=["_"])
    for name in public_names(package):
        assert (getattr(module, name).__doc__ or "").strip(), name


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_python_on_a_page_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.S):
        exec(compile(block, path.name, "exec"), {})


def anchors(page):
    """What a link can point to inside a page: its headings, in the form that a site gives them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", path.read_text()):
        page = path.parent / target if target else path
        assert page.exists(), target
        assert not anchor or anchor in anchors(page), f"{target}#{anchor}"


def test_files_of_the_recipes_exist():
    """Every file of a recipe is there, but for the new ones, which have NAME in their name."""
    recipes = (ROOT / "CONTRIBUTING.md").read_text().split("## Recipes")[1].split("## Style")[0]
    files = [name for name in re.findall(r"`((?:src|tests|docs)/[\w./-]+)`", recipes) if "NAME" not in name]
    assert len(files) > 12
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_version_is_in_the_changelog_and_the_citation():
    release = rr.__version__.removesuffix(".dev0")
    assert f"## {release}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {release}" in (ROOT / "CITATION.cff").read_text()
