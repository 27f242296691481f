"""What readers of the paper ask, on heads with 8 weights: LayerNorm inside h, and random targets; no claim is judged.

    OMP_NUM_THREADS=1 python studies/questions.py

The study prints a line for each seed; docs/questions.md names it.
"""

import math

import torch
from torch import Tensor

from rankrise import theory

SEEDS = (0, 1, 2)


def attention(x: Tensor, q: Tensor) -> Tensor:
    """Return softmax(X diag(a) Xᵀ) X diag(b)."""
    a, b = q.chunk(2)
    return torch.softmax((x * a) @ x.mT, dim=-1) @ x * b


def normed_attention(x: Tensor, q: Tensor) -> Tensor:
    """Return the head on tokens that a LayerNorm without weights has normalised."""
    return attention(torch.nn.functional.layer_norm(x, x.shape[-1:]), q)


def layer_norm(seed: int) -> str:
    """Compare the stages of a normalised head with its flow at α = 10^-1000."""
    task = theory.teacher_task(samples=100, tokens=6, dim=4, seed=seed)
    net = theory.DiagonalNetwork(normed_attention, task.x, normed_attention(task.x, task.q), num_weights=8)
    stages = theory.incremental_stages(net)
    start = theory.gaussian_start(8, seed=seed)
    flow = theory.solve_flow(net, *start, log10_alpha=-1000, t_end=1.05 * float(stages.times[-1]))
    first, limit = theory.activation_times(flow), stages.activation_times()
    known = limit < math.inf
    same = torch.equal(first[known].argsort(), limit[known].argsort())
    error = float((first - limit)[known].abs().max() / limit[known].max())
    holds = all(certificate.holds for certificate in stages.certificates)
    return (
        f"LayerNorm, seed {seed}: {len(stages.times)} stages, assumptions hold: {holds}, "
        f"flow in the same order: {same}, times differ by {error:.2%} of the last"
    )


def random_targets(seed: int) -> str:
    """Compare the stages on a teacher's targets with those on Gaussian targets of the same norm."""
    task = theory.teacher_task(samples=100, tokens=6, dim=4, seed=seed)
    noise = torch.randn(task.y.shape, generator=torch.Generator().manual_seed(seed + 1000), dtype=torch.float64)
    words = []
    for name, y in (("teacher", task.y), ("random", noise * (task.y.norm() / noise.norm()))):
        stages = theory.incremental_stages(theory.attention_head(task.x, y))
        last, left = float(stages.times[-1]), float(stages.losses[-1] / stages.losses[0])
        words.append(f"{name}: {len(stages.times)} stages to {last:.3g}, {left:.2%} left, {stages.status.value}")
    return f"targets, seed {seed}: " + "; ".join(words)


def main() -> None:
    """Print everything."""
    torch.set_num_threads(1)
    for question in (layer_norm, random_targets):
        for seed in SEEDS:
            print(question(seed), flush=True)


if __name__ == "__main__":
    main()
