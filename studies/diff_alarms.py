"""How often the two alarms of `rankrise diff` are wrong: in random changes, and in changes with planted directions.

Bases: Gaussian matrices, matrices whose singular values are all alike, and matrices whose singular values fall as
i^-0.3 and i^-0.7 (real ones lie in between). Null: a full-rank Gaussian change, of a size from 1% to twice the weight.
Planted: a change of rank 1 of the same sizes, to be seen among the leading directions only where it is about as strong
as σ₁ of the base, so the rate is given by strength. Beside it the rule of the paper (largest |cosine| with any single
vector of the base below 1/2) on the same matrices. Spikes: products of random factors (adapters) and full-rank
changes, against one direction that holds 60% to 95% of the squared change.

    OMP_NUM_THREADS=1 python studies/diff_alarms.py --draws 20
"""

import argparse
import itertools
import json
from collections import Counter

import torch
from torch import Tensor

from rankrise.checkpoints.delta import find_intruders
from rankrise.linalg import gaussian_spectra

SHAPES = ((64, 64), (128, 128), (384, 384), (768, 256), (256, 768))
POWERS = (None, 0.0, 0.3, 0.7)
SIZES = (0.01, 0.03, 0.1, 0.3, 1.0, 2.0)


def base_matrix(shape: tuple[int, int], power: float | None, generator: torch.Generator) -> Tensor:
    """Return a Gaussian matrix, or one with its singular vectors and singular values i^-power."""
    matrix = torch.randn(shape, generator=generator)
    if power is None:
        return matrix
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    return (u * torch.arange(1, len(s) + 1).pow(-power)) @ vh


def paper_alarms(base: Tensor, tuned: Tensor, num: int) -> bool:
    """Whether one of the leading vectors has no |cosine| of 1/2 with any single vector of the base."""
    u0, u = (torch.linalg.svd(weight, full_matrices=False)[0] for weight in (base, tuned))
    return bool(((u[:, :num].mT @ u0).abs().amax(1) < 0.5).any())


def intruders(draws: int, generator: torch.Generator) -> Counter[str]:
    """Return counts of matrices with an alarm, by kind and size of the change."""
    counts = Counter[str]()
    for shape, power, size in itertools.product(SHAPES, POWERS, SIZES):
        for _ in range(draws):
            base = base_matrix(shape, power, generator)
            random = torch.randn(shape, generator=generator)
            spike = torch.randn(shape[0], 1, generator=generator) @ torch.randn(1, shape[1], generator=generator)
            for kind, change in (("random", random), ("planted", spike)):
                change = change * (size * base.norm() / change.norm())
                found = find_intruders(base, base + change)
                assert found is not None
                strength = float(change.norm() / torch.linalg.matrix_norm(base, 2))
                part = f"size {size}" if kind == "random" else f"strength {_bin(strength)}"
                counts[f"{kind}, {part}: matrices"] += 1
                counts[f"{kind}, {part}: alarms"] += found.num > 0
                counts[f"{kind}, {part}: alarms of the paper's rule"] += paper_alarms(
                    base, base + change, found.num_directions
                )
    return counts


def _bin(strength: float) -> str:
    edges = ("below 0.5", 0.5), ("0.5 to 1", 1.0), ("1 to 2", 2.0), ("2 to 4", 4.0)
    return next((name for name, edge in edges if strength < edge), "above 4")


def spikes(samples: int) -> Counter[str]:
    """Return counts of changes with an alarm: stable rank below 1.5 and below half of the null's mean."""
    counts = Counter[str]()
    for m, inner in itertools.product((16, 64, 256, 1024), (2, 3, 4, 8, 16, 32, None)):
        if inner is not None and inner > m:
            continue
        squares = gaussian_spectra(m, m, inner=inner, samples=samples, seed=1).square()
        null = gaussian_spectra(m, m, inner=inner, samples=4).square()
        limit = min(1.5, float((null.sum(1) / null[:, 0]).mean()) / 2)
        kind = "full rank" if inner is None else f"factors of rank {inner}"
        counts[f"random, {kind}: changes"] += samples
        counts[f"random, {kind}: alarms"] += int((squares.sum(1) / squares[:, 0] < limit).sum())
        if inner is not None and inner < 8:
            continue  # these hold too few directions for half of a null of 3
        for share in (0.6, 0.7, 0.8, 0.95):
            rest = squares.sum(1) - squares[:, 0]
            spiked = rest * share / (1 - share)
            counts[f"planted, share {share}: changes"] += samples
            counts[f"planted, share {share}: alarms"] += int(((rest + spiked) / spiked < limit).sum())
    return counts


def main() -> None:
    """Print the counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=20)
    draws = parser.parse_args().draws
    found = {"intruders": intruders(draws, torch.Generator().manual_seed(0)), "spikes": spikes(25 * draws)}
    print(json.dumps({name: dict(sorted(counts.items())) for name, counts in found.items()}, indent=1))


if __name__ == "__main__":
    main()
