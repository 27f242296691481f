"""Memory does not grow with the checkpoint: sharded pairs in bfloat16, read by the command itself."""

import shutil
import sys

import pytest
from tests.checkpoints import large

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_fifty_million(tmp_path):
    large.check(large.summarise(tmp_path / "pair", 5e7), limit=1e9)
    shutil.rmtree(tmp_path / "pair")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_billion(tmp_path):
    if shutil.disk_usage(tmp_path).free < 8e9:
        pytest.skip("needs 8 GB of disk")
    result = large.summarise(tmp_path / "pair", 1e9)
    large.check(result)
    assert "left" in result[2]  # an estimate was shown
    shutil.rmtree(tmp_path / "pair")
