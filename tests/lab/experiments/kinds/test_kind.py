"""The registry of kinds: every kind is whole, unknown ones are refused in a sentence, and a kind is one file."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import rankrise
from rankrise.lab.experiments import Spec, experiments, from_json, kind_of, spec_hash, to_json
from rankrise.lab.experiments.kinds import KINDS, kind_named

SOURCES = Path(rankrise.__file__).parent
SPECS = [spec for found in experiments().values() for spec in found.specs.values()]


@dataclass(frozen=True)
class StagesSpecs(Spec):
    """Of no kind."""

    seed: int = 0


def test_names_and_specs_are_unique():
    assert len({kind.name for kind in KINDS}) == len({kind.spec for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_is_whole(kind):
    specs = [spec for spec in SPECS if type(spec) is kind.spec]
    assert specs
    assert kind_named(kind.name) is kind
    assert kind.title
    for spec in specs:
        assert kind_of(spec) is kind
        assert kind.data_name(spec)
        assert kind.in_words(to_json(spec))
        assert kind.guess_seconds(spec, on_gpu=False) > 0
        assert to_json(spec)["kind"] == kind.name
        assert set(kind.parts) <= to_json(spec).keys()


def test_an_unknown_kind_is_a_sentence():
    with pytest.raises(
        ValueError,
        match=r"known kind; got 'flows'\. Did you mean 'flow'\? Known: adam_phases, descent, ense",
    ):
        from_json({"schema_version": 1, "kind": "flows"})
    for use in (kind_of, to_json, spec_hash):
        message = r"known kind; got a StagesSpecs\. Did you mean 'StagesSpec'\? Known: TrainingSpec \(a network trained"
        with pytest.raises(ValueError, match=message):
            use(StagesSpecs())


def _configs(kind, name):
    return kind.parts[name].kinds.values() if name in kind.parts else ()


def asked_types(program):
    """Every expression of a program that asks for a type: isinstance, issubclass, `type(x) is T`, `case T()`."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Call) and re.search(r"\b(isinstance|issubclass)$", ast.unparse(node.func)):
            yield ast.unparse(node.args[1])
        elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node):
            yield ast.unparse(node)
        elif isinstance(node, ast.MatchClass):
            yield ast.unparse(node.cls)


def asks_for_a_spec(program):
    """Whether a program asks for the type of a spec, or of a config of the network or the task in one."""
    configs = {config.__name__ for kind in KINDS for name in ("model", "task") for config in _configs(kind, name)}
    specs = {kind.spec.__name__ for kind in KINDS} | {"TheorySpec"} | configs
    return any(specs & set(re.findall(r"\w+", asked)) for asked in asked_types(program))


def test_nothing_asks_for_the_type_of_a_spec_but_its_own_kind():
    """A question for the type of a spec would be one more file to change for a new kind; a kind knows its own type."""
    root = SOURCES.parents[1]
    folders = [SOURCES, *(root / name for name in ("studies", "tools", "benchmarks", "examples"))]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    assert [str(path.relative_to(root)) for path in paths if asks_for_a_spec(path.read_text())] == []


@pytest.mark.parametrize(
    "program",
    [
        "isinstance(spec, TrainingSpec)",
        "isinstance(spec, (int, kinds.FlowSpec))",
        "issubclass(t, TheorySpec)",
        "assert builtins.isinstance(model, ViTConfig)",
        "type(spec) is TrainingSpec",
        "type(spec) in (FlowSpec, StagesSpec)",
        "match spec:\n case FlowSpec(): pass",
    ],
)
def test_every_way_to_ask_is_seen(program):
    assert asks_for_a_spec(program)
    assert not asks_for_a_spec(re.sub(r"\w+(Spec|Config)", "int", program))
