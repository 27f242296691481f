"""Unknown versions are refused, missing and changed files named, paths that lead outside distrusted."""

import json

import pytest

from rankrise.store import _schema

FILES = dict.fromkeys(_schema.REQUIRED, "0")


def write(folder, **changes):
    record = {"state": "sealed", "files": FILES, "schema_version": 1} | changes
    (folder / "MANIFEST.json").write_text(json.dumps(record))


@pytest.mark.parametrize("version", [2, 0, None, "1"])
def test_unknown_version_is_refused(tmp_path, version):
    write(tmp_path, schema_version=version)
    with pytest.raises(
        ValueError, match=rf"must have schema_version 1.*got {version!r}\. Read the run with the rankrise"
    ):
        _schema.read_manifest(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{", '"text"', '{"schema_version": 1, "nonsense": 2}'])
def test_damaged_manifest_is_refused(tmp_path, content):
    (tmp_path / "MANIFEST.json").write_text(content)
    with pytest.raises(ValueError, match=r"MANIFEST\.json must"):
        _schema.read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "a\0", "", "\udcff", "a" * 256])
def test_file_outside_the_run_is_refused(tmp_path, name):
    write(tmp_path, files=FILES | {name: "0"})
    with pytest.raises(ValueError, match="must name files inside the run; got"):
        _schema.read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"files": None}, "its files have no checksums"),
        ({"files": [1]}, "its files have no checksums"),
        ({"files": {"spec.json": 1}}, "its files have no checksums"),
        ({"files": {"spec.json": "0"}}, r"it does not list env\.json"),
        ({"state": "x"}, "its state is 'x'"),
        ({"state": ["sealed"]}, "its state is"),
        ({"num_rows": "many"}, "its counts are 'many' and 0"),
        ({"num_lost_blocks": None}, "its counts are None and None"),
    ],
)
def test_entries_of_another_kind_are_refused(tmp_path, changes, message):
    write(tmp_path)
    assert _schema.read_manifest(tmp_path).state == "sealed"
    write(tmp_path, **changes)
    with pytest.raises(ValueError, match=rf"must be a run's manifest; {message}"):
        _schema.read_manifest(tmp_path)


def test_missing_and_changed_files_are_named(tmp_path):
    (tmp_path / "spec.json").write_text("{}")
    manifest = _schema.Manifest("sealed", _schema.checksums(tmp_path, ["spec.json"]))
    _schema.verify(tmp_path, manifest)
    (tmp_path / "spec.json").write_text("{ }")
    with pytest.raises(ValueError, match=r"spec\.json must be as the manifest says; it is not"):
        _schema.verify(tmp_path, manifest)
    (tmp_path / "spec.json").unlink()
    with pytest.raises(ValueError, match=r"must hold spec\.json; it is missing"):
        _schema.verify(tmp_path, manifest)


def test_no_run_is_said_plainly(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must hold MANIFEST\.json; .* does not\. Check the path"):
        _schema.read_manifest(tmp_path)
