"""Several runs in the processes that `torchrun` started."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def joined_processes(device: str | None = None) -> Iterator[None]:
    """Inside, the processes that `torchrun` started stay joined from run to run; alone, nothing happens.

    `train` joins and parts by itself. Joining a second time may find the addresses of the first in torchrun's store,
    and wait for ever; so whoever runs several specs joins around them all.

    >>> with joined_processes():
    ...     pass
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    from rankrise.lab.training._processes import choose_device, joined

    with joined(choose_device(device)):
        yield
