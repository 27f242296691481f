"""Shared by all tests: their helpers can be imported, and hypothesis is reproducible."""

import sys
from pathlib import Path

import hypothesis

sys.path.insert(0, str(Path(__file__).parent))
hypothesis.settings.register_profile("rankrise", derandomize=True, deadline=None)
hypothesis.settings.load_profile("rankrise")
