"""A tuned network whose changes can be cut to any rank while everything else keeps its tuned values.

Symbols:
    W⁰, W   a weight matrix of the base and of the tuned model; Δ = W − W⁰ = U diag(σ) Vᵀ
    r       rank of a cut: the matrix becomes W⁰ + Σ_{i≤r} σ_i u_i v_iᵀ
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rankrise.heads import CIRCUITS, HeadMap, linear_weights, resolve
from rankrise.linalg import thin_svd

LINEAR = "linear"  # every weight that is not of attention heads
_CIRCUIT = {role: circuit for circuit, roles in CIRCUITS.items() for role in roles}


@dataclass(frozen=True, eq=False)
class ChangedMatrix:
    """One matrix that tuning changed, decomposed."""

    name: str  # name of the parameter, and of the role where a parameter holds several
    parameter: str
    layer: int  # −1 for a weight in no block
    circuit: str  # "kq", "vo" or "linear"
    index: Tensor | None  # which entries of the parameter make the matrix; None for all
    base: Tensor  # W⁰, (m, n)
    left: Tensor  # U, (m, k)
    sigma: Tensor  # (k,), falling
    right: Tensor  # Vᵀ, (k, n)

    @property
    def max_rank(self) -> int:
        """How many directions the change has."""
        return len(self.sigma)

    @property
    def cost(self) -> int:
        """Parameters of one direction."""
        return sum(self.base.shape)

    def cut(self, rank: int) -> Tensor:
        """`W⁰ + Σ_{i≤r} σ_i u_i v_iᵀ`."""
        return self.base + (self.left[:, :rank] * self.sigma[:rank]) @ self.right[:rank]

    def with_random_directions(self, rank: int, generator: torch.Generator) -> Tensor:
        """The same singular values with random singular vectors: what a cut would be if only sizes mattered."""
        u, v = (
            torch.linalg.qr(torch.randn(size, max(rank, 1), generator=generator, dtype=torch.float64)).Q.to(self.base)
            for size in self.base.shape
        )
        change: Tensor = (u[:, :rank] * self.sigma[:rank]) @ v[:, :rank].mT
        return self.base + change


class CutNetwork:
    """A copy of the tuned model in which `set` replaces changed matrices by cuts of them."""

    def __init__(self, base: nn.Module, tuned: nn.Module, *, split: bool) -> None:
        """Decompose every linear weight that differs, by one dense SVD in float64 each.

        Args:
            base: What training started from.
            tuned: The same architecture after training.
            split: Cut queries, keys, values and outputs apart where one parameter holds several; else cut parameters
                whole, as LoRA adapts them.

        Raises:
            ValueError: The models have other parameters, or no linear weight differs.
        """
        if base is tuned:
            raise ValueError(
                "`base` and `tuned` must be two models; they are one object. Copy the model before tuning."
            )
        before, after = dict(base.named_parameters()), dict(tuned.named_parameters())
        if {n: p.shape for n, p in before.items()} != {n: p.shape for n, p in after.items()}:
            raise ValueError("`base` and `tuned` must have the same parameters; names or shapes differ.")
        self.model = copy.deepcopy(tuned).eval()
        self.model.requires_grad_(False)
        self.changes = tuple(_changes(tuned, before, after, split))
        if not self.changes:
            raise ValueError("A linear weight must differ between `base` and `tuned`; none does.")
        self._parameters = dict(self.model.named_parameters())

    def set(self, matrices: Mapping[str, Tensor]) -> None:
        """Write matrices into the network, by the names of their changes; the other matrices are left alone."""
        with torch.no_grad():
            for change in self.changes:
                if (matrix := matrices.get(change.name)) is None:
                    continue
                parameter = self._parameters[change.parameter]
                if change.index is None:
                    parameter.copy_(matrix.reshape(parameter.shape))
                else:
                    parameter.view(-1)[change.index.flatten()] = matrix.flatten().to(parameter.dtype)

    def cut(self, ranks: Mapping[str, int]) -> None:
        """Cut every change to its rank; a change without a rank is put back whole."""
        self.set({c.name: c.cut(ranks.get(c.name, c.max_rank)) for c in self.changes})


def _changes(
    model: nn.Module, before: Mapping[str, Tensor], after: Mapping[str, Tensor], split: bool
) -> Iterator[ChangedMatrix]:
    try:
        heads: HeadMap | None = resolve(model)
    except ValueError:  # the model has no attention that can be read, so all its weights count as linear
        heads = None
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    seen: set[tuple[str, str]] = set()
    for layer in heads or ():
        for view in layer.views:
            fused = sum(other.parameter == view.parameter for other in layer.views) > 1
            key = (view.parameter, view.role if split else "")
            if key in seen or view.parameter not in after:
                continue
            seen.add(key)
            index = None
            if fused and split:
                entries = torch.arange(after[view.parameter].numel()).reshape(after[view.parameter].shape)
                index = view(entries)[:: view.repeats].movedim(0, 1).flatten(1)
            name = f"{view.parameter}:{view.role}" if index is not None else view.parameter
            circuit = LINEAR if fused and not split else _CIRCUIT[view.role]
            yield from _change(name, view.parameter, layer.index, circuit, index, before, after)
    for weight in linear_weights(model, heads):
        for parameter in weight.parameters:
            if parameter in after and after[parameter].ndim == 2 and id(after[parameter]) not in embeddings:
                yield from _change(parameter, parameter, weight.layer, LINEAR, None, before, after)


def _change(
    name: str,
    parameter: str,
    layer: int,
    circuit: str,
    index: Tensor | None,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
) -> Iterator[ChangedMatrix]:
    old, new = before[parameter].detach(), after[parameter].detach()
    if index is not None:
        old, new = old.reshape(-1)[index], new.reshape(-1)[index]
    delta = new.double() - old.double()
    if not bool(delta.any()):
        return
    u, s, vh = thin_svd(delta)
    kept = int((s > 1e-15 * s[0]).sum())
    dtype = torch.promote_types(old.dtype, torch.float32)
    u, s, vh = (part.to(dtype) for part in (u[:, :kept], s[:kept], vh[:kept]))
    yield ChangedMatrix(name, parameter, layer, circuit, index, old.to(dtype).clone(), u, s, vh)
