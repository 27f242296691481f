"""Shared by all tests: hypothesis is reproducible."""

import hypothesis

hypothesis.settings.register_profile("rankrise", derandomize=True, deadline=None)
hypothesis.settings.load_profile("rankrise")
