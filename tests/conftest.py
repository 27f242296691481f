"""Shared by all tests: hypothesis is reproducible, and no test waits for the disk."""

import os

import hypothesis
import pytest

hypothesis.settings.register_profile("rankrise", derandomize=True, deadline=None)
hypothesis.settings.load_profile("rankrise")


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """`fsync` guards against a power failure, which no test can cause. `fstat` also refuses a closed descriptor.

    Tests that start a process of their own run the real `fsync` there.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield
