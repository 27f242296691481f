"""What an adapter does not carry: changes that are not linear, and what only the tuned model has."""

import math
from collections.abc import Collection, Sequence

from rankrise.checkpoints._checkpoint import Checkpoint
from rankrise.checkpoints._extraction import NotCarried
from rankrise.checkpoints._folders import show
from rankrise.checkpoints._modules import find_modules
from rankrise.checkpoints._preflight import Preflight
from rankrise.checkpoints._work import Other


def find_left_out(
    others: Sequence[Other], total: float, preflight: Preflight, tuned: Checkpoint, written: Collection[str]
) -> tuple[NotCarried, ...]:
    """Everything that is not carried: what has no measure first, then the largest share.

    Args:
        others: Tensors whose change is not in A and B.
        total: ‖Δ‖_F² of everything.
        preflight: Of base and tuned.
        tuned: The tuned model.
        written: Tensors of it that are written whole.
    """
    measured = [
        NotCarried(
            item.pair.name,
            item.module.kind,
            math.sqrt(item.squared) / item.base_norm if item.base_norm else math.nan,
            item.squared / total,
            math.prod(item.pair.shape),
            item.module.name if item.module.kind not in ("resized", "a name PEFT cannot match") else "",
        )
        for item in others
        if not item.is_saved
    ]
    only = [*_new_tensors(preflight, tuned, written), *_new_rows(preflight, tuned)]
    return (*only, *sorted(measured, key=lambda item: -item.share))


def _new_tensors(preflight: Preflight, tuned: Checkpoint, written: Collection[str]) -> list[NotCarried]:
    extra, matched = set(preflight.extra), {pair.tuned_name for pair in preflight.pairs}
    modules = find_modules(tuned) if extra else {}
    found = []
    for tensor, module in modules.items():
        parts = show(tensor).split(".")
        is_extra = any(".".join(parts[n:]) in extra for n in range(len(parts)))  # a prefix may have been stripped
        if is_extra and tensor not in matched and tensor not in written:
            size = tuned.tensors[tensor].num_elements
            found.append(NotCarried(tensor, "only in the tuned", math.nan, math.nan, size, module.name))
    return found


def _new_rows(preflight: Preflight, tuned: Checkpoint) -> list[NotCarried]:
    found = []
    for pair in preflight.pairs:
        assert pair.tuned_name is not None
        more = tuned.tensors[pair.tuned_name].num_elements - math.prod(pair.shape)
        if more > 0:
            found.append(NotCarried(pair.name, "new rows", math.nan, math.nan, more, ""))
    return found
