"""How long runs take: measured where a run like it was made here, else a guess that is corrected as runs end."""

import contextlib
import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankrise.lab.experiments._spec import spec_hash
from rankrise.lab.experiments.kinds import Spec, kind_of
from rankrise.store import replacing

NAME = "durations.json"


@dataclass
class Estimator:
    """How many seconds runs take on this machine.

    Args:
        on_gpu: Whether networks are trained on a GPU.
        measured: Seconds by the hash of a spec with its seed at 0, because the seed does not change the duration.
    """

    on_gpu: bool = False
    measured: dict[str, float] = field(default_factory=dict)
    _ratios: dict[str, list[float]] = field(default_factory=dict)  # measured / guessed, by kind

    def seconds(self, spec: Spec) -> float:
        """Seconds of a whole run: those of a run like it, else a guess times how wrong guesses of its kind were."""
        known = self.measured.get(_key(spec))
        if known is not None:
            return known
        correction = statistics.median(self._ratios.get(kind_of(spec).name, [1.0]))
        return guess_seconds(spec, on_gpu=self.on_gpu) * correction

    def total(self, specs: Iterable[Spec]) -> float:
        """Seconds of several runs, one after another."""
        return sum(self.seconds(spec) for spec in specs)

    def learn(self, spec: Spec, seconds: float) -> None:
        """Take the duration of a whole run into account."""
        self.measured[_key(spec)] = seconds
        guessed = guess_seconds(spec, on_gpu=self.on_gpu)
        self._ratios.setdefault(kind_of(spec).name, []).append(seconds / guessed)


def guess_seconds(spec: Spec, *, on_gpu: bool) -> float:
    """What the kind of a spec guesses from the size of the run alone.

    >>> from rankrise.lab.experiments import experiments
    >>> 300 < guess_seconds(experiments()["vit-cifar10"].paper, on_gpu=True) < 1500
    True
    """
    return kind_of(spec).guess_seconds(spec, on_gpu=on_gpu)


def read_durations(out: Path) -> dict[str, float]:
    """What runs took here before; empty when nothing is known, or when the file is not readable."""
    try:
        record = json.loads((out / NAME).read_text(encoding="utf-8"))
        return {str(key): float(value) for key, value in record.items() if 0 < float(value) < math.inf}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_durations(out: Path, measured: dict[str, float]) -> None:
    """Keep durations beside the runs, together with those of other processes.

    A disk that refuses the file is ignored, because durations only improve an estimate.
    """
    known = {**read_durations(out), **measured}
    text = json.dumps({key: max(round(value, 2), 0.01) for key, value in sorted(known.items())}, indent=1)
    with contextlib.suppress(OSError), replacing(out / NAME, "durations") as temporary:
        temporary.write_text(text)


def _key(spec: Spec) -> str:
    return spec_hash(replace(spec, seed=0))
