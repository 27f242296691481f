"""What a module or a state dict holds, under names without wrappers: the only place that looks at the source.

Wrappers that hide a name: `_orig_mod` (torch.compile), `module` (DDP), `_fsdp_wrapped_module`,
`_checkpoint_wrapped_module`, and PEFT's `base_model.model` and `base_layer`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankrise.heads._configs import configs_at
from rankrise.heads._parametrised import named_weights

ADAPTER = re.compile(r"(?P<module>.*?)\.?\b(?P<kind>lora_[AB])\.(?:(?P<adapter>.+)\.)?weight")
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def ancestors(path: str) -> tuple[str, ...]:
    """Return the paths above `path`, nearest first and the root "" last; the root itself has none."""
    parts = path.split(".") if path else []
    return tuple(".".join(parts[:n]) for n in reversed(range(len(parts))))


def common_path(names: Iterable[str]) -> str:
    """Return the longest dotted path that all `names` lie below."""
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
    """Return the name without wrappers of each name, under which a weight is known whatever wraps it.

    Args:
        names: All names of a model, because `module` is DDP's only if every name begins with it.

    Raises:
        ValueError: If two names become equal.

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
    """Return the error about two names that differ only by wrappers."""
    return ValueError(
        f"Names must differ after wrappers are stripped; {one!r} and {other!r} are both {plain!r}. "
        "Pass the inner module."
    )


class Stripper:
    """A function from a name in the source to the name without wrappers, which remembers what it took off."""

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
        """Return notes on what was taken off so far."""
        prefixes = tuple(f"stripped the prefix {prefix!r}" for prefix in self.stripped)
        return (*prefixes, "PEFT adapters are added to the weights they adapt") if self.peft else prefixes


def _leading_modules(name: str) -> int:
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    return next((i for i, part in enumerate(parts) if part != "module"), len(parts))


@dataclass(frozen=True)
class Found:
    """A tensor of the source."""

    parameter: str  # its name in the source
    shape: tuple[int, ...]
    dtype: torch.dtype


class LoraPair(NamedTuple):
    """The two parameters of a LoRA adapter."""

    a: Found  # (rank, in)
    b: Found  # (out, rank)


@dataclass(frozen=True)
class Inventory:
    """Names, shapes and, for a module, the modules that hold them; keys are names without wrappers."""

    kind: str  # what the source is, for messages
    tensors: Mapping[str, Found]
    modules: Mapping[str, tuple[nn.Module, ...]]  # outermost wrapper first; empty for a state dict
    adapters: Mapping[str, Mapping[str, LoraPair]]  # module -> adapter -> its two parameters
    extras: Mapping[str, tuple[str, ...]]  # PEFT-wrapped module -> its own parameters besides the base and LoRA
    signs: tuple[str, ...]  # names of everything, buffers too, as they are in the source
    shared: Mapping[str, str]  # every name of a parameter that a module has under several -> the first of them
    config: Any  # the caller's config
    notes: tuple[str, ...] = field(default=())
    num_heads: int | None = None  # query heads of every layer, as the caller states them

    def module_class(self, path: str) -> str:
        """Class name of the innermost module at `path`, without the prefix of FSDP2 or parametrize; else ""."""
        modules = self.modules.get(path, ())
        return _class_name(modules[-1]) if modules else ""

    def witnesses(self, path: str) -> Iterator[Any]:
        """Objects that may know the number of heads of the attention at `path`, the caller's config first.

        Of a config with several parts, the part that `path` lies in. Then the module itself, what it contains, and its
        ancestors, each followed by its own `config`.
        """
        if self.config is not None or self.num_heads is not None:
            yield from configs_at(self.config, path, self.num_heads)
        inside = [p for p in self.modules if p != path and (p.startswith(f"{path}.") or not path)]
        for place in (path, *inside, *ancestors(path)):
            for module in self.modules.get(place, ()):
                yield module
                if (config := getattr(module, "config", None)) is not None:
                    yield config


def take_inventory(source: nn.Module | Mapping[str, Tensor], config: Any, num_heads: int | None = None) -> Inventory:
    """List a module's or a state dict's tensors under names without wrappers."""
    named: dict[str, Tensor]
    if isinstance(source, nn.Module):
        kind, named = _class_name(source), dict(named_weights(source))
        signs = (*named, *(name for name, _ in source.named_buffers(remove_duplicate=False)))
    elif isinstance(source, Mapping):
        kind = "the state dict"
        named = {
            name: tensor for name, tensor in source.items() if isinstance(name, str) and isinstance(tensor, Tensor)
        }
        signs = tuple(map(str, source))
    else:
        raise ValueError(f"`source` must be an nn.Module or map names to tensors; got {type(source).__name__}.")
    strip = Stripper(named)
    tensors, pairs, extras = _sort_out(named, strip)
    return Inventory(
        kind=kind,
        tensors=tensors,
        modules=_modules_by_path(source, strip) if isinstance(source, nn.Module) else {},
        adapters=_complete_pairs(pairs),
        extras=extras,
        signs=signs,
        shared=_shared(named, strip) if isinstance(source, nn.Module) else {},
        config=config,
        notes=strip.notes(),
        num_heads=num_heads,
    )


def _class_name(module: nn.Module) -> str:
    return type(module).__name__.removeprefix("FSDP").removeprefix("Parametrized")


_Pairs = dict[str, dict[str, dict[str, Found]]]  # module -> adapter -> "lora_A", "lora_B"


def _sort_out(
    named: Mapping[str, Tensor], strip: Stripper
) -> tuple[dict[str, Found], _Pairs, dict[str, tuple[str, ...]]]:
    """Return the weights, the LoRA pairs, and other parameters that PEFT has put beside a base layer."""
    tensors: dict[str, Found] = {}
    pairs: _Pairs = {}
    extras: dict[str, tuple[str, ...]] = {}
    wrapped = {strip(name.split(".base_layer.")[0]) for name in named if ".base_layer." in name}
    for name, tensor in named.items():
        plain, here = strip(name), Found(name, tuple(tensor.shape), tensor.dtype)
        module = next((path for path in ancestors(plain) if path in wrapped), None)
        if match := ADAPTER.fullmatch(plain):
            adapter = match["adapter"] or "default"
            pairs.setdefault(match["module"], {}).setdefault(adapter, {})[match["kind"]] = here
        elif module is not None and ".base_layer." not in name and not plain.endswith(".bias"):
            extras[module] = (*extras.get(module, ()), name)
        elif plain in tensors:
            raise equal_names(tensors[plain].parameter, name, plain)
        else:
            tensors[plain] = here
    return tensors, pairs, extras


def _complete_pairs(pairs: _Pairs) -> dict[str, dict[str, LoraPair]]:
    for module, adapters in pairs.items():
        for adapter, halves in adapters.items():
            if len(halves) < 2:
                raise ValueError(
                    f"A LoRA adapter must have both lora_A and lora_B; {adapter!r} on {module!r} has only "
                    f"{', '.join(halves)}. The file may be truncated."
                )
    return {
        module: {adapter: LoraPair(halves["lora_A"], halves["lora_B"]) for adapter, halves in adapters.items()}
        for module, adapters in pairs.items()
    }


def _modules_by_path(source: nn.Module, strip: Stripper) -> dict[str, tuple[nn.Module, ...]]:
    modules: dict[str, tuple[nn.Module, ...]] = {}
    for name, module in source.named_modules(remove_duplicate=False):
        path = strip(name)
        modules[path] = (*modules.get(path, ()), module)
    return modules


def _shared(named: Mapping[str, Tensor], strip: Stripper) -> dict[str, str]:
    names: dict[int, list[str]] = {}
    for name, tensor in named.items():
        names.setdefault(id(tensor), []).append(strip(name))
    return {name: several[0] for several in names.values() if len(several) > 1 for name in several}


def lookup(witness: Any, key: str) -> Any:
    """Return `witness[key]` of a mapping, `witness.key` of anything else, and None where there is no such value.

    A config may refuse, with an error of its own kind, to state a number that differs from layer to layer; it then has
    no such value.
    """
    try:
        return witness.get(key) if isinstance(witness, Mapping) else getattr(witness, key, None)
    except Exception:
        return None
