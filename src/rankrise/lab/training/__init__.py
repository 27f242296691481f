"""Train the paper's networks, with their ranks tracked from step 0 and exact resume.

One verb, `train`, and its recipe, `TrainingConfig`. Importing this package loads no PyTorch: the parts of a step, for
whoever writes a loop of their own, are imported on first use.
"""

from typing import TYPE_CHECKING

from rankrise._lazy import lazy_names as _lazy_names
from rankrise.lab.training._config import TrainingConfig as TrainingConfig
from rankrise.lab.training._progress import PlainProgress as PlainProgress
from rankrise.lab.training._progress import ProgressDisplay as ProgressDisplay
from rankrise.lab.training._progress import Report as Report
from rankrise.lab.training._progress import RichProgress as RichProgress
from rankrise.lab.training._progress import duration as duration
from rankrise.lab.training._progress import show_progress as show_progress
from rankrise.lab.training._train import Observe as Observe
from rankrise.lab.training._train import Observer as Observer
from rankrise.lab.training._train import TrainingResult as TrainingResult
from rankrise.lab.training._train import TrainingWarning as TrainingWarning
from rankrise.lab.training._train import joined_processes as joined_processes
from rankrise.lab.training._train import load_weights as load_weights
from rankrise.lab.training._train import train as train

if TYPE_CHECKING:
    from rankrise.lab.training._processes import Processes as Processes
    from rankrise.lab.training._processes import choose_device as choose_device
    from rankrise.lab.training._step import autocast as autocast
    from rankrise.lab.training._step import build_evaluation as build_evaluation
    from rankrise.lab.training._step import build_optimiser as build_optimiser
    from rankrise.lab.training._step import learning_rate as learning_rate
    from rankrise.lab.training._step import matmul_precision as matmul_precision
    from rankrise.lab.training._step import mean_loss as mean_loss
    from rankrise.lab.training._step import set_rate as set_rate

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "_processes": ("Processes", "choose_device"),
        "_step": (
            "autocast",
            "build_evaluation",
            "build_optimiser",
            "learning_rate",
            "matmul_precision",
            "mean_loss",
            "set_rate",
        ),
    },
)
