"""Dotted names: taking wrappers off, paths above a name, natural order.

Wrappers that hide a name: `_orig_mod` (torch.compile), `module` (DDP), `_fsdp_wrapped_module`,
`_checkpoint_wrapped_module`, and PEFT's `base_model.model` and `base_layer`.
"""

import re
from collections.abc import Iterable

ADAPTER = re.compile(r"(?P<module>.*?)\.?\b(?P<kind>lora_[AB])\.(?:(?P<adapter>.+)\.)?weight")
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def ancestors(path: str) -> tuple[str, ...]:
    """The paths above `path`, nearest first, the root "" last; none for the root."""
    parts = path.split(".") if path else []
    return tuple(".".join(parts[:n]) for n in reversed(range(len(parts))))


def common_path(names: Iterable[str]) -> str:
    """The longest dotted path that all `names` lie below."""
    above = [set(ancestors(name)) for name in names]
    return max(set.intersection(*above), key=len)


def natural_order(name: str) -> tuple[tuple[tuple[int, int, str], ...], ...]:
    """Sort key under which `h.2` comes before `h.10`, in a file's order of names as in a module's.

    >>> sorted(["layer_10.attn", "layer_9.attn", "2"], key=natural_order)
    ['2', 'layer_9.attn', 'layer_10.attn']
    """
    return tuple(
        tuple(
            (0, int(piece), piece) if piece.isdecimal() else (1, 0, piece)
            for piece in re.split(r"(\d+)", part)
            if piece
        )
        for part in name.split(".")
    )


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """From each name to the one without wrappers, under which a weight is known whatever it is wrapped in.

    Args:
        names: All of a model's, as `module` is DDP's only where every name begins with it.

    Raises:
        ValueError: Two names that become equal.

    >>> canonical_names(["module.h.0._orig_mod.attn.weight", "module.head.weight"])
    {'module.h.0._orig_mod.attn.weight': 'h.0.attn.weight', 'module.head.weight': 'head.weight'}
    >>> canonical_names(["module.weight", "head.weight"])["module.weight"]
    'module.weight'
    """
    names = list(names)
    strip = Stripper(names)
    canonical = {name: strip(name) for name in names}
    first: dict[str, str] = {}
    for name, plain in canonical.items():
        if plain in first:
            raise equal_names(first[plain], name, plain)
        first[plain] = name
    return canonical


def equal_names(one: str, other: str, plain: str) -> ValueError:
    """What to say of two names that differ only by wrappers."""
    return ValueError(
        f"Names must differ after wrappers are stripped; {one!r} and {other!r} are both {plain!r}. "
        "Pass the inner module."
    )


class Stripper:
    """From a name in the source to the name without wrappers, keeping account of what was taken off."""

    def __init__(self, names: Iterable[str]) -> None:
        names = list(names)
        self.peft = any(".base_layer." in name or ADAPTER.fullmatch(name) for name in names)
        self.ddp = min(map(_leading_modules, names), default=0)  # how many `module` all names begin with
        self.stripped: dict[str, None] = {}

    def __call__(self, name: str) -> str:
        parts = name.split(".")
        kept = [part for part in parts if not (part in _WRAPPERS or (self.peft and part == "base_layer"))]
        leading = min(self.ddp, _leading_modules(name))
        self.stripped |= {f"{part}.": None for part in parts if part in _WRAPPERS or (leading and part == "module")}
        kept = kept[leading:]
        if self.peft and kept[:2] == ["base_model", "model"]:
            kept = kept[2:]
        return ".".join(kept)

    def notes(self) -> tuple[str, ...]:
        """What was taken off so far."""
        prefixes = tuple(f"stripped the prefix {prefix!r}" for prefix in self.stripped)
        return (*prefixes, "PEFT adapters are added to the weights they adapt") if self.peft else prefixes


def _leading_modules(name: str) -> int:
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    return next((i for i, part in enumerate(parts) if part != "module"), len(parts))
