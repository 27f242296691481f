"""Packages that come with an extra of this package, and the one sentence that says that some are missing."""

import importlib.util
from typing import NamedTuple


class _Extra(NamedTuple):
    package: str  # what it is called where it is installed from
    extra: str


_EXTRAS = {
    "matplotlib": _Extra("matplotlib", "plot"),
    "jinja2": _Extra("jinja2", "report"),
    "plotly": _Extra("plotly", "report"),
    "starlette": _Extra("starlette", "serve"),
    "uvicorn": _Extra("uvicorn", "serve"),
    "dask": _Extra("dask", "sweep"),
    "distributed": _Extra("distributed", "sweep"),
    "cryptography": _Extra("cryptography", "sweep"),
    "PIL": _Extra("pillow", "images"),
    "transformers": _Extra("transformers", "hf"),
    "huggingface_hub": _Extra("huggingface_hub", "hf"),
    "tokenizers": _Extra("tokenizers", "hf"),
    "peft": _Extra("peft", "peft"),
    "lightning": _Extra("lightning", "lightning"),
    "tensorboard": _Extra("tensorboard", "track"),
    "wandb": _Extra("wandb", "track"),
    "trackio": _Extra("trackio", "track"),
    "mlflow": _Extra("mlflow-skinny", "track"),
    "sklearn": _Extra("scikit-learn", "demo"),
}


def require(task: str, *modules: str, otherwise: str = "") -> None:
    """Refuse a task whose packages are not installed. Nothing is imported.

    Args:
        task: What needs the packages; the first words of the message.
        modules: The names under which the packages are imported.
        otherwise: What else the user can do, without a full stop.

    Raises:
        ModuleNotFoundError: A package is missing; the message names it and the line that installs it.

    >>> require("Drawing a figure")
    """
    missing = [module for module in modules if not is_installed(module)]
    if not missing:
        return
    *first, last = (_EXTRAS[module].package for module in missing)
    names = f"{', '.join(first)} and {last}" if first else last
    extras = ",".join(dict.fromkeys(_EXTRAS[module].extra for module in missing))
    what = f"the package {names}, which is" if len(missing) == 1 else f"the packages {names}, which are"
    message = f"{task} needs {what} not installed: pip install 'rankrise[{extras}]'"
    raise ModuleNotFoundError(f"{message}{f'; {otherwise}' if otherwise else ''}.", name=missing[0])


def is_installed(module: str) -> bool:
    """Whether a package can be imported; it is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # an import hook refuses the module
        return False
