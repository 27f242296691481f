"""Names cannot leave `out`, and a file is a spec or is refused with a reason."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankrise.lab.experiments import NamedSpec, experiments, plan_run, read_spec, spec_hash, to_json
from rankrise.lab.experiments._spec import as_name, check_name, run_folder

SPEC = experiments()["vit-digits"].smoke


def written(path, record):
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    return path


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc", "a\\b", "~", "-x", "A", "a b", "a\n", "é", "a" * 65, "a\0", None, 3]
)
def test_hostile_names_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"A name must be 1 to 64 of a-z"):
        check_name(name)
    with pytest.raises(ValueError, match="A name must be"):
        plan_run(NamedSpec(name, SPEC), out=tmp_path)
    assert list(tmp_path.iterdir()) == []


@given(st.text(max_size=100))
def test_whatever_the_text_its_name_is_one_folder_inside(text):
    name = as_name(text)
    check_name(name)
    out = Path("runs")
    folder = Path(os.path.normpath(run_folder(out, name, SPEC)))
    assert folder.parts == ("runs", name, spec_hash(SPEC))


def test_a_file_lends_its_name(tmp_path):
    path = written(tmp_path / "My First ViT.json", to_json(SPEC))
    assert read_spec(path) == NamedSpec("my-first-vit", SPEC)


def test_spec_of_a_run_brings_its_name(tmp_path):
    record = {"kind": "tracker", "every": "x", "config": {"experiment": "vit-digits", "spec": to_json(SPEC)}}
    path = written(tmp_path / "spec.json", record)
    assert read_spec(path) == read_spec(tmp_path) == NamedSpec("vit-digits", SPEC)
    record["config"]["experiment"] = "../../etc"
    with pytest.raises(ValueError, match=r"spec\.json: A name must be"):
        read_spec(written(path, record))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "a spec must be JSON"),
        ("{", "a spec must be JSON"),
        ("[" * 100_000, "nested as deeply"),
        ('{"kind": "training", "kind": "training"}', "a spec must have every key once; got 'kind' twice"),
        ('{"seed": NaN}', "a spec must hold finite numbers; got NaN"),
        ('"text"', "A spec must be a JSON object; got str"),
        ('{"kind": "tracker"}', "A spec must be a JSON object; got NoneType"),
        ('{"experiment": "x"}', "A spec must be a JSON object; got NoneType"),
        (" " * 2_000_000, "at most 1000000 bytes"),
        ("\udcff", r"a spec must be UTF-8 text; byte 0 is not\. Is it a spec\?"),
    ],
)
def test_a_file_that_is_no_spec(tmp_path, content, message):
    path = tmp_path / "x.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=message) as raised:
        read_spec(path)
    assert "x.json" in str(raised.value)


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not there"):
        read_spec(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError, match=r"spec\.json is not there"):
        read_spec(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"/dev/null is no plain file"):
        read_spec("/dev/null")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("toy-stages", {"task": {"kind": "toy", "dim": 10**9}}),
        ("toy-stages", {"task": {"kind": "toy", "samples": 10**9}}),
        ("toy-flow-1e-1", {"num_points": 10**9}),
        ("vit-digits", {"model": {"kind": "vit", "num_layers": 10**9}}),
        ("vit-digits", {"model": {"kind": "gpt", "vocab_size": 10**9}}),
        ("vit-digits", {"data": {"kind": "data", "name": "synthetic_images", "num_train": 10**9}}),
        ("vit-digits", {"data": {"kind": "data", "name": "synthetic_text", "num_classes": 10**6}}),
        ("vit-digits", {"data": {"kind": "data", "name": "teacher", "dim": 10**9}}),
    ],
)
def test_a_spec_of_absurd_sizes_is_refused_unless_limits_are_lifted(tmp_path, monkeypatch, name, change):
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(to_json(experiments()[name].smoke) | change))
    with pytest.raises(ValueError, match=r"must ask for at most 2\.5e\+08 numbers in memory; .* pass --no-limits"):
        read_spec(path)
    monkeypatch.setenv("RANKRISE_NO_LIMITS", "1")
    read_spec(path)


def test_a_spec_of_a_folder_is_not_read_through_a_link(tmp_path):
    (tmp_path / "own.json").write_text(json.dumps(to_json(experiments()["toy-stages"].smoke)))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "spec.json").symlink_to(tmp_path / "own.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "own.json")
    assert read_spec(tmp_path / "link.json").name == "link"  # the user names this file
    with pytest.raises(ValueError, match="must be a regular file"):
        read_spec(tmp_path / "run")
