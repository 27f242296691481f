"""What a kind of run is: the type of its specs, and everything the laboratory asks about a run of that kind.

Nothing here loads PyTorch, and neither may the module of a kind when it is imported: `rankrise list` reads every spec.
A kind imports what it computes with inside its functions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from rankrise.lab.training import ProgressDisplay

Ending = Literal["finished", "stopped", "diverged"]


class Spec:
    """Everything that decides the numbers of a run, and nothing else: no path of this machine, no device.

    The type of every kind of spec is a frozen dataclass below this one, with a field `seed` of everything random.
    """

    seed: int
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise ValueError(f"`seed` must be a whole number from 0 to 2^63 - 1; got {self.seed!r}. Pass another one.")


S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class Assignment:
    """Where a spec is run, and with what: everything about a run that does not decide its numbers.

    Args:
        folder: Where the run lives; empty for a new run.
        config: What the run's own `spec.json` holds about the experiment: its name and its spec.
        data: The data folder; None for the default one.
        device: Where to train; the best there is unless given.
        progress: Called with how far the run has got.
    """

    folder: Path
    config: Mapping[str, Any]
    data: Path | None = None
    device: str | None = None
    progress: "ProgressDisplay | None" = None


@dataclass(frozen=True)
class Ended:
    """How a run ended, a sentence about it for the user, and the signal that stopped the run, if one did."""

    ending: Ending
    message: str = ""
    signal: int | None = None


@dataclass(frozen=True)
class ConfigField:
    """A field of a spec that holds a config of its own.

    Args:
        kinds: Types that the config may have, by the name that `spec.json` calls them.
        omit: Fields of the config that `spec.json` leaves out, because the spec decides them.
    """

    kinds: Mapping[str, type[Any]]
    omit: tuple[str, ...] = ()


class Kind(Generic[S]):
    """One kind of run. A kind is a subclass in a file of its own, and one line in `kinds/__init__.py`.

    Attributes:
        name: What `spec.json` calls the kind.
        title: The kind in a few words, for a list of what there is.
        spec: The type of its specs.
        parts: Fields of a spec that hold configs, in the order in which `spec.json` has them.
        can_resume: Whether a run that was cut off goes on where it was; otherwise it starts over.
        is_network: Whether a run trains a network, so that it can be repeated with several seeds.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    spec: type[S]
    parts: ClassVar[Mapping[str, ConfigField]] = MappingProxyType({})
    can_resume: ClassVar[bool] = False
    is_network: ClassVar[bool] = False

    def data_name(self, spec: S) -> str:
        """The data set that a run learns from."""
        raise NotImplementedError

    def data_folder(self, spec: S) -> str:
        """What the data set is called inside the data folder."""
        return self.data_name(spec)

    def missing_data(self, spec: S, root: Path | None) -> str:
        """Why the data is not at hand, in a sentence; empty when the data is there, or is made on the spot."""
        return ""

    def in_words(self, record: Mapping[str, Any]) -> str:
        """What a run learns, for captions, without a full stop. A network is described by its parts instead.

        Args:
            record: The spec as JSON values, as the run holds it; fields may be missing.
        """
        return self.title

    def execute(self, spec: S, assignment: Assignment) -> Ended:
        """Begin the run of a spec in its folder, or go on with one that was cut off.

        Args:
            spec: What to run.
            assignment: The folder, the device and what else the run is given.
        """
        raise NotImplementedError

    def num_numbers(self, spec: S) -> int:
        """How many numbers a run holds in memory, roughly; a spec from somebody else may ask for any amount."""
        raise NotImplementedError

    def guess_seconds(self, spec: S, *, on_gpu: bool) -> float:
        """How long a whole run takes, from its size alone; right within a factor of three or so."""
        raise NotImplementedError

    def with_epochs(self, spec: S, epochs: int) -> S:
        """The spec with another number of epochs; the spec itself where there are no epochs."""
        return spec
