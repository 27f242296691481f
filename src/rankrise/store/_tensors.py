"""Tensors on disk as safetensors, whole or not at all, with the permissions the umask asks for."""

from pathlib import Path
from typing import TYPE_CHECKING

from rankrise.store._atomic import replacing

if TYPE_CHECKING:
    from torch import Tensor


def save_tensors(path: Path, tensors: "dict[str, Tensor]", label: str) -> None:
    """Replace `path` by `tensors`.

    Args:
        path: A `.safetensors` file.
        tensors: On any device; each is written contiguous.
        label: Name of the failpoints.

    Raises:
        OSError: The disk is full or read-only.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with replacing(path, label) as temporary:
        try:
            save_file({k: t.detach().cpu().contiguous() for k, t in tensors.items()}, temporary, {"format": "pt"})
        except SafetensorError as error:  # an I/O error comes wrapped
            raise OSError(f"{path} could not be written: {error}") from error


def load_tensors(path: Path) -> "dict[str, Tensor]":
    """Read every tensor of a safetensors file.

    Raises:
        ValueError: The file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, FileNotFoundError) as error:
        raise ValueError(f"{path} must be a safetensors file; {error}. Restore it, or drop the run.") from error
