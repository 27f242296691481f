"""Quantised checkpoints: read where a stored number and its scale are the weight, refused by name where they are not.

| stored | the weight | |
|---|---|---|
| float8 with `weight_scale` or `weight_scale_inv` | number × scale, per tensor, per row or per block | read |
| float8 without scales, and none in the config | the number | read |
| float8 with scales of other names or shapes | | refused |
| int8 with `SCB` (bitsandbytes, 8 bit) | number × SCB / 127, per row | read |
| GPTQ, AWQ, bitsandbytes 4 bit, HQQ, MXFP4, quanto, MLX | groups of packed integers | refused |
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankrise.checkpoints.files._folders import show
from rankrise.checkpoints.files._safetensors import TensorInfo

_PACKED = re.compile(
    r".*\.(?P<mark>qweight|qzeros|W_q|weight_packed|weight_shape|weight\.(absmax|quant_map|nested_absmax|quant_state\..*))"
)
_SCALES = ("weight_scale_inv", "weight_scale", "SCB")
_OF_ACTIVATIONS = re.compile(
    r"((input|output|activation|act|[qkv]|kv)_)+(global_)?scale(_inv)?|scale_(input|output)|qscale_act"
)
_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32)  # indices are int64
_METHODS = ("fp8", "fbgemm_fp8", "bitsandbytes", "compressed-tensors")

_BUFFER = re.compile(
    r"(.*\.)?(rotary_emb\.inv_freq|inv_freq|position_ids|token_type_ids|num_batches_tracked|masked_bias|attn\.bias|"
    r"attention\.bias|causal_mask|relative_position_index|rope\.freqs|rotary_emb\.(cos|sin)_cached|freqs_cis)"
)


@dataclass(frozen=True)
class WeightScale:
    """How stored numbers become weights: multiplied by a tensor of scales, each for a block of (rows, columns)."""

    name: str
    block: tuple[int, int]
    factor: float = 1.0

    def apply(self, stored: Tensor, scales: Tensor, begin: int) -> Tensor:
        """Rows of the weight in float32, given those rows as stored, from row `begin` on."""
        scales = scales.to(torch.float32).reshape(scales.shape if scales.ndim == 2 else (-1, 1)) * self.factor
        row = torch.arange(begin, begin + stored.shape[0]) // self.block[0]
        column = torch.arange(stored.shape[1]) // self.block[1]
        return stored.to(torch.float32) * scales[row][:, column]


def find_scales(tensors: Mapping[str, TensorInfo], config: Mapping[str, Any] | None) -> dict[str, WeightScale]:
    """From each weight that is stored with scales to these.

    Raises:
        ValueError: A format in which number and scale do not give the weight; names the first tensor of it.
    """
    for name in tensors:
        if match := _PACKED.fullmatch(name):
            raise ValueError(
                f"Weights must be stored as numbers; {show(name)!r} is packed ({match['mark'].split('.')[0]}: GPTQ, "
                "AWQ, bitsandbytes 4 bit or the like), which cannot be compared exactly. Dequantise the model first."
            )
    stored = _scale_tensors(tensors)
    method = _option(config, "quant_method")
    scales: dict[str, WeightScale] = {}
    for name, info in tensors.items():
        is_integer = info.dtype in _INTEGERS and len(info.shape) > 1 and not is_buffer(name)
        is_float8 = info.dtype.is_floating_point and info.dtype.itemsize == 1
        if _is_scale(name) or not (is_integer or is_float8):
            continue
        if method is not None and method not in _METHODS:
            raise ValueError(
                f"Weights must be stored as numbers, or with known scales; the config says quant_method "
                f"{show(method)!r} and {show(name)!r} is {info.dtype}. Dequantise the model first."
            )
        module = name.rpartition(".")[0]
        found = [*stored.get(module, ()), *stored.get(name, ())]
        if len(found) == 1 and name.endswith("weight") and found[0].removeprefix(f"{module}.") in _SCALES:
            scales[name] = _scale(name, info, found[0], tensors[found[0]], config)
        elif found or is_integer or method is not None:
            with_scales = f" with {show(found[0])!r}" if found else ""
            raise ValueError(
                f"Weights must be floating-point numbers, or stored with known scales; {show(name)!r} is "
                f"{info.dtype}{with_scales}. Dequantise the model first."
            )
    return scales


def _scale_tensors(names: Iterable[str]) -> dict[str, list[str]]:
    """Map each module to the scales of the weights directly below it; scales of activations are left out."""
    found: dict[str, list[str]] = {}
    for name in names:
        module, _, last = name.rpartition(".")
        if _is_scale(name) and not _OF_ACTIVATIONS.fullmatch(last):
            found.setdefault(module, []).append(name)
    return found


def _is_scale(name: str) -> bool:
    last = name.rpartition(".")[2]
    return "scale" in last.lower() or last == "SCB"


def _scale(
    weight: str, info: TensorInfo, name: str, scales: TensorInfo, config: Mapping[str, Any] | None
) -> WeightScale:
    if len(info.shape) != 2:
        raise _unfit(weight, info, name, scales)
    rows, columns = info.shape
    if name.endswith("SCB"):
        if info.dtype == torch.int8 and scales.shape == (rows,):
            return WeightScale(name, (1, max(1, columns)), 1 / 127)
    elif info.dtype.is_floating_point:
        if scales.num_elements == 1:
            return WeightScale(name, (max(1, rows), max(1, columns)))
        if scales.shape in ((rows,), (rows, 1)):
            return WeightScale(name, (1, max(1, columns)))
        block = _block_size(config)
        if block is not None and scales.shape == (math.ceil(rows / block[0]), math.ceil(columns / block[1])):
            return WeightScale(name, block)
    raise _unfit(weight, info, name, scales)


def _unfit(weight: str, info: TensorInfo, name: str, scales: TensorInfo) -> ValueError:
    return ValueError(
        f"Scales must belong to a whole weight, a row or a block named in the config; {show(name)!r} of shape "
        f"{scales.shape} for {show(weight)!r} of shape {info.shape} does not. Dequantise the model first."
    )


def _block_size(config: Mapping[str, Any] | None) -> tuple[int, int] | None:
    block = _option(config, "weight_block_size")
    if isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block):
        return block[0], block[1]
    return None


def _option(config: Mapping[str, Any] | None, name: str) -> Any:
    options = (config or {}).get("quantization_config")
    return options.get(name) if isinstance(options, Mapping) else None


def is_buffer(name: str) -> bool:
    """Whether a tensor is no weight: a mask or table that some versions save and others do not."""
    return _BUFFER.fullmatch(name) is not None
