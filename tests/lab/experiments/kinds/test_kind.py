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
        assert kind.guess_seconds(spec, on_gpu=False) > 0
        assert to_json(spec)["kind"] == kind.name
        assert set(kind.parts) <= to_json(spec).keys()


def test_an_unknown_kind_is_a_sentence():
    with pytest.raises(
        ValueError, match=r"known kind; got 'flows'\. Did you mean 'flow'\? Known: descent, flow, matrix"
    ):
        from_json({"schema_version": 1, "kind": "flows"})
    for use in (kind_of, to_json, spec_hash):
        message = r"known kind; got a StagesSpecs\. Did you mean 'StagesSpec'\? Known: TrainingSpec \(a network trained"
        with pytest.raises(ValueError, match=message):
            use(StagesSpecs())


def test_nothing_asks_for_the_type_of_a_spec_but_its_own_kind():
    """An `isinstance` over specs outside of `kinds/` would be one more file to change for a new kind."""
    specs = {kind.spec.__name__ for kind in KINDS} | {"TheorySpec"}
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                assert not specs & set(re.findall(r"\w+", ast.unparse(node.args[1]))), path
