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


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which `h.2` comes before `h.10`, in a file's order of names as in a module's."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in name.split("."))


class Stripper:
    """From a name in the source to the name without wrappers, keeping account of what was taken off."""

    def __init__(self, names: Iterable[str]) -> None:
        names = list(names)
        self.peft = any(".base_layer." in name or ADAPTER.fullmatch(name) for name in names)
        self.ddp = bool(names) and all("module" in name.split(".")[: self._depth(name) + 1] for name in names)
        self.stripped: dict[str, None] = {}

    def __call__(self, name: str) -> str:
        parts = name.split(".")
        kept = [part for part in parts if not (part in _WRAPPERS or (self.peft and part == "base_layer"))]
        if self.ddp and kept[:1] == ["module"]:
            kept = kept[1:]
        if self.peft and kept[:2] == ["base_model", "model"]:
            kept = kept[2:]
        for part in parts:
            if part in _WRAPPERS or (self.ddp and part == "module" and part not in kept):
                self.stripped[f"{part}."] = None
        return ".".join(kept)

    def notes(self) -> tuple[str, ...]:
        """What was taken off so far."""
        prefixes = tuple(f"stripped the prefix {prefix!r}" for prefix in self.stripped)
        return (*prefixes, "PEFT adapters are added to the weights they adapt") if self.peft else prefixes

    @staticmethod
    def _depth(name: str) -> int:
        parts = name.split(".")
        return next((i for i, part in enumerate(parts) if part not in _WRAPPERS), len(parts))
