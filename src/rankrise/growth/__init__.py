"""Adapters that grow: a LoRA whose directions are switched on where the gradient outside it has proven signal."""

from typing import TYPE_CHECKING

from rankrise._lazy import lazy_names as _lazy_names
from rankrise.growth._calibrate import CalibratedRanks as CalibratedRanks
from rankrise.growth._calibrate import calibrate_ranks as calibrate_ranks
from rankrise.growth._growth import Decision as Decision
from rankrise.growth._growth import Growth as Growth
from rankrise.growth._model import growing_lora as growing_lora
from rankrise.growth._save import save_adapter as save_adapter
from rankrise.growth._schedule import Schedule as Schedule
from rankrise.growth._schedule import growth_schedule as growth_schedule

if TYPE_CHECKING:
    from rankrise.growth._callback import GrowthCallback as GrowthCallback

__getattr__, __dir__ = _lazy_names(__name__, {"_callback": ("GrowthCallback",)})
