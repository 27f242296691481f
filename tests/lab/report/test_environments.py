"""Environments of several runs as one."""

import json

from rankrise.lab.report import environment_of


def folder(tmp_path, name, record):
    path = tmp_path / name
    path.mkdir()
    (path / "env.json").write_text(record if isinstance(record, str) else json.dumps(record))
    return path


def test_equal_values_once_and_others_listed(tmp_path):
    a = folder(tmp_path, "a", {"python": "3.12", "accelerator": None, "cores": 2, "packages": {"torch": "2.13"}})
    b = folder(tmp_path, "b", {"python": "3.12", "accelerator": "H200", "cores": 16, "packages": {"torch": "2.11"}})
    bad = folder(tmp_path, "bad", "{")
    assert environment_of({"x": [a, a], "y": [b, bad]}) == {
        "python": "3.12",
        "accelerator": "H200",
        "cores": "2 or 16",
        "packages": {"torch": "2.13 or 2.11"},
    }
