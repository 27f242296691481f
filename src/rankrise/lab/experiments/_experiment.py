"""An experiment: a name for three specs of one shape, from seconds on a CPU to the paper's own."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from rankrise.lab.experiments._codec import choices
from rankrise.lab.experiments._spec import check_name
from rankrise.lab.experiments.kinds import Spec

Scale: TypeAlias = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)


@dataclass(frozen=True)
class Experiment:
    """One experiment at three scales: the same code with other values.

    Args:
        name: What `rankrise run` calls it; a folder below `out`.
        title: One line for `rankrise list`.
        shows: What to look at in its tables.
        smoke: Embedded or synthetic data, seconds on a CPU.
        small: Under an hour on a CPU.
        paper: The paper's recipe, on a GPU.
        family: The experiments that figures and claims compare with each other have one family: the flows of the toy at
            several α, or a network at several initial scales. Empty for an experiment of no family.
        variant_of: The experiment that this one changes in one respect; empty if there is none.

    Family and variant are fields of the experiment and not of its specs, so that they do not enter the hash of a run.
    """

    name: str
    title: str
    shows: str
    smoke: Spec
    small: Spec
    paper: Spec
    family: str = ""
    variant_of: str = ""

    def __post_init__(self) -> None:
        check_name(self.name)

    @property
    def specs(self) -> dict[Scale, Spec]:
        """The specs by scale."""
        return {"smoke": self.smoke, "small": self.small, "paper": self.paper}

    def spec(self, scale: str) -> Spec:
        """The spec of one scale.

        Raises:
            ValueError: There is no such scale.
        """
        if scale not in SCALES:
            raise ValueError(f"`scale` must be a known one; got {scale!r}. {choices(scale, SCALES)}")
        return self.specs[scale]
