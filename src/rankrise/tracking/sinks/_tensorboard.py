"""TensorBoard."""

import os
from collections.abc import Mapping


class TensorBoardSink:
    """Event files in `folder`; needs the package `tensorboard`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(os.fspath(folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One scalar a name."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
