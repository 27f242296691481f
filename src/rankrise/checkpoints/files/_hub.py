"""Names of checkpoints on the Hugging Face hub, `owner/name@revision`: from its cache, or downloaded into it."""

import os
import re
from os import PathLike
from pathlib import Path

from rankrise._arguments import hub_hint
from rankrise._extras import require
from rankrise.checkpoints.files._folders import show

_NAME = re.compile(r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)@(?P<revision>\w[\w./-]*)", re.ASCII)
_WEIGHTS = ("*.safetensors", "*.json")
_PICKLES = ("*.bin", "*.pt", "*.pth")


def local_path(path: str | PathLike[str], *, allow_torch_load: bool = False) -> Path:
    """The path itself, or the folder in the hub's cache that a name stands for.

    The revision must be named, so that a mistyped path is never taken for a name on the hub. Only weights and JSON
    files are downloaded, and pickles where they may be read. Without a connection the cache answers alone.

    Args:
        path: A path, or `owner/name@revision` with a branch, a tag or a commit.
        allow_torch_load: Whether pickles may be read.

    Raises:
        FileNotFoundError: The path does not exist and is no name with a revision.
        ModuleNotFoundError: A name on the hub, and huggingface_hub is not installed.
        ValueError: The hub has no such name, or cannot be reached and the cache does not have it.

    >>> local_path(".")
    PosixPath('.')
    """
    if os.path.lexists(path):
        return Path(path)
    match = _NAME.fullmatch(os.fspath(path))
    if match is None or ".." in match["revision"]:
        raise FileNotFoundError(f"{show(path)} does not exist.{hub_hint(path)}")
    require("A checkpoint on the hub", "huggingface_hub", otherwise="or download it and name its folder")
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            match["name"],
            revision=match["revision"],
            allow_patterns=[*_WEIGHTS, *(_PICKLES if allow_torch_load else ())],
            ignore_patterns=["*/*"],
        )
    except (OSError, ValueError, RuntimeError) as error:  # its errors of HTTP, of names and of the cache
        why = show(str(error).strip().split("\n")[0])
        raise ValueError(
            f"{show(path)} must be on the hub or in its cache; {why} Check the name, the revision and the connection, "
            "or name a folder."
        ) from error
    return Path(folder)
