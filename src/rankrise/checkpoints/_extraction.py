"""What an extraction returns."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rankrise.checkpoints._advice import Advice
from rankrise.checkpoints._folders import show
from rankrise.checkpoints._preflight import Preflight


@dataclass(frozen=True)
class NotCarried:
    """A change that LoRA does not carry, and the module whose saving would."""

    name: str  # of the tensor
    kind: str  # "embedding", "norm", "bias", …; "only in the tuned", "new rows": there is no change to measure
    relative_size: float  # ‖Δ‖_F / ‖W‖_F; NaN where there is none
    share: float  # of the squared norm of the whole change; NaN where there is none
    num_parameters: int
    module: str  # for `save`; empty where no module holds it


@dataclass(frozen=True)
class LogitsCheck:
    """Outputs of base + adapter against the tuned model, on the same inputs."""

    inputs: str  # what went in, in words
    max_difference: float  # between base + adapter and tuned
    relative_error: float  # ‖adapter − tuned‖ / ‖base − tuned‖
    agreement: float  # share of positions with the same largest output
    base_agreement: float  # the same of the base, to compare


@dataclass(frozen=True)
class Extraction:
    """An adapter, why it has these ranks, and what it leaves out."""

    out: Path | None  # None for advice only
    advice: Advice
    errors: Mapping[str, float]  # module to ‖Δ − BA‖_F / ‖Δ‖_F, with BA read back from the file
    error: float  # the same over all linear modules that changed; one of rank 0 is lost whole
    total_error: float  # over everything that changed and that both have, carried or not
    not_carried: tuple[NotCarried, ...]  # largest share first
    unchanged: tuple[str, ...]
    saved: tuple[str, ...]  # modules written whole
    num_bytes: int
    is_exact: bool  # whether every decomposition was
    logits: LogitsCheck | None
    preflight: Preflight
    notes: tuple[str, ...] = ()  # where it falls short of what was asked for

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "out": None if self.out is None else str(self.out),
            "rule": self.advice.rule,
            "error": self.error,
            "total_error": self.total_error,
            "errors": {show(name): value for name, value in self.errors.items()},
            "num_bytes": self.num_bytes,
            "is_exact": self.is_exact,
            "advice": self.advice.to_json(),
            "not_carried": [{k: (None if v != v else v) for k, v in asdict(item).items()} for item in self.not_carried],
            "unchanged": [show(name) for name in self.unchanged],
            "modules_to_save": list(self.saved),
            "notes": list(self.notes),
            "preflight": self.preflight.to_json(),
            "logits": None if self.logits is None else asdict(self.logits),
        }
