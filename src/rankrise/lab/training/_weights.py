"""The trained network."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def load_weights(path: str | os.PathLike[str]) -> "dict[str, Tensor]":
    """Return the weights of a run as its newest good checkpoint has them: of a finished one, the trained network.

    Args:
        path: The run directory.

    Returns:
        Parameters and buffers by name, on the CPU, for `load_state_dict`.

    Raises:
        FileNotFoundError: There is no good checkpoint.

    >>> import tempfile
    >>> from rankrise.lab.data import DataConfig, load_dataset
    >>> from rankrise.lab.models import ToyHeadConfig, build_model
    >>> from rankrise.lab.training import TrainingConfig, train
    >>> model, folder = build_model(ToyHeadConfig(dim=4)), tempfile.mkdtemp()
    >>> data = load_dataset(DataConfig("teacher", samples=8, tokens=3, dim=4))
    >>> train(model, data, TrainingConfig(epochs=2, batch_size=8), out=folder, device="cpu").status
    'finished'
    >>> again = build_model(ToyHeadConfig(dim=4))
    >>> again.load_state_dict(load_weights(folder))
    <All keys matched successfully>
    """
    from rankrise.store import find_checkpoint

    checkpoint, skipped = find_checkpoint(Path(path))
    if checkpoint is None:
        raise FileNotFoundError(f"{path} must hold a good checkpoint; it has none. {' '.join(skipped)}".rstrip())
    return checkpoint.model
