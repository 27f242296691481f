"""How the numbers of several seeds become one verdict."""

import math
import statistics
from collections.abc import Sequence

from rankrise.lab.claims._claim import Finding, Predicate, Verdict


def judge(
    predicate: Predicate,
    seeds: Sequence[int],
    findings: Sequence[Finding],
    sources: tuple[str, ...],
    apart: str = "",
) -> Verdict:
    """Compare the mean over seeds with the bound, or the worst seed's number if the claim is about every seed.

    An infinite number counts if it is on the claim's side and either all seeds are infinite or the worst seed decides.

    Args:
        predicate: The claim.
        seeds: The seeds of the runs.
        findings: The number of each seed.
        sources: The runs, each as name and hash.
        apart: How the runs differ from their experiment at scale `paper`.
    """
    values = [finding.value for finding in findings]
    may_be_infinite = predicate.of_every_seed or all(math.isinf(value) for value in values)
    for seed, finding in zip(seeds, findings, strict=True):
        if not (math.isfinite(finding.value) or (may_be_infinite and predicate.is_met(finding.value))):
            return untested(predicate, f"Its number is not finite in seed {seed}: {finding.detail}")
    worst = predicate.worst(values)
    low, high = (None, None) if predicate.of_every_seed else _interval(values)
    value = values[worst] if predicate.of_every_seed else statistics.mean(values)
    count = f"{len(seeds)} seed" + ("s" if len(seeds) > 1 else "")
    is_open = low is not None and high is not None and predicate.is_met(low) != predicate.is_met(high)
    return Verdict(
        claim=predicate.claim,
        verdict="holds" if predicate.is_met(value) else "fails",
        value=value,
        low=low,
        high=high,
        n=" × ".join([count, *_parts(findings)]) + (f", {apart}" if apart else ""),
        reason=" ".join(
            sentence
            for sentence in (
                _numbers(seeds, values),
                findings[worst].detail if len(seeds) == 1 else f"Seed {seeds[worst]}: {findings[worst].detail}",
                _about(predicate, values, is_open=is_open),
                f"Run: {apart}." if apart else "",
            )
            if sentence
        ),
        runs=sources,
        is_open=is_open,
        apart=apart,
    )


def untested(predicate: Predicate, reason: str) -> Verdict:
    """The verdict "not tested", with the reason."""
    return Verdict(predicate.claim, "not tested", None, None, None, "", reason, ())


def _numbers(seeds: Sequence[int], values: Sequence[float]) -> str:
    """The number of each of several seeds, in a sentence; empty for one seed.

    >>> _numbers([0, 1, 2], [1.02, 1.12, 0.8441])
    'Seeds 0, 1, 2: 1.02, 1.12, 0.844.'
    """
    if len(seeds) == 1:
        return ""
    return f"Seeds {', '.join(map(str, seeds))}: {', '.join(f'{value:.3g}' for value in values)}."


def _about(predicate: Predicate, values: Sequence[float], *, is_open: bool) -> str:
    """What the interval means, or why there is none, in a sentence; empty if there is nothing to say."""
    if len(values) == 1:
        return "One seed: no interval."
    if predicate.of_every_seed:
        return "The worst seed decides: no interval."
    if math.isinf(values[0]):
        return "Infinite in every seed: no interval."
    return "The interval contains the bound: more seeds could turn the verdict." if is_open else ""


def _parts(findings: Sequence[Finding]) -> list[str]:
    """What the number of each seed is made of, in words.

    >>> _parts([Finding(0.0, "", {"perturbations": count}) for count in (4, 5, 3)])
    ['3 to 5 perturbations']
    >>> _parts([Finding(0.0, "", {"heads": 8, "layers": 6}), Finding(0.0, "")])
    ['8 heads', '6 layers']
    """
    found: dict[str, list[int]] = {}
    for finding in findings:
        for unit, count in finding.parts.items():
            found.setdefault(unit, []).append(count)
    ranges = {unit: sorted({min(counts), max(counts)}) for unit, counts in found.items()}
    return [f"{' to '.join(map(str, ends))} {unit}" for unit, ends in ranges.items()]


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The 95% interval of Student's t around the mean; None twice for one value, or if a value is infinite.

    >>> _interval([0.2, 0.2, 0.2])
    (0.2, 0.2)
    """
    from scipy.special import stdtrit  # `scipy.stats`, which has the same quantile, takes a second to import

    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return None, None
    mean = statistics.mean(values)  # `statistics.mean` rounds once, so that the mean of equal numbers is that number
    half = float(stdtrit(n - 1, 0.975)) * statistics.stdev(values) / math.sqrt(n)
    return mean - half, mean + half
