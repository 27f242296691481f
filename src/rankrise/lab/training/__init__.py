"""Train the paper's networks, with their ranks tracked from step 0 and exact resume.

One verb, `train`, and its recipe, `TrainingConfig`. Importing this loads no PyTorch.
"""

from rankrise.lab.training._config import TrainingConfig as TrainingConfig
from rankrise.lab.training._progress import PlainProgress as PlainProgress
from rankrise.lab.training._progress import Progress as Progress
from rankrise.lab.training._progress import Report as Report
from rankrise.lab.training._progress import RichProgress as RichProgress
from rankrise.lab.training._progress import duration as duration
from rankrise.lab.training._progress import show_progress as show_progress
from rankrise.lab.training._result import TrainingResult as TrainingResult
from rankrise.lab.training._result import TrainingWarning as TrainingWarning
from rankrise.lab.training._together import joined_processes as joined_processes
from rankrise.lab.training._train import train as train
from rankrise.lab.training._weights import load_weights as load_weights
