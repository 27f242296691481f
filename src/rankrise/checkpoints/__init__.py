"""What a checkpoint learned over its base, from the files alone.

Checkpoints are hostile input: every header, index and name is checked before it is believed, pickles are refused unless
allowed, and weights are read one pair at a time.
"""

from rankrise.checkpoints._adapters import LowRankDelta as LowRankDelta
from rankrise.checkpoints._advice import Advice as Advice
from rankrise.checkpoints._advice import CurvePoint as CurvePoint
from rankrise.checkpoints._advice import ModuleAdvice as ModuleAdvice
from rankrise.checkpoints._advice import ModuleSpectrum as ModuleSpectrum
from rankrise.checkpoints._advice import advise as advise
from rankrise.checkpoints._allocation import Allocation as Allocation
from rankrise.checkpoints._allocation import allocate_ranks as allocate_ranks
from rankrise.checkpoints._checkpoint import Checkpoint as Checkpoint
from rankrise.checkpoints._decompose import Decomposition as Decomposition
from rankrise.checkpoints._decompose import decompose_delta as decompose_delta
from rankrise.checkpoints._diff import CheckpointWarning as CheckpointWarning
from rankrise.checkpoints._diff import Plan as Plan
from rankrise.checkpoints._diff import Progress as Progress
from rankrise.checkpoints._diff import diff as diff
from rankrise.checkpoints._diff import plan_diff as plan_diff
from rankrise.checkpoints._extract import extract_lora as extract_lora
from rankrise.checkpoints._extraction import Extraction as Extraction
from rankrise.checkpoints._extraction import LogitsCheck as LogitsCheck
from rankrise.checkpoints._extraction import NotCarried as NotCarried
from rankrise.checkpoints._open import open_checkpoint as open_checkpoint
from rankrise.checkpoints._preflight import Pair as Pair
from rankrise.checkpoints._preflight import Preflight as Preflight
from rankrise.checkpoints._preflight import match_checkpoints as match_checkpoints
from rankrise.checkpoints._resize import resize_lora as resize_lora
from rankrise.checkpoints._result import Diff as Diff
from rankrise.checkpoints._result import Total as Total
from rankrise.checkpoints._rows import Row as Row
from rankrise.checkpoints._run_advice import advise_run as advise_run
from rankrise.checkpoints._safetensors import TensorInfo as TensorInfo
from rankrise.checkpoints._series import Step as Step
from rankrise.checkpoints._series import find_steps as find_steps
from rankrise.checkpoints._text import diff_text as diff_text
