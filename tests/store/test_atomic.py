"""A file is old or new, never half; its mode is what the umask says."""

import os
import stat

import pytest

from rankrise.store import _atomic, _schema
from rankrise.store._untrusted import UntrustedFolder


def test_mode_follows_the_umask(tmp_path):
    mask = os.umask(0o027)
    try:
        _atomic.write_json(tmp_path / "spec.json", {}, "spec")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "spec.json").stat().st_mode) == 0o640


def test_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "spec.json"
    path.write_text("old")
    with pytest.raises(TypeError, match="not JSON serializable"):
        _atomic.write_json(path, object(), "spec")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_json_names_the_file(tmp_path):
    (tmp_path / "spec.json").write_text("{")
    with pytest.raises(ValueError, match=r"spec\.json must hold JSON; .* The file is damaged"):
        _schema.read_json(UntrustedFolder(tmp_path), "spec.json")
