"""A PEFT adapter on disk: `adapter_config.json`, `adapter_model.safetensors`, and `rankrise.json` with the evidence.

PEFT adds `(alpha / r) B A` with A (r, in) and B (out, r), also to a Conv1D, which stores (in, out). Here alpha is r for
every module, in `alpha_pattern` as in `rank_pattern`: without `alpha_pattern`, PEFT would silently scale the modules
whose rank is not `r` by another factor. The folder is whole or not there: it is written beside its place under another
name, synced and renamed.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from rankrise.checkpoints.files import STACK_ORDER, Layout, num_bytes, show, stream_tensors
from rankrise.checkpoints.match import is_expert_stack
from rankrise.store import failpoint, sync, write_json

PREFIX = "base_model.model."
MODEL, CONFIG, REPORT = "adapter_model.safetensors", "adapter_config.json", "rankrise.json"


@dataclass(frozen=True, eq=False)
class AdapterModule:
    """One module: `B A` is added to its weight as a Linear has it, (out, in)."""

    name: str
    shape: tuple[int, int]  # out, in
    rank: int  # at least 1
    dtype: torch.dtype
    factors: Callable[[], tuple[Tensor, Tensor]]  # A (r, in) and B (out, r), made when they are written
    is_transposed: bool = False  # the weight is stored (in, out)
    is_parameter: bool = False  # PEFT is told the parameter (`target_parameters`) and not the module
    num_experts: int = 1  # number of experts in a stack, each of which has this rank

    @property
    def target(self) -> str:
        """What PEFT matches its patterns with: the module's name, or that of its parameter."""
        return peft_target(self.name, is_parameter=self.is_parameter)

    @property
    def width(self) -> int:
        """Return the number of rows of A and of columns of B."""
        return self.rank * self.num_experts

    def tensors(self) -> tuple[Tensor, Tensor]:
        """A and B as they are written.

        Raises:
            ValueError: A number is not finite in this dtype.
        """
        a, b = (t.to("cpu", self.dtype) for t in padded(*self.factors(), self.width))
        if not (a.isfinite().all() and b.isfinite().all()):
            raise ValueError(f"Factors must be finite; those of {show(self.name)!r} are not in {self.dtype}.")
        return a, b


@dataclass(frozen=True, eq=False)
class WholeTensor:
    """A tensor that is written as it is."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]


@dataclass(frozen=True, eq=False)
class Adapter:
    """All that is written for one adapter."""

    modules: Sequence[AdapterModule]
    saved: Mapping[str, WholeTensor] = field(default_factory=dict)  # by their name in memory
    saved_modules: Sequence[str] = ()
    base: str = ""
    task: str | None = None
    others: Sequence[str] = ()  # modules that must not be adapted
    base_config: Mapping[str, Any] = field(default_factory=dict)  # entries of another config to keep

    file_name = MODEL
    metadata: ClassVar[Mapping[str, str]] = {}

    @property
    def num_bytes(self) -> int:
        """Return the number of bytes of all tensors."""
        return num_bytes(self.layout())

    def names(self, module: str) -> tuple[str, str]:
        """Names of A and B in the file."""
        return factor_names(module, [module.name for module in self.modules])

    def config(self) -> dict[str, Any]:
        """`adapter_config.json`."""
        transposed = sum(module.is_transposed for module in self.modules)
        return {
            "peft_type": "LORA",
            "task_type": self.task,
            "base_model_name_or_path": self.base,
            **lora_arguments(
                {module.target: module.rank for module in self.modules},
                self.others,
                [module.target for module in self.modules if module.is_parameter],
            ),
            "fan_in_fan_out": 2 * transposed > len(self.modules),  # PEFT corrects it for modules of the other kind
            "bias": "none",
            "lora_dropout": 0.0,
            "inference_mode": True,
            "init_lora_weights": True,
            "use_rslora": False,
            "modules_to_save": sorted(self.saved_modules) or None,
            **self.base_config,
        }

    def layout(self) -> Layout:
        """Names, dtypes and shapes in `adapter_model.safetensors`."""
        found: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        for module in self.modules:
            outputs, inputs = module.shape
            shapes = (module.width, inputs), (outputs, module.width)
            found |= {name: (module.dtype, shape) for name, shape in zip(self.names(module.name), shapes, strict=True)}
        return found | {f"{PREFIX}{name}": (whole.dtype, whole.shape) for name, whole in self.saved.items()}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that the layout names, one module at a time."""
        for module in self.modules:
            yield from zip(self.names(module.name), module.tensors(), strict=True)
        for name, whole in self.saved.items():
            yield f"{PREFIX}{name}", whole.read()


def factor_names(module: str, adapted: Iterable[str]) -> tuple[str, str]:
    """Names of A and B in a file of PEFT.

    PEFT wraps the module of the experts once for each of its parameters, in the order in which the model registers
    them; the last one is outside, and the others are its `base_layer`.

    >>> stacks = ["mlp.experts.down_proj", "mlp.experts.gate_up_proj"]
    >>> [factor_names(name, stacks)[0] for name in stacks]
    ['base_model.model.mlp.experts.lora_A.weight', 'base_model.model.mlp.experts.base_layer.lora_A.weight']
    """
    if is_expert_stack(module):
        holder, _, parameter = module.rpartition(".")
        same = {
            name.rpartition(".")[2] for name in adapted if name.rpartition(".")[0] == holder and is_expert_stack(name)
        }
        order = [name for name in STACK_ORDER if name in same]
        module = holder + ".base_layer" * (len(order) - 1 - order.index(parameter))
    return f"{PREFIX}{module}.lora_A.weight", f"{PREFIX}{module}.lora_B.weight"


class Writable(Protocol):
    """An adapter as a file of tensors, with or without a config beside it."""

    @property
    def modules(self) -> Sequence[AdapterModule]:
        """Return the modules that it changes."""

    @property
    def file_name(self) -> str:
        """Return the name of the file in its folder."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Return entries of the file's header."""

    @property
    def num_bytes(self) -> int:
        """Return the number of bytes of all tensors."""

    def config(self) -> dict[str, Any] | None:
        """Return `adapter_config.json`; None for a format that has none."""

    def layout(self) -> Layout:
        """Return names, dtypes and shapes in the file."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that the layout names."""


def write_adapter(out: Path, adapter: Writable, check: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Write an adapter; `check` reads it back before it gets its name, and what it returns becomes `rankrise.json`.

    Raises:
        OSError: The disk is full or read-only; nothing is left.
        ValueError: Something is at `out` already; an adapter of nothing; a tensor that is not finite.
    """
    if not adapter.modules:
        raise ValueError(
            "An adapter must have modules; none has a change to write. The checkpoints may be equal, or differ "
            "only in what LoRA cannot carry."
        )
    for module in adapter.modules:
        assert module.rank > 0, module.name  # PEFT refuses rank 0
    with new_folder(out, adapter.num_bytes) as folder:
        file = folder / adapter.file_name
        stream_tensors(file, adapter.layout(), adapter.tensors(), "adapter_model", adapter.metadata)
        if (config := adapter.config()) is not None:
            write_json(folder / CONFIG, config, "adapter_config")
        report = check(folder)
        write_json(folder / REPORT, report, "adapter_report")
    return report


def padded(a: Tensor, b: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The same product with more directions, of zeros: a snapped rank may exceed the directions there are."""
    more = rank - a.shape[0]
    if more <= 0:
        return a, b
    return torch.cat([a, a.new_zeros(more, a.shape[1])]), torch.cat([b, b.new_zeros(b.shape[0], more)], dim=1)


def lora_arguments(
    ranks: Mapping[str, int], others: Sequence[str] = (), parameters: Collection[str] = ()
) -> dict[str, Any]:
    """`r`, `lora_alpha`, `target_modules`, `rank_pattern`, `alpha_pattern` that give each module its rank at scale 1.

    PEFT takes a pattern for every module whose name ends in it after a dot, the first one that does, and a target
    likewise. So names are whole and escaped, the longest come first, and where a whole name ends another one the
    targets become one expression that matches nothing else. PEFT reads such an expression in its own way where
    parameters are named, so longer names are then excluded one by one.

    Args:
        ranks: Name of a module, or of a parameter, to its rank.
        others: Names of modules that must not be adapted, as far as they are known.
        parameters: Which of `ranks` are parameters; PEFT takes these as `target_parameters`.
    """
    names = sorted(ranks, key=lambda name: (-len(name), name))
    largest = max(ranks.values(), default=8)  # engines that read `r` alone reserve room for this rank
    pattern = {escaped(name): ranks[name] for name in names}
    modules = sorted(set(ranks) - set(parameters))
    longer = sorted(other for other in set(others) - set(ranks) if any(other.endswith(f".{name}") for name in modules))
    is_ambiguous = bool(longer) or any(other.endswith(f".{name}") for other in modules for name in modules)
    targets: str | list[str] = modules
    if is_ambiguous and not parameters:
        targets = f"(?:{'|'.join(escaped(name) for name in modules)})"
    found = {
        "r": largest,
        "lora_alpha": largest,
        "target_modules": targets,
        "rank_pattern": pattern,
        "alpha_pattern": dict(pattern),
    }
    if parameters:
        found["target_parameters"] = sorted(parameters)
        found |= {"exclude_modules": longer} if longer else {}
    return found


def peft_target(name: str, *, is_parameter: bool) -> str:
    """What PEFT calls a module: its name, or that of its parameter where PEFT must be told the parameter.

    >>> peft_target("mlp.down_proj", is_parameter=True), peft_target("mlp.experts.down_proj", is_parameter=True)
    ('mlp.down_proj.weight', 'mlp.experts.down_proj')
    """
    return f"{name}.weight" if is_parameter and not is_expert_stack(name) else name


def escaped(name: str) -> str:
    """The name as a regular expression that matches it alone; `-` and `_` stay readable."""
    return "".join(c if c.isalnum() or c in "_-" else f"\\{c}" for c in name)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ROOM = 1.2  # free space wanted, in sizes of what is written


def check_place(out: Path) -> None:
    """Refuse a place where something is, before any work is done for it.

    Raises:
        ValueError: A file, a folder that is not empty, or a place that cannot be written.
    """
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise ValueError(f"`out` must be a new or an empty folder; {show(out)} is there. Choose another, or remove it.")
    above = next(parent for parent in out.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ValueError(f"`out` must be a place to write to; {show(above)} is not. Choose another.")


@contextlib.contextmanager
def new_folder(out: Path, num_bytes: int) -> Iterator[Path]:
    """Yield a temporary folder; on leaving it becomes `out`, on an error it is removed and `out` is as before.

    Raises:
        OSError: The disk is full, read-only, or gone.
        ValueError: As `check_place`.
    """
    check_place(out)
    failpoint("adapter.begin")
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(out)
    usage = shutil.disk_usage(out.parent)
    if usage.total and usage.free < _ROOM * num_bytes:  # a place that is no disk, such as /proc, has no size at all
        raise _full(errno.ENOSPC, out, num_bytes)
    temporary = out.parent / f".tmp-{out.name}-{os.getpid()}"
    try:
        temporary.mkdir()
        yield temporary
        sync(temporary)
        failpoint("adapter.rename")
        temporary.rename(out)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise _full(error.errno, out, num_bytes) from error
        raise
    failpoint("adapter.sync")
    sync(out.parent)
    failpoint("adapter.done")


def _full(number: int, out: Path, num_bytes: int) -> OSError:
    what = f"{os.strerror(number)}; {num_bytes / 1e6:.3g} MB are needed. Make room, or choose another `out`"
    return OSError(number, what, str(out))


def _remove_leftovers(out: Path) -> None:
    """Remove the temporary folders of processes that died.

    A folder with our own process id is stale, too: in a container every process starts with the same id.
    """
    begin = f".tmp-{out.name}-"
    for path in [p for p in out.parent.iterdir() if p.name.startswith(begin)]:
        pid = path.name.rpartition("-")[2]
        if pid.isdecimal() and (int(pid) == os.getpid() or not _is_alive(int(pid))):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
