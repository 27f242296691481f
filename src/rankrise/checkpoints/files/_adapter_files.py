"""LoRA adapters of PEFT and MLX: which weight each pair changes, and by what.

Both add `scale · B A` to a weight stored (out, in). PEFT keeps A as (rank, in) and B as (out, rank); MLX keeps their
transposes. Anything beside plain LoRA is refused by name, as `scale · B A` would not be what it adds.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rankrise.checkpoints.files._folders import show
from rankrise.checkpoints.files._peft_settings import PeftSettings
from rankrise.checkpoints.files._safetensors import TensorInfo

_PEFT = re.compile(r"(?P<module>.+)\.(?P<kind>lora_[AB]|lora_embedding_[AB])(?:\.(?:[^.]+\.)?weight|\.[^.]+)?")
_MLX = re.compile(r"(?P<module>.+)\.(?P<kind>lora_[ab])")
_REFUSED = (
    "use_dora",
    "use_qalora",
    "lora_bias",
    "trainable_token_indices",
    "layer_replication",
    "alora_invocation_tokens",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "velora_config",
    "monteclora_config",
)
_KEEPS_THE_BASE = ("gaussian", "eva", "orthogonal", "mica")  # starts for which PEFT leaves the base alone
_MEND = "Mend its config."
Read = Callable[[str], Tensor]


@dataclass(frozen=True)
class LowRankDelta:
    """What an adapter adds to one weight: `scale · B A`, (out, in), or its transpose where the weight is (in, out)."""

    weight: str  # the weight it changes, as the adapter names it
    a: str  # tensors of the adapter
    b: str
    scale: float
    shape: tuple[int, int]  # shape of the change, in the order in which the weight is stored
    rank: int
    kept: str = "peft"  # "peft": A (rank, in), B (out, rank); "mlx": their transposes
    transposed: bool = False  # the weight is stored (in, out): Conv1D and embeddings
    by_parameter: bool = False  # the config names the weight (`target_parameters`) and not its module
    expert: int | None = None  # which expert of a stack, where A is (experts · rank, in) and B (out, rank · experts)
    alpha: str = ""  # tensor that states alpha, in a LoRA file of kohya or diffusers

    @property
    def is_linear(self) -> bool:
        """Whether PEFT made it for a Linear or a Conv1D, whose weights are stored either way round."""
        return self.kept == "peft" and "lora_embedding_" not in self.a

    def turned(self) -> "LowRankDelta":
        """The same for a weight that is stored the other way round."""
        return replace(self, shape=self.shape[::-1], transposed=not self.transposed)

    def factors(self, read: Read) -> tuple[Tensor, Tensor]:
        """`left` (m, rank) and `right` (n, rank) in float64 with `left rightᵀ` the change as the weight is stored.

        Args:
            read: Takes a tensor's name, and returns the tensor, as `Checkpoint.read` does.
        """
        a, b = (read(name).to(torch.float64) for name in (self.a, self.b))
        if self.kept == "mlx":
            a, b = a.mT, b.mT
        if self.expert is not None:
            a, b = a.reshape(-1, self.rank, a.shape[1])[self.expert], b.reshape(len(b), self.rank, -1)[..., self.expert]
        left, right = self.scale * b.flatten(1), a.flatten(1).mT
        return (right, left) if self.transposed else (left, right)


def peft_deltas(tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> dict[str, LowRankDelta]:
    """Map each weight that a PEFT adapter changes to what is added to it.

    Raises:
        ValueError: An adapter that is not plain LoRA; half of a pair; shapes that do not fit.
    """
    kind = str(config.get("peft_type"))
    if kind != "LORA":
        raise ValueError(f"An adapter must be LoRA; its config says {show(kind)!r}. Merge it into its base first.")
    for option in ("use_rslora", "fan_in_fan_out"):
        if not isinstance(config.get(option), bool | None):
            raise ValueError(f"{option} of an adapter must be true or false; got {show(config[option], 40)!r}. {_MEND}")
    for option in _REFUSED:
        if config.get(option):
            raise ValueError(f"An adapter must be plain LoRA, scale·BA; its config has {option}. Merge it first.")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower() not in _KEEPS_THE_BASE:
        raise ValueError(
            f"An adapter must leave its base alone; init_lora_weights is {show(start)!r}, for which PEFT changes "
            "the base on loading. Save it with `path_initial_model_for_weight_conversion`, or merge it."
        )
    parameters = _parameters(config)
    ranks, alphas = PeftSettings(config, "rank"), PeftSettings(config, "alpha")
    pairs: dict[str, dict[str, str]] = {}
    for name in tensors:
        if match := _PEFT.fullmatch(name):
            _put(pairs, match["module"], match["kind"], name)
        elif "lora_" in name:
            raise ValueError(f"An adapter must be plain LoRA, scale·BA; it has {show(name)!r}. Merge it first.")
    deltas: dict[str, LowRankDelta] = {}
    for module, names in pairs.items():
        if stack := _stack(module, parameters):
            deltas |= _expert_deltas(tensors, _both(module, names, "lora_A", "lora_B"), stack, ranks, alphas, config)
            continue
        prefix = "lora_embedding_" if any(key.startswith("lora_embedding_") for key in names) else "lora_"
        a, b = _both(module, names, f"{prefix}A", f"{prefix}B")
        rank, inputs, outputs = _peft_shapes(module, tensors[a].shape, tensors[b].shape)
        _check_rank(ranks, module, rank)
        transposed = prefix == "lora_embedding_" or bool(config.get("fan_in_fan_out"))
        shape = (inputs, outputs) if transposed else (outputs, inputs)
        key = module.removeprefix("base_model.model.")
        by_parameter = any(f".{key}.weight".endswith(f".{target}") for target in parameters)
        scale = peft_scale(config, alphas, f"{key}.weight" if by_parameter else key, rank)
        weight = f"{module}.weight"
        deltas[weight] = LowRankDelta(weight, a, b, scale, shape, rank, "peft", transposed, by_parameter)
    return deltas


STACK_ORDER = ("gate_up_proj", "gate_proj", "up_proj", "down_proj")  # in which models of transformers register them


def _stack(module: str, parameters: list[str]) -> str:
    """The fused weight of experts that a pair adapts, "" for none.

    PEFT wraps the module of the experts once for each of its parameters: the last one that the model registers is
    outside, and the others are below `base_layer`.
    """
    plain = module.removesuffix(".base_layer" * module.count(".base_layer"))
    names = [f"{plain.removeprefix('base_model.model.')}.{last}" for last in STACK_ORDER]
    found = [name for name in names if any(f".{name}".endswith(f".{target}") for target in parameters)]
    depth = module.count(".base_layer")
    return found[-1 - depth] if depth < len(found) else ""


def _expert_deltas(
    tensors: Mapping[str, TensorInfo],
    factors: tuple[str, str],
    stack: str,
    ranks: PeftSettings,
    alphas: PeftSettings,
    config: Mapping[str, Any],
) -> dict[str, LowRankDelta]:
    """What is added to each expert of a fused weight."""
    a, b = factors
    (rows, inputs), (outputs, columns) = tensors[a].shape, tensors[b].shape
    rank = ranks.of(stack)
    if type(rank) is not int or rows % rank or rows != columns:
        raise _unfit(stack, tensors[a].shape, tensors[b].shape)
    scale = peft_scale(config, alphas, stack, rank)
    names = {f"{stack}[{expert}]": expert for expert in range(rows // rank)}
    return {
        name: LowRankDelta(name, a, b, scale, (outputs, inputs), rank, by_parameter=True, expert=expert)
        for name, expert in names.items()
    }


def _parameters(config: Mapping[str, Any]) -> list[str]:
    """The weights that a config names as parameters: those of linear modules, and the fused ones of experts."""
    given = config.get("target_parameters") or []
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"target_parameters of an adapter must be a list of names; got {show(given, 40)!r}. {_MEND}")
    known = tuple(f".{last}" for last in ("weight", *STACK_ORDER))
    if other := next((name for name in given if not f".{name}".endswith(known)), None):
        raise ValueError(
            f"An adapter must be plain LoRA, scale·BA; its config has target_parameters with {show(other)!r}, of which "
            "it is not known whether it holds several matrices. Merge it first."
        )
    return given


def mlx_deltas(tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> dict[str, LowRankDelta]:
    """Map each weight that an MLX adapter changes to what is added to it.

    Raises:
        ValueError: As `peft_deltas`; no scale in the config.
    """
    kind = config.get("fine_tune_type", "lora")
    if kind != "lora":
        raise ValueError(f"An MLX adapter must be plain LoRA; its config says {show(kind)!r}. Fuse it first.")
    options = config.get("lora_parameters")
    scale = _number(options.get("scale")) if isinstance(options, Mapping) else None
    if scale is None:
        raise ValueError(
            "The scale of an MLX adapter must be known; its adapter_config.json has no lora_parameters.scale."
        )
    pairs: dict[str, dict[str, str]] = {}
    for name in tensors:
        if match := _MLX.fullmatch(name):
            _put(pairs, match["module"], match["kind"], name)
        elif "lora_" in name:
            raise ValueError(f"An MLX adapter must be lora_a and lora_b; it has {show(name)!r}. Fuse it first.")
    deltas = {}
    for module, names in pairs.items():
        a, b = _both(module, names, "lora_a", "lora_b")
        (inputs, *more), (rank, *outputs) = tensors[a].shape or (0,), tensors[b].shape or (0,)
        if more != [rank] or len(outputs) != 1:
            raise _unfit(module, tensors[a].shape, tensors[b].shape)
        weight = f"{module}.weight"
        deltas[weight] = LowRankDelta(weight, a, b, scale, (outputs[0], inputs), rank, "mlx")
    return deltas


def is_mlx(tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether a file is an MLX adapter, by its names."""
    return any(_MLX.fullmatch(name) for name in tensors)


def _put(pairs: dict[str, dict[str, str]], module: str, kind: str, name: str) -> None:
    before = pairs.setdefault(module, {}).setdefault(kind, name)
    if before != name:
        raise ValueError(f"A weight must have one adapter; {show(module)!r} has {show(before)!r} and {show(name)!r}.")


def _both(module: str, names: Mapping[str, str], a: str, b: str) -> tuple[str, str]:
    if set(names) != {a, b}:
        raise ValueError(
            f"A LoRA adapter must have both {a} and {b}; {show(module)!r} has {', '.join(names)}. "
            "The file may be truncated."
        )
    return names[a], names[b]


def _peft_shapes(module: str, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, int, int]:
    if len(a) < 2 or len(b) < 2 or a[0] != b[1] or math.prod(b[2:]) != 1:  # a convolution's B is 1 × 1
        raise _unfit(module, a, b)
    return a[0], math.prod(a[1:]), b[0]


def _unfit(module: str, a: tuple[int, ...], b: tuple[int, ...]) -> ValueError:
    return ValueError(f"A and B of {show(module)!r} must share a rank; their shapes are {a} and {b}.")


def _check_rank(settings: PeftSettings, module: str, rank: int) -> None:
    """PEFT builds a module with `r` or a rank of `rank_pattern`; factors of another rank are not what it would load."""
    default = settings.values[0]
    if default is not None and rank not in settings.values:
        raise ValueError(
            f"The rank of an adapter must be in its config; {show(module)!r} has {rank} and r is {show(default)}. "
            "Take the config and the file of one adapter."
        )


def peft_scale(config: Mapping[str, Any], settings: PeftSettings, module: str, rank: int) -> float:
    """By how much B A is multiplied: alpha / rank, and alpha / √rank for rsLoRA.

    Raises:
        ValueError: The config gives the module no alpha that is a number.
    """
    given = settings.of(module)
    alpha = _number(given)
    if alpha is None:
        why = "its config has no lora_alpha" if given is None else f"{show(given, 40)} is no number for lora_alpha"
        raise ValueError(f"The scale of the adapter on {show(module)!r} must be known; {why}. {_MEND}")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank) if rank else 0.0


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number else None  # type: ignore[arg-type]
