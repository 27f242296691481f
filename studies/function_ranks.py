"""Does the function of a trained network need fewer ranks than its weights?

    python studies/function_ranks.py --out runs/function --seeds 5

Trains the small vision transformer on digits (`vit-digits-scale-1` and `-scale-0.1`, the recipe of `small`) once for
each seed, cuts all changes since the start to rank r, and compares the outputs on the test images: D(r) of
`rankrise.function_rank`, its control, and the energy that is left out. `docs/log/growth.md` quotes the table. Needs
`pip install 'rankrise[demo]'`.

Two expectations were committed before the first run: (1) D(0) is 1 and the control is at least 0.8 at every rank; (2)
the rank for D ≤ 0.05 is at most the rank for 95% of the energy in 4 of 5 seeds, at each scale. Intervals are 95%
percentiles of 10,000 resamples of the seeds.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import nn

import rankrise as rr
from rankrise.lab.data import load_dataset
from rankrise.lab.experiments import find_experiment, run_experiment
from rankrise.lab.models import build_model
from rankrise.lab.training import load_weights

SCALES = ("1", "0.1")


def measure(scale: str, seed: int, out: Path) -> dict[str, object]:
    """Train one network; return its ranks by function and by energy, for all changes, each circuit and each layer."""
    name = f"vit-digits-scale-{scale}"
    spec = find_experiment(name).small
    folder = run_experiment(name, scale="small", seed=seed, out=out).folder
    base, tuned = (build_model(spec.model, seed=seed) for _ in range(2))
    tuned.load_state_dict(load_weights(folder))
    batches = list(load_dataset(spec.data).test_batches(batch_size=1000))
    inputs = {"images": torch.cat([b[0] for b in batches]), "labels": torch.cat([b[1] for b in batches])}

    def outputs(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        result: torch.Tensor = model(batch["images"])
        return result

    found = rr.function_rank(base.double(), tuned.double(), _double(inputs), forward=outputs, batch_size=512, seed=seed)
    return {
        "scale": scale,
        "seed": seed,
        **found.to_json(),
        "ranks": [(p.rank(), p.energy_rank()) for p in found.parts],
    }


def _double(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: t.double() if t.is_floating_point() else t for name, t in inputs.items()}


def interval(values: list[float]) -> str:
    """Return the mean and the 95% percentiles of resampled means, as text."""
    data = torch.tensor(values, dtype=torch.float64)
    draws = torch.randint(len(data), (10_000, len(data)), generator=torch.Generator().manual_seed(0))
    low, high = data[draws].mean(1).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return f"{data.mean():.3g} [{low:.3g}, {high:.3g}]"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/function"))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for scale in SCALES:
        results = []
        for seed in range(options.seeds):
            file = options.out / f"scale-{scale}-{seed}.json"
            if not file.exists():
                file.write_text(json.dumps(measure(scale, seed, options.out), indent=1))
            results.append(json.loads(file.read_text()))
        print(f"scale {scale}, {len(results)} seeds")
        for number, part in enumerate(results[0]["parts"]):
            ranks = [result["ranks"][number] for result in results]
            share = interval([result["parts"][number]["share"] for result in results])
            by_function, by_energy = (interval([float(r[i]) for r in ranks]) for i in (0, 1))
            no_more = sum(f <= e for f, e in ranks)
            print(
                f"  circuit {part['circuit']}, layer {part['layer']}: share {share}, rank by function {by_function}, "
                f"by energy {by_energy}, no more in {no_more} of {len(ranks)}"
            )
        for number, point in enumerate(results[0]["parts"][0]["points"]):
            points = [result["parts"][0]["points"][number] for result in results]
            words = ", ".join(
                f"{key} {interval([p[key] for p in points])}"
                for key in ("distance", "control", "agreement", "energy_left")
            )
            print(f"  rank {point['rank']}: {words}, least control {min(p['control'] for p in points):.3g}")


if __name__ == "__main__":
    main()
