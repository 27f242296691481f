"""See the queries and keys of a model as its attention uses them, whatever kernel computes the result.

`torch.nn.functional.scaled_dot_product_attention` is replaced while the model runs, and a function mode catches the
calls of modules that imported it by name. Hooks on the attention modules tell which layer a call belongs to.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rankrise.gauges._entropy import AttentionRows
from rankrise.heads import AttentionLayer, HeadMap

Measure = Callable[..., AttentionRows]  # (q, k, *, scale, is_causal, mask)

_num_watching = 0


def is_watched() -> bool:
    """Whether attention is being watched now, so that a model with a kernel of its own must call torch's attention.

    >>> is_watched()
    False
    """
    return _num_watching > 0


@dataclass
class SeenAttention:
    """What was measured at every call, in order, with the layer that made the call; -1 where no layer is known."""

    layers: Sequence[AttentionLayer]
    calls: list[tuple[int, AttentionRows]] = field(default_factory=list)

    def by_layer(self) -> list[list[AttentionRows]]:
        """Return what was measured of every layer, in order; a layer that is used several times has several entries.

        Raises:
            ValueError: Some layers did not call `scaled_dot_product_attention`, or called it with another number of
                heads than their weights have.
        """
        found: list[list[AttentionRows]] = [
            [rows for at, rows in self.calls if at == i] for i in range(len(self.layers))
        ]
        in_order = len(self.calls) == len(self.layers) and all(at in (-1, i) for i, (at, _) in enumerate(self.calls))
        if not all(found) and in_order:
            # A module whose `forward` is called directly runs no hooks; the order of the calls tells which layer it is.
            found = [[rows] for _, rows in self.calls]
        missing = [layer.name for layer, calls in zip(self.layers, found, strict=True) if not calls]
        if missing:
            raise ValueError(
                "Attention must be computed by torch's scaled_dot_product_attention to be seen; "
                f"{_listed(missing)} of the {len(self.layers)} attention layers did not call it. Load the model with "
                'attn_implementation="sdpa".'
            )
        for layer, calls in zip(self.layers, found, strict=True):
            heads = calls[0].entropy.shape[-2]
            if heads != layer.num_heads:
                raise ValueError(
                    f"The attention of {layer.name} must have the {layer.num_heads} heads of its weights; its queries "
                    f"have {heads}. Heads that are folded into the batch cannot be told apart."
                )
        return found


@contextlib.contextmanager
def seen_attention(model: nn.Module, head_map: HeadMap, measure: Measure) -> Iterator[SeenAttention]:
    """Measure the queries and keys of every attention call that the model makes inside the block.

    The results of attention are not changed. Torch's fast path for encoder layers is off inside the block, because it
    calls no attention function.

    Args:
        model: The model, with the names that `head_map` has.
        head_map: The attention layers of the model.
        measure: Called with q, k and the keywords `scale`, `is_causal`, `mask`.

    >>> from rankrise.gauges import attention_entropy
    >>> from rankrise.heads import resolve
    >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=4, batch_first=True)
    >>> with torch.no_grad(), seen_attention(model, resolve(model), attention_entropy) as seen:
    ...     _ = model(torch.randn(3, 5, 8))
    >>> [rows.entropy.shape for rows in seen.by_layer()[0]]
    [torch.Size([3, 2, 5])]
    """
    global _num_watching
    seen, places = SeenAttention(head_map.layers), _Places()
    original, fastpath = F.scaled_dot_product_attention, torch.backends.mha.get_fastpath_enabled()
    watch = _Watch(seen, places, measure, original)
    handles = [
        handle
        for index, layer in enumerate(head_map.layers)
        for handle in places.follow(model.get_submodule(_module_of(layer)), index)
    ]
    functional = cast("Any", F)
    _num_watching += 1
    functional.scaled_dot_product_attention = watch.replacement
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with watch:
            yield seen
    finally:
        functional.scaled_dot_product_attention = original
        torch.backends.mha.set_fastpath_enabled(fastpath)
        _num_watching -= 1
        for handle in handles:
            handle.remove()


class _Places:
    """Tells which attention module is being called now; a module that holds several layers takes them in order."""

    def __init__(self) -> None:
        self.now: list[int] = []
        self._of: dict[int, list[int]] = {}

    def follow(self, module: nn.Module, index: int) -> list[torch.utils.hooks.RemovableHandle]:
        turns = self._of.setdefault(id(module), [])
        turns.append(index)
        if len(turns) > 1:
            return []
        calls = 0

        def enter(*_: object) -> None:
            nonlocal calls
            self.now.append(turns[min(calls, len(turns) - 1)])
            calls += 1

        def leave(*_: object) -> None:
            self.now.pop()

        return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True)]


class _Watch(TorchFunctionMode):
    """Measures the calls of attention that use the replaced attribute, and those that imported the function by name."""

    def __init__(self, seen: SeenAttention, places: _Places, measure: Measure, original: Callable[..., Tensor]) -> None:
        super().__init__()
        self._seen, self._places, self._measure, self._original = seen, places, measure, original
        self._is_inside = False

    def replacement(self, *args: Any, **kwargs: Any) -> Tensor:
        """Measure the queries and keys, then call the original function."""
        self._look(*args, **kwargs)
        self._is_inside = True
        try:
            return self._original(*args, **kwargs)
        finally:
            self._is_inside = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is self._original and not self._is_inside:
            self._look(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _look(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        rows = self._measure(query, key, scale=scale, is_causal=is_causal, mask=attn_mask)
        self._seen.calls.append((self._places.now[-1] if self._places.now else -1, rows))


def _module_of(layer: AttentionLayer) -> str:
    """Return the path of the module that holds the four weights, with its wrappers."""
    paths = [view.parameter.split(".")[:-1] for view in layer.views]
    common = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return ".".join(parts[0] for parts in common)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
