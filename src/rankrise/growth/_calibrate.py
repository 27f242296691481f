"""LoRA ranks before any training, from the gradients of a few batches.

Symbols:
    G₁, G₂      mean gradients of a module's whole weight over every second batch, and over the others
    u_i, v_i    singular vectors of G₁
    s_i         u_iᵀ G₂ v_i: about 0 where G₁ is noise
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankrise._arguments import as_count
from rankrise.checkpoints import allocate_ranks
from rankrise.checkpoints.lora import lora_arguments, peft_target
from rankrise.checkpoints.match import is_expert_stack, is_taken_for_experts
from rankrise.heads import linear_weights
from rankrise.linalg import thin_svd

Loss = Callable[[nn.Module, Any], Tensor]
_SPREAD = 4  # a module gets at most this many times the average rank


@dataclass(frozen=True)
class CalibratedRanks:
    """Ranks that were chosen from the gradients before training."""

    ranks: Mapping[str, int]  # rank by module; modules of rank 0 are left out
    signals: Mapping[str, float]  # largest s_i by module
    parameters: int
    num_batches: int
    by_parameter: frozenset[str] = frozenset()  # modules whose parameter PEFT must be told, in a model with experts

    def training_config(self) -> dict[str, Any]:
        """Arguments for `peft.LoraConfig` with these ranks, and scale 1 everywhere."""
        told = {name: peft_target(name, is_parameter=name in self.by_parameter) for name in self.ranks}
        others = [name for name in self.signals if name not in self.ranks]
        parameters = [told[name] for name in self.ranks if name in self.by_parameter]
        return lora_arguments({told[name]: rank for name, rank in self.ranks.items()}, others, parameters)

    def axolotl(self) -> str:
        """The same settings as lines of YAML for a config of axolotl."""
        config = self.training_config()
        targets = config["target_modules"]
        lines = ["adapter: lora", f"lora_r: {config['r']}", f"lora_alpha: {config['lora_alpha']}"]
        if isinstance(targets, str):
            lines.append(f"lora_target_modules: {_quoted(targets)}")
        else:
            lines += ["lora_target_modules:", *(f"  - {_quoted(name)}" for name in targets)]
        if parameters := config.get("target_parameters"):
            lines += ["lora_target_parameters:", *(f"  - {_quoted(name)}" for name in parameters)]
        for key in ("rank_pattern", "alpha_pattern"):
            lines += [f"lora_{key}:", *(f"  {_quoted(name)}: {rank}" for name, rank in config[key].items())]
        return "\n".join(lines)


def calibrate_ranks(
    model: nn.Module, batches: Sequence[Any], *, rank: int = 8, loss: Loss | None = None
) -> CalibratedRanks:
    """Spend the parameters of a LoRA of one rank where the gradient of the untrained model has proven signal.

    The direction of a module with the singular pair (u_i, v_i) of G₁ is worth s_i², measured on batches that did not
    choose it. Directions are taken in the order of s_i² per parameter within `rank` times the parameters of all
    modules. The gradients before training tell only what the first step would do: where every module needs the same
    rank, the ranks that they give are worse than one rank for all. `growing_lora` measures again during training.

    Cost: two gradients of all linear weights in memory, and one SVD for each.

    Args:
        model: The model to fine-tune; its weights and gradients are left as they were.
        batches: Two batches or more, in the form that `loss` takes.
        rank: Average rank: the adapter has at most `rank Σ (in + out)` parameters.
        loss: Takes the model and a batch, and returns the loss; by default `model(**batch).loss`.

    Raises:
        ValueError: There are fewer than two batches, the model has no linear weight, or no direction has a signal.

    >>> generator = torch.Generator().manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))
    >>> data = [torch.randn(64, 16, generator=generator) for _ in range(8)]
    >>> found = calibrate_ranks(model, data, rank=2, loss=lambda model, x: (model(x) - 3 * x).square().mean())
    >>> 0 < found.parameters <= 2 * 2 * 32
    True
    """
    rank = as_count(rank, "rank", least=1)
    if len(batches) < 2:
        raise ValueError(f"`batches` must be at least 2, to choose directions and to judge them; got {len(batches)}.")
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    weights = {
        name: weight
        for recipe in linear_weights(model)
        for name in recipe.parameters
        if (weight := model.get_parameter(name)).ndim == 2 and id(weight) not in embeddings
    }
    weights = {name: weight for name, weight in weights.items() if not _is_output(model, name)}
    if not weights:
        raise ValueError("`model` must have linear weights that an adapter can change; it has none.")
    sums = _gradient_sums(model, weights, batches, loss or (lambda m, batch: m(**batch).loss))
    squares, signals = [], {}
    for name in weights:
        u, _, vh = thin_svd(sums[0][name])
        count = min(len(vh), _SPREAD * rank)
        found = torch.einsum("oi,op,ip->i", u[:, :count], sums[1][name], vh[:count])
        falling = found.clamp_min(0).cummin(0).values.double()
        squares.append(falling.square().tolist())
        signals[name.removesuffix(".weight")] = float(falling[0])
    costs = [sum(weight.shape) for weight in weights.values()]
    chosen = allocate_ranks(squares, costs, rank * sum(costs))
    ranks = {name: r for name, r in zip(signals, chosen.ranks, strict=True) if r}
    if not ranks:
        raise ValueError("A gradient must agree between batches somewhere; none does. Give more or larger batches.")
    has_experts = any(is_expert_stack(name) for name, _ in model.named_parameters())
    by_parameter = frozenset(name for name in ranks if has_experts and is_taken_for_experts(name))
    return CalibratedRanks(ranks, signals, chosen.parameters, len(batches), by_parameter)


def _gradient_sums(
    model: nn.Module, weights: Mapping[str, Tensor], batches: Sequence[Any], loss: Loss
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the mean gradients over the even batches, and those over the odd ones."""
    wanted = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    was_training = model.training
    model.eval()
    sums: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    try:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in weights)
        for number, batch in enumerate(batches):
            gradients = torch.autograd.grad(loss(model, batch), list(weights.values()), allow_unused=True)
            share = 2 / (len(batches) + (1 - number % 2 if len(batches) % 2 else 0))
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                found = torch.zeros_like(weight) if gradient is None else gradient
                sums[number % 2][name] = sums[number % 2].get(name, 0) + share * found.detach().float()
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(wanted[name])
        model.train(was_training)
    return sums


def _is_output(model: nn.Module, name: str) -> bool:
    """Whether a weight is that of the output layer, which PEFT's "all-linear" leaves alone."""
    get = getattr(model, "get_output_embeddings", None)
    output = get() if get is not None else None
    return output is not None and model.get_parameter(name) is getattr(output, "weight", None)


def _quoted(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"
