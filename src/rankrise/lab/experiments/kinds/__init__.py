"""The kinds of runs. A new kind needs a file of its own and one line in `KINDS`.

Importing this loads no PyTorch; what a run computes with is imported when the run begins.
"""

from typing import Any

from rankrise._arguments import did_you_mean
from rankrise.lab.experiments.kinds._adam_phases_kind import AdamPhasesKind, AdamPhasesSpec
from rankrise.lab.experiments.kinds._descent_kind import DescentKind, DescentSpec
from rankrise.lab.experiments.kinds._ensemble_kind import EnsembleKind, EnsembleSpec
from rankrise.lab.experiments.kinds._flow_kind import FlowKind, FlowSpec
from rankrise.lab.experiments.kinds._kind import Assignment, ConfigField, Ended, Kind, Spec
from rankrise.lab.experiments.kinds._lazy_kind import LazyKind, LazySpec
from rankrise.lab.experiments.kinds._matrix_descent_kind import MatrixDescentKind, MatrixDescentSpec
from rankrise.lab.experiments.kinds._matrix_flow_kind import MatrixFlowKind, MatrixFlowSpec
from rankrise.lab.experiments.kinds._matrix_stages_kind import MatrixStagesKind, MatrixStagesSpec
from rankrise.lab.experiments.kinds._modular_kind import ModularKind, ModularSpec
from rankrise.lab.experiments.kinds._robustness_kind import RobustnessKind, RobustnessSpec
from rankrise.lab.experiments.kinds._stages_kind import StagesKind, StagesSpec
from rankrise.lab.experiments.kinds._theory_kind import TheorySpec, ToyTask
from rankrise.lab.experiments.kinds._training_kind import TrainingKind, TrainingSpec

KINDS: tuple[Kind[Any], ...] = (
    TrainingKind(),
    FlowKind(),
    StagesKind(),
    MatrixFlowKind(),
    RobustnessKind(),
    DescentKind(),
    ModularKind(),
    LazyKind(),
    MatrixStagesKind(),
    MatrixDescentKind(),
    AdamPhasesKind(),
    EnsembleKind(),
)

_BY_NAME = {kind.name: kind for kind in KINDS}
_BY_SPEC = {kind.spec: kind for kind in KINDS}


def kind_named(name: object) -> Kind[Any]:
    """The kind that `spec.json` calls by this name.

    Raises:
        ValueError: There is no such kind; lists those there are, with the nearest one.

    >>> kind_named("flows")
    Traceback (most recent call last):
    ValueError: A spec must be of a known kind; got 'flows'. Did you mean 'flow'? Known: ...
    """
    if not isinstance(name, str) or name not in _BY_NAME:
        known = ", ".join(sorted(_BY_NAME))
        hint = f"{did_you_mean(name, _BY_NAME)} Known: {known}.".lstrip()
        raise ValueError(f"A spec must be of a known kind; got {name!r:.60}. {hint}")
    return _BY_NAME[name]


def kind_of(spec: Spec) -> Kind[Any]:
    """The kind of a spec.

    Raises:
        ValueError: It is a spec of no kind that is known; lists the kinds there are.

    >>> kind_of(StagesSpec(t_end=1.0)).title
    'Algorithm 1 in the limit α → 0'
    """
    if type(spec) not in _BY_SPEC:
        names = {kind.spec.__name__: kind for kind in KINDS}
        known = ", ".join(f"{name} ({kind.title})" for name, kind in names.items())
        hint = f"{did_you_mean(type(spec).__name__, names)} Known: {known}.".lstrip()
        raise ValueError(f"A spec must be of a known kind; got a {type(spec).__name__}. {hint}")
    return _BY_SPEC[type(spec)]


__all__ = [
    "KINDS",
    "AdamPhasesSpec",
    "Assignment",
    "ConfigField",
    "DescentSpec",
    "Ended",
    "EnsembleSpec",
    "FlowSpec",
    "Kind",
    "LazySpec",
    "MatrixDescentSpec",
    "MatrixFlowSpec",
    "MatrixStagesSpec",
    "ModularSpec",
    "RobustnessSpec",
    "Spec",
    "StagesSpec",
    "TheorySpec",
    "ToyTask",
    "TrainingSpec",
    "kind_named",
    "kind_of",
]
