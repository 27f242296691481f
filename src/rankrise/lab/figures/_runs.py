"""Which runs a figure is made of: those of one experiment, or of the members of one family."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from rankrise.lab.experiments import experiments, family_members, scale_family
from rankrise.runs import RunData, group_runs

Runs: TypeAlias = Mapping[str, Sequence[Path]]


def read_experiment(runs: Runs, name: str, *, figure: str) -> list[RunData]:
    """The runs of one experiment, which must differ in nothing but their seed.

    Raises:
        ValueError: There are no such runs, or they are of several scales.
    """
    require(runs, [name], figure=figure)
    found = sorted((RunData(Path(folder)) for folder in runs[name]), key=lambda run: run.seed)
    if len(group_runs(found)) > 1:
        raise ValueError(
            f"Runs of {name!r} in one figure must differ in their seed only; got {', '.join(r.source for r in found)}. "
            "Pass those of one scale."
        )
    return found


def require(runs: Runs, names: Sequence[str], *, figure: str) -> None:
    """Refuse a figure one of whose experiments has no runs.

    Raises:
        ValueError: One of `names` has no runs; the message says which experiment to run.

    >>> require({}, ["vit-digits"], figure="stable_rank_over_training")
    Traceback (most recent call last):
    ValueError: `stable_rank_over_training` needs finished runs of vit-digits. Run them: rankrise run vit-digits
    """
    missing = [name for name in names if not runs.get(name)]
    if missing:
        raise ValueError(
            f"`{figure}` needs finished runs of {', '.join(missing)}. Run them: rankrise run {' '.join(missing)}"
        )


def members_with_runs(runs: Runs, family: str, *, figure: str, wanted: str) -> list[str]:
    """Names of the experiments of a family that have runs.

    Args:
        runs: Folders by experiment.
        family: The name of the family.
        figure: The figure that needs the runs.
        wanted: What to run if no member has runs.

    Raises:
        ValueError: No member has runs; the message says what to run.
    """
    known = {experiment.name for experiment in family_members(family)}
    names = [name for name in runs if name in known and runs[name]]
    if not names:
        raise ValueError(f"`{figure}` needs finished runs of {wanted}. Run them: rankrise run {wanted}")
    return names


def by_scale(runs: Runs, network: str, *, figure: str) -> dict[float, list[RunData]]:
    """Runs of a network at several initial scales, from the largest factor to the smallest.

    Raises:
        ValueError: The network has no family of initial scales, fewer than two scales have runs, or the runs differ in
            more than scale and seed. The message says what to run.
    """
    family = scale_family(network)
    if not family:
        known = sorted({e.variant_of for e in experiments().values() if e.family and e.variant_of})
        raise ValueError(
            f"`{figure}` needs a network that has experiments at several initial scales; got {network!r}. "
            f"Pass one of {', '.join(known)}."
        )
    first, *_, second = (member.name for member in family_members(family)[:3])  # scales 1 and 0.1
    wanted = f"{first} {second}"
    names = members_with_runs(runs, family, figure=figure, wanted=wanted)
    found = {_factor(members[0]): members for members in (read_experiment(runs, n, figure=figure) for n in names)}
    if len(found) < 2:
        raise ValueError(f"`{figure}` needs two scales or more; got {names[0]} alone. Run more: rankrise run {wanted}")
    if len(group_runs([members[0] for members in found.values()], but_for=("seed", "model.init_scale"))) > 1:
        raise ValueError(
            f"Runs in `{figure}` must differ in their initial scale and seed only; got {', '.join(names)}. "
            "Pass those of one scale."
        )
    return dict(sorted(found.items(), reverse=True))


def _factor(run: RunData) -> float:
    return float(run.spec.get("model", {}).get("init_scale", 1.0))
