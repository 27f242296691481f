"""`EntropyProbe`: how concentrated the attention of every head is while the model trains."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankrise._arguments import as_count
from rankrise.gauges import AttentionRows, attention_entropy, seen_attention
from rankrise.heads import HeadMap
from rankrise.tracking._measurement import Measurement
from rankrise.tracking._schedule import Schedule
from rankrise.tracking.probes._aside import (
    Call,
    Clock,
    Inputs,
    as_call,
    aside,
    bare,
    device_of,
    of_each,
    refuse_sharded,
)


class EntropyProbe:
    """Entropy of attention, its floor and its largest logit, of every head of a model.

    At a measurement the model runs on some samples, in evaluation mode and without gradients, and the queries and keys
    that reach `scaled_dot_product_attention` are read. Rows of the circuit `kq`, for every layer and head:

    - `attention_entropy`: mean over samples and query rows, in nats
    - `attention_entropy_share`: mean of H / log n, where n counts the keys that a row may look at
    - `entropy_floor`: mean of the least entropy that logits of the same norm allow
    - `max_logit`: the largest logit of the rows that were read

    Rows that may look at one key only are left out. Dropout is off while the probe reads, so that the entropies are
    those of the network without noise.

    >>> import tempfile
    >>> import rankrise as rr
    >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=16, batch_first=True)
    >>> probe = EntropyProbe(torch.randn(4, 5, 8))
    >>> with rr.RankTracker(model, out=tempfile.mkdtemp(), every=1, probes=[probe]) as tracker:
    ...     tracker.step(0)  # and so on, in training
    >>> run = rr.open_run(tracker.out)
    >>> bool((run.curve("attention_entropy_share", circuit="kq").values > 0.5).all())  # fresh heads look everywhere
    True
    """

    def __init__(
        self,
        inputs: Inputs | None = None,
        *,
        samples: int = 16,
        rows: int | None = 64,
        every: int | Schedule | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        """Say what to read.

        Args:
            inputs: What the model is called with: a tensor, a mapping of keywords, or a sequence of arguments. By
                default the first samples of the last training batch, under the autocast in which that batch ran.
            samples: How many samples of the training batch to read. Fixed inputs are read whole.
            rows: How many query rows of every sample to read, evenly spaced; None for all.
            every: When to read, among the steps at which the tracker measures ranks; at all of them by default.
            autocast: The dtype of autocast for fixed inputs; pass the dtype that training uses.
        """
        self._call: Call | None = None if inputs is None else as_call(inputs)
        self._is_fixed, self._autocast = inputs is not None, autocast
        self._samples = as_count(samples, "samples", least=1)
        self._measure = partial(attention_entropy, rows=None if rows is None else as_count(rows, "rows", least=1))
        self._is_due = Clock(every)
        self._is_reading = False
        self._handle: torch.utils.hooks.RemovableHandle | None = None

    def attach(self, model: nn.Module, head_map: HeadMap | None) -> None:
        """Refuse models whose attention cannot be seen; with fixed inputs the model is run once to find out.

        Raises:
            ValueError: The tracker reads no heads, the weights are sharded, or attention is not computed by
                `scaled_dot_product_attention`.
        """
        if head_map is None:
            raise ValueError("EntropyProbe needs the heads of the model; pass heads=rankrise.heads.resolve as well.")
        refuse_sharded(model, "EntropyProbe")
        self._model, self._head_map = model, head_map
        if self._is_fixed:
            self._seen()
        else:
            self._handle = model.register_forward_pre_hook(self._keep, with_kwargs=True)

    def read(self, step: int) -> Sequence[Measurement]:
        """Run the model on the samples and measure every head."""
        if not self._is_due(step) or self._call is None:
            return []
        found: dict[int, list[tuple[int, Tensor]]] = {}  # by number of heads, as a measurement is a rectangle
        for layer, calls in zip(self._head_map.layers, self._seen(), strict=True):
            found.setdefault(layer.num_heads, []).append((layer.index, _numbers(calls)))
        names = ("attention_entropy", "attention_entropy_share", "entropy_floor", "max_logit")
        return [
            Measurement(
                name, torch.stack([numbers[i] for _, numbers in group]), tuple(at for at, _ in group), True, "kq"
            )
            for group in found.values()
            for i, name in enumerate(names)
        ]

    def detach(self) -> None:
        """Stop listening to the model."""
        if self._handle is not None:
            self._handle.remove()
        if not self._is_fixed:
            self._call = None

    def _seen(self) -> list[list[AttentionRows]]:
        assert self._call is not None
        network = bare(self._model)
        device = device_of(network)
        args, kwargs = of_each(lambda x: x.to(device), self._call)
        self._is_reading = True
        try:
            with (
                torch.no_grad(),
                aside(network, self._autocast),
                seen_attention(self._model, self._head_map, self._measure) as seen,
            ):
                network(*args, **kwargs)
        finally:
            self._is_reading = False
        return seen.by_layer()

    def _keep(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Keep the first samples of a training batch as views, so that nothing is copied."""
        if self._is_reading or not module.training:
            return
        batch = next((x.shape[0] for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.ndim), 0)

        def cut(x: Tensor) -> Tensor:
            return x.detach()[: self._samples] if x.ndim and x.shape[0] == batch else x.detach()

        device = device_of(module).type
        self._autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        self._call = of_each(cut, (args, dict(kwargs)))


def _numbers(calls: Sequence[AttentionRows]) -> Tensor:
    """Return mean entropy, share and floor and the largest logit of every head, (4, heads), over a layer's calls."""
    columns = []
    for rows in calls:
        chooses = rows.visible > 1
        means = [x.masked_fill(~chooses, torch.nan) for x in (rows.entropy, rows.share, rows.floor)]
        columns.append([x.movedim(-2, 0).flatten(1) for x in (*means, rows.max_logit)])
    entropy, share, floor, largest = (torch.cat(parts, -1) for parts in zip(*columns, strict=True))
    return torch.stack(
        [entropy.nanmean(-1), share.nanmean(-1), floor.nanmean(-1), largest.nan_to_num(-torch.inf).amax(-1)]
    )
