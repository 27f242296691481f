"""See, predict and use the gradual rank increase of transformers.

Importing this package costs nothing: every public name is looked up, and its module imported, on first use (PEP 562).

>>> import rankrise as rr
>>> import torch
>>> sigma = rr.product_spectrum(torch.eye(3), torch.diag(torch.tensor([3.0, 2.0, 1.0])))
>>> [round(s, 6) for s in sigma.tolist()]
[3.0, 2.0, 1.0]
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from rankrise import checkpoints as checkpoints
    from rankrise import gauges as gauges
    from rankrise import growth as growth
    from rankrise import heads as heads
    from rankrise import kernels as kernels
    from rankrise import lab as lab
    from rankrise import latent as latent
    from rankrise import linalg as linalg
    from rankrise import runs as runs
    from rankrise import signals as signals
    from rankrise import store as store
    from rankrise import theory as theory
    from rankrise import tracking as tracking
    from rankrise import view as view
    from rankrise.checkpoints import diff as diff
    from rankrise.checkpoints import extract_lora as extract_lora
    from rankrise.checkpoints import function_rank as function_rank
    from rankrise.gauges import attention_entropy as attention_entropy
    from rankrise.gauges import fold_sigma as fold_sigma
    from rankrise.gauges import sigma_reparam as sigma_reparam
    from rankrise.gauges import zero_sum_cross_entropy as zero_sum_cross_entropy
    from rankrise.growth import Growth as Growth
    from rankrise.growth import GrowthCallback as GrowthCallback
    from rankrise.growth import growing_lora as growing_lora
    from rankrise.growth import save_adapter as save_adapter
    from rankrise.linalg import delta_spectrum as delta_spectrum
    from rankrise.linalg import delta_stable_rank as delta_stable_rank
    from rankrise.linalg import delta_svd as delta_svd
    from rankrise.linalg import effective_rank as effective_rank
    from rankrise.linalg import energy_rank as energy_rank
    from rankrise.linalg import product_spectrum as product_spectrum
    from rankrise.linalg import rank_above_floor as rank_above_floor
    from rankrise.linalg import stable_rank as stable_rank
    from rankrise.runs import compare as compare
    from rankrise.runs import open_run as open_run
    from rankrise.runs import open_sweep as open_sweep
    from rankrise.store import load_run as load_run
    from rankrise.tracking import RankTracker as RankTracker

_SUBPACKAGES = (
    "checkpoints",
    "gauges",
    "growth",
    "heads",
    "kernels",
    "lab",
    "latent",
    "linalg",
    "runs",
    "signals",
    "store",
    "theory",
    "tracking",
    "view",
)
_NAMES = {
    "rankrise.checkpoints": ("diff", "extract_lora", "function_rank"),
    "rankrise.gauges": ("attention_entropy", "fold_sigma", "sigma_reparam", "zero_sum_cross_entropy"),
    "rankrise.growth": ("Growth", "GrowthCallback", "growing_lora", "save_adapter"),
    "rankrise.linalg": (
        "product_spectrum",
        "delta_spectrum",
        "delta_svd",
        "delta_stable_rank",
        "stable_rank",
        "effective_rank",
        "energy_rank",
        "rank_above_floor",
    ),
    "rankrise.runs": ("open_run", "open_sweep", "compare"),
    "rankrise.store": ("load_run",),
    "rankrise.tracking": ("RankTracker",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *_SUBPACKAGES, *_HOME]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"rankrise.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    from rankrise._arguments import did_you_mean

    raise AttributeError(f"module 'rankrise' has no attribute {name!r}. {did_you_mean(name, __all__)}".rstrip())


def __dir__() -> list[str]:
    return sorted(__all__)
