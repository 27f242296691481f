"""Public names that are looked up on first use (PEP 562), for packages that must be cheap to import."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rankrise._arguments import did_you_mean


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package, some of whose public names load their module on first use.

    Args:
        package: `__name__` of the package.
        homes: The lazy names that each private module of the package defines.
    """
    home = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home:
            hint = did_you_mean(name, home)
            raise AttributeError(f"module {package!r} has no attribute {name!r}. {hint}".rstrip())
        value = getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        vars(importlib.import_module(package))[name] = value
        return value

    def names() -> list[str]:
        return sorted({*vars(importlib.import_module(package)), *home})

    return find, names
