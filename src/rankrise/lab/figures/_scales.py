"""The family of one network at several initial scales."""

from rankrise.lab.experiments._run_data import RunData
from rankrise.lab.figures._runs import Runs, family, read_experiment


def by_scale(runs: Runs, experiment: str, *, figure: str) -> dict[float, list[RunData]]:
    """Runs of `<experiment>-scale-*`, from the largest factor to the smallest.

    Raises:
        ValueError: Fewer than two scales have runs, or they differ in more than that; says what to run.
    """
    wanted = f"{experiment}-scale-1 {experiment}-scale-0.1"
    names = family(runs, f"{experiment}-scale", figure=figure, wanted=wanted)
    found = {_factor(members[0]): members for members in (read_experiment(runs, n, figure=figure) for n in names)}
    if len(found) < 2:
        raise ValueError(f"`{figure}` needs two scales or more; got {names[0]} alone. Run more: rankrise run {wanted}")
    if any(_rest(members[0]) != _rest(next(iter(found.values()))[0]) for members in found.values()):
        raise ValueError(
            f"Runs in `{figure}` must differ in their initial scale and seed only; got {', '.join(names)}. "
            "Pass those of one scale."
        )
    return dict(sorted(found.items(), reverse=True))


def _rest(run: RunData) -> dict[str, object]:
    model = {key: value for key, value in run.spec.get("model", {}).items() if key != "init_scale"}
    return {**run.spec, "model": model, "seed": None}


def _factor(run: RunData) -> float:
    return float(run.spec.get("model", {}).get("init_scale", 1.0))
