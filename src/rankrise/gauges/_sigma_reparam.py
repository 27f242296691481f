"""σReparam: every weight is `Ŵ = (γ / σ(W)) W` with a learned γ, so that its spectral norm is what γ says.

Legend: W (out, in) the stored weight, σ(W) = ‖W‖₂, u (in,) its right singular vector as power iteration knows it,
γ one number for each weight. A fused weight q | k | v is three weights in one storage, and has three γ, σ and u.

Attention whose weights cannot grow in spectral norm on their own cannot become one-hot by a few large steps.
"""

from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rankrise._arguments import as_count, check_choice
from rankrise.heads import resolve

Gamma = Literal["current", "one"]
Only = Callable[[str, nn.Module], bool]


class SigmaReparam(nn.Module):
    """Compute `Ŵ = (γ / σ(W)) W`; σ(W) = ‖W u‖, whose gradient is v uᵀ with v = W u / ‖W u‖.

    Reading the weight changes nothing. `advance` is what moves u, by one power iteration.

    Args:
        weight: W as it is now.
        labels: Which part of a fused weight each output belongs to, (out,).
        gamma: "current" for γ = σ(W), or "one" for γ = 1.
        iterations: Number of power iterations in one `advance`.
        has_inputs_first: Whether W is stored (in, out).
    """

    def __init__(
        self, weight: Tensor, labels: Tensor, *, gamma: Gamma, iterations: int = 1, has_inputs_first: bool = False
    ) -> None:
        super().__init__()
        self.iterations, self.has_inputs_first = iterations, has_inputs_first
        self.register_buffer("labels", labels.to(weight.device), persistent=False)
        matrix = self._matrix(weight.detach())
        parts = [matrix[self.labels == part] for part in range(int(labels.max()) + 1)]
        triplets = [torch.linalg.svd(part.double(), full_matrices=False) for part in parts]
        u = torch.stack([vh[0] for _, _, vh in triplets])
        sigma = torch.stack([s[0] for _, s, _ in triplets])
        self.register_buffer("u", u.to(matrix.dtype))  # (parts, in)
        self.gamma = nn.Parameter((sigma if gamma == "current" else torch.ones_like(sigma)).to(matrix.dtype))
        self.labels: Tensor
        self.u: Tensor

    def forward(self, weight: Tensor) -> Tensor:
        """Return Ŵ, in the dtype and shape of W."""
        scale = (self.gamma / self.sigma(weight))[self.labels].to(weight.dtype)
        return weight * (scale if self.has_inputs_first else scale.reshape(-1, *(1,) * (weight.ndim - 1)))

    def sigma(self, weight: Tensor) -> Tensor:
        """Return σ of every part, (parts,), as u knows it."""
        with torch.autocast(weight.device.type, enabled=False):
            squares = self._image(self._matrix(weight)).square()
            return squares.new_zeros(len(self.u)).index_add(0, self.labels, squares).sqrt()

    @torch.no_grad()
    def advance(self, weight: Tensor) -> None:
        """Move u by power iterations, `u ← Wᵀ W u / ‖Wᵀ W u‖` within every part."""
        with torch.autocast(weight.device.type, enabled=False):
            matrix = self._matrix(weight)
            of_parts = nn.functional.one_hot(self.labels, len(self.u)).to(matrix.dtype)  # (out, parts)
            for _ in range(self.iterations):
                moved = (of_parts * self._image(matrix)[:, None]).mT @ matrix
                norm = torch.linalg.vector_norm(moved, dim=-1, keepdim=True)
                self.u.copy_(torch.where(norm > 0, moved / norm, self.u))

    def _matrix(self, weight: Tensor) -> Tensor:
        """W as (out, in), in float32 at least."""
        whole = weight.to(torch.promote_types(weight.dtype, torch.float32))
        return whole.mT if self.has_inputs_first else whole.flatten(1)

    def _image(self, matrix: Tensor) -> Tensor:
        """Return every row of W times the u of its own part, (out,)."""
        return (matrix @ self.u.mT).gather(1, self.labels[:, None])[:, 0]


def sigma_reparam(
    model: nn.Module, *, only: Only | None = None, gamma: Gamma = "current", iterations: int = 1
) -> nn.Module:
    """Give every linear and convolutional weight of a model the form `Ŵ = (γ / σ(W)) W`, in place.

    With `gamma="current"` the model computes the same function as before, up to rounding. Queries, keys and values that
    are fused into one weight get a γ each. The power iteration that follows σ(W) begins at the exact singular vector
    and moves on with every forward pass of `model` in training mode. It does not move when the model is evaluated, when
    a weight is read or when activations are recomputed. While W changes quickly the iteration lags behind: σ(W) is then
    too small, and ‖Ŵ‖₂ lies above |γ|, by a tenth or more in the first steps of a run with a high learning rate and one
    iteration. Biases, norms and embeddings stay as they are, and so do weights that several modules share.

    Build the optimiser afterwards, because the parameters are new ones. Weight decay on W changes the step size only,
    because Ŵ does not depend on the norm of W; decay of γ shrinks Ŵ. The cost is a few products with a vector for each
    weight and step.

    Args:
        model: Any module. Its state dict then has W as `….parametrizations.weight.original`, with γ and u beside it.
        only: Takes the name of a module and the module, and returns whether its weight is taken; by default all are.
        gamma: "current": γ is the norm that the weight has; "one": γ is 1, as in networks that are built for σReparam.
        iterations: Number of power iterations in every forward pass in training mode.

    Returns:
        The model.

    Raises:
        ValueError: No weight is chosen, one is parametrised already, or a weight is 0 or not finite.

    >>> model = sigma_reparam(nn.Linear(4, 3))
    >>> [name for name, _ in model.named_parameters()]
    ['bias', 'parametrizations.weight.original', 'parametrizations.weight.0.gamma']
    >>> sigma = torch.linalg.matrix_norm(model.weight, 2)
    >>> bool(torch.isclose(sigma, model.parametrizations.weight[0].gamma))
    True
    """
    check_choice("gamma", gamma, get_args(Gamma))
    iterations = as_count(iterations, "iterations", least=1)
    chosen = [(n, m, w) for n, m, w in _weights(model) if only is None or only(n, m)]
    if not chosen:
        raise ValueError("`only` must choose a linear or convolutional weight; it chose none.")
    for name, module, last in chosen:
        weight = getattr(module, last)
        if parametrize.is_parametrized(module, last):
            raise ValueError(f"The weight of {name!r} must not be parametrised yet; leave it out with `only`.")
        if not weight.isfinite().all() or not weight.any():
            raise ValueError(f"The weight of {name!r} must be finite and not 0 throughout; leave it out with `only`.")
    labels = _labels(model)
    for _, module, last in chosen:
        weight = getattr(module, last)
        inputs_first = type(module).__name__ == "Conv1D"
        whole = torch.zeros(weight.shape[1 if inputs_first else 0], dtype=torch.long)
        of_parts = labels.get(id(weight), whole)
        part = SigmaReparam(weight, of_parts, gamma=gamma, iterations=iterations, has_inputs_first=inputs_first)
        parametrize.register_parametrization(module, last, part, unsafe=True)
    if advance_all not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(advance_all)
    return model


def fold_sigma(model: nn.Module) -> nn.Module:
    """Turn every weight under `sigma_reparam` into a plain parameter that holds Ŵ, in place, for an export.

    >>> model = sigma_reparam(nn.Linear(4, 3))
    >>> [name for name, _ in fold_sigma(model).named_parameters()]
    ['bias', 'weight']
    """
    for module in list(model.modules()):
        for name in [name for name, _ in _parametrised(module)]:
            parametrize.remove_parametrizations(module, name, leave_parametrized=True)
    for key, hook in list(model._forward_pre_hooks.items()):
        if hook is advance_all:
            del model._forward_pre_hooks[key]
    return model


def advance_all(model: nn.Module, args: Any = None) -> None:
    """Move u of every weight under `sigma_reparam`, if the model is in training mode and gradients are enabled."""
    if model.training and torch.is_grad_enabled():
        for module in model.modules():
            for _, computed in _parametrised(module):
                cast("SigmaReparam", computed[0]).advance(computed.original)


def _parametrised(module: nn.Module) -> list[tuple[str, parametrize.ParametrizationList]]:
    found = getattr(module, "parametrizations", None)
    if not isinstance(found, nn.ModuleDict):
        return []
    parts = [(name, cast("parametrize.ParametrizationList", part)) for name, part in found.items()]
    return [(name, part) for name, part in parts if isinstance(part[0], SigmaReparam)]


def _weights(model: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """Return module name, module and attribute of every weight that no other module shares."""
    count: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        count[id(parameter)] = count.get(id(parameter), 0) + 1
    found = []
    for name, module in model.named_modules():
        is_linear = isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
        names = ["weight"] if is_linear or type(module).__name__ == "Conv1D" else []
        if isinstance(module, nn.MultiheadAttention):
            names = ["in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"]
        for last in names:
            weight = getattr(module, last)
            if weight is not None and weight.is_floating_point() and count.get(id(weight), 1) == 1:
                found.append((name, module, last))
    return found


def _labels(model: nn.Module) -> dict[int, Tensor]:
    """Return which role each output of a fused attention weight belongs to, by the identity of the weight."""
    try:
        head_map = resolve(model)
    except ValueError:  # without attention that can be read there are no fused weights to tell apart
        return {}
    labels: dict[int, Tensor] = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for layer in head_map.layers:
        for number, role in enumerate("qkv"):
            view = layer.roles[role]
            outputs = torch.arange(view.shape[view.axis])
            numbered = outputs[:, None].expand(view.shape) if view.axis == 0 else outputs.expand(view.shape)
            if (weight := parameters.get(view.parameter)) is None:
                continue  # this weight is parametrised already
            own = labels.setdefault(id(weight), torch.full_like(outputs, -1))
            own[view(numbered)[:, 0].flatten()] = number
    return {key: torch.unique(own, return_inverse=True)[1] for key, own in labels.items()}
