"""`LazinessProbe`: how far the network in training is from its linearisation at the start."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise._arguments import as_count
from rankrise.gauges import Start, laziness, linearise
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
    outputs_of,
    refuse_sharded,
)  # fmt: skip


class LazinessProbe:
    """Error of the linearisation at the start, and change of the Jacobian, on a fixed batch.

    The numbers of the model as a whole are `linearisation_error`, `jacobian_change` and `weight_change`, see
    `rankrise.gauges.Laziness`. All trainable weights are compared with their values when the tracker was built, in
    float32 (float64 for float64 weights), with the model in evaluation mode. A copy of the weights is kept.

    A reading costs five Jacobian-vector products, each about twice a forward pass on the batch.

    >>> import tempfile
    >>> import rankrise as rr
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    >>> options = {"every": 1, "quantities": (), "probes": [LazinessProbe(torch.randn(5, 4))]}
    >>> with rr.RankTracker(model, out=tempfile.mkdtemp(), **options) as tracker:
    ...     with torch.no_grad():  # training, in real life
    ...         model[0].weight += 0.1
    ...     tracker.step(1)
    >>> bool(rr.open_run(tracker.out).curve("linearisation_error").values[0] < 0.5)
    True
    """

    def __init__(
        self,
        inputs: Inputs,
        *,
        tangents: int = 4,
        by_layer: bool = False,
        every: int | Schedule | None = None,
        start: str | os.PathLike[str] | None = None,
        seed: int = 0,
    ) -> None:
        """Say what to read.

        Args:
            inputs: What the model is called with: a tensor, a mapping of keywords, or a sequence of arguments. Sixteen
                samples are enough.
            tangents: Number of random tangents for the change of the Jacobian.
            by_layer: Whether to read the change of the Jacobian along the attention weights of every layer too.
            every: When to read, among the steps at which the tracker measures ranks; at all of them by default.
            start: A file for the weights at the start. It is written if it is not there, and read if it is, so that a
                resumed run goes on comparing with its own start.
            seed: Seed of the tangents.
        """
        self._call = as_call(inputs)
        self._tangents, self._seed = as_count(tangents, "tangents", least=1), as_count(seed, "seed")
        self._by_layer, self._is_due = by_layer, Clock(every)
        self._path = None if start is None else Path(start)

    def attach(self, model: nn.Module, head_map: HeadMap | None) -> None:
        """Keep the weights, and linearise the model there.

        Raises:
            ValueError: The weights are sharded, or the file `start` holds the weights of another model, or `by_layer`
                is set and the tracker reads no heads.
        """
        refuse_sharded(model, "LazinessProbe")
        if self._by_layer and head_map is None:
            raise ValueError("`by_layer` needs the heads of the model; pass heads=rankrise.heads.resolve as well.")
        self._model, self._network = model, bare(model)
        weights = self._weights()
        if self._path is not None:
            weights = _kept(weights, self._path)
        self._layers = [(layer.index, self._own_names(layer.parameters())) for layer in head_map or ()]
        with aside(self._network):
            self._start = linearise(self._outputs, weights, tangents=self._tangents, seed=self._seed)
            self._starts = [self._along(names) for _, names in self._layers] if self._by_layer else []

    def read(self, step: int) -> Sequence[Measurement]:
        """Compare the present model with its linearisation."""
        if not self._is_due(step):
            return []
        weights = self._weights()
        with aside(self._network):
            found = laziness(self._outputs, weights, self._start)
            layers = [laziness(self._outputs, weights, start).jacobian_change for start in self._starts]
        # While the outputs have not moved there is no error, and therefore no row of the error.
        whole = [Measurement(name, value) for name, value in vars(found).items() if not value.isnan()]
        if not layers:
            return whole
        indices = tuple(index for index, _ in self._layers)
        return [*whole, Measurement("jacobian_change", torch.stack(layers), layers=indices)]

    def detach(self) -> None:
        """Forget the weights."""
        del self._start, self._starts

    def _along(self, names: Sequence[str]) -> Start:
        return linearise(self._outputs, self._start.weights, tangents=self._tangents, names=names, seed=self._seed)

    def _own_names(self, parameters: Sequence[str]) -> list[str]:
        """Return the names that the weights of a head map have in the bare network."""
        known = {id(weight): name for name, weight in self._network.named_parameters()}
        every = dict(self._model.named_parameters(remove_duplicate=False))
        found = []
        for name in parameters:
            path, _, last = name.rpartition(".")
            stored = name if name in every else f"{path}.parametrizations.{last}.original".lstrip(".")
            if id(every[stored]) in known:
                found.append(known[id(every[stored])])
        return found

    def _weights(self) -> dict[str, Tensor]:
        return {n: _wide(p.detach()) for n, p in self._network.named_parameters() if p.requires_grad}

    def _outputs(self, weights: Any) -> Tensor:
        others = {n: _wide(p.detach()) for n, p in self._network.named_parameters() if n not in weights}
        buffers = {n: _wide(b) for n, b in self._network.named_buffers()}
        device = device_of(self._network)
        dtype = next((w.dtype for w in weights.values() if w.is_floating_point()), torch.float32)
        args, kwargs = of_each(lambda x: x.to(device, dtype if x.is_floating_point() else None), self._call)
        call: Call = (args, kwargs)
        return outputs_of(torch.func.functional_call(self._network, {**others, **buffers, **weights}, *call))


def _wide(tensor: Tensor) -> Tensor:
    """Return the tensor in float32 at least, if it holds floating-point numbers."""
    return tensor.float() if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor


def _kept(weights: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file, save_file

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: weight.contiguous() for name, weight in weights.items()}, path)
        return weights
    kept = load_file(path)
    if {n: tuple(w.shape) for n, w in kept.items()} != {n: tuple(w.shape) for n, w in weights.items()}:
        raise ValueError(f"The file {path} must hold the weights of this model at its start; it holds others.")
    return {name: kept[name].to(weight) for name, weight in weights.items()}
