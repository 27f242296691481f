"""Every registered spec keeps its hash: the hash names the run on disk, so a new one would orphan finished runs."""

import json
from pathlib import Path

import pytest

from rankrise.lab.experiments import experiments, spec_hash

PINNED = json.loads((Path(__file__).parent / "hashes.json").read_text())


def test_every_experiment_is_pinned():
    assert set(experiments()) == set(PINNED)


@pytest.mark.parametrize("name", PINNED)
def test_hash_is_the_pinned_one(name):
    assert {scale: spec_hash(spec) for scale, spec in experiments()[name].specs.items()} == PINNED[name]
