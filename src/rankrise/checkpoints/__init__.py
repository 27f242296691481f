"""What a checkpoint learned over its base, from the files alone.

Checkpoints are hostile input: every header, index and name is checked before it is believed, pickles are refused unless
allowed, and weights are read one pair at a time.
"""

from rankrise.checkpoints.compare import CheckpointWarning as CheckpointWarning
from rankrise.checkpoints.compare import Diff as Diff
from rankrise.checkpoints.compare import DiffProgress as DiffProgress
from rankrise.checkpoints.compare import Plan as Plan
from rankrise.checkpoints.compare import Row as Row
from rankrise.checkpoints.compare import Step as Step
from rankrise.checkpoints.compare import Total as Total
from rankrise.checkpoints.compare import diff as diff
from rankrise.checkpoints.compare import diff_text as diff_text
from rankrise.checkpoints.compare import find_steps as find_steps
from rankrise.checkpoints.compare import plan_diff as plan_diff
from rankrise.checkpoints.delta import Decomposition as Decomposition
from rankrise.checkpoints.delta import decompose_delta as decompose_delta
from rankrise.checkpoints.files import Checkpoint as Checkpoint
from rankrise.checkpoints.files import LowRankDelta as LowRankDelta
from rankrise.checkpoints.files import TensorInfo as TensorInfo
from rankrise.checkpoints.files import open_checkpoint as open_checkpoint
from rankrise.checkpoints.function import FunctionPart as FunctionPart
from rankrise.checkpoints.function import FunctionPoint as FunctionPoint
from rankrise.checkpoints.function import FunctionRank as FunctionRank
from rankrise.checkpoints.function import FunctionRanks as FunctionRanks
from rankrise.checkpoints.function import choose_ranks as choose_ranks
from rankrise.checkpoints.function import function_rank as function_rank
from rankrise.checkpoints.lora import Advice as Advice
from rankrise.checkpoints.lora import Allocation as Allocation
from rankrise.checkpoints.lora import CurvePoint as CurvePoint
from rankrise.checkpoints.lora import Extraction as Extraction
from rankrise.checkpoints.lora import LogitsCheck as LogitsCheck
from rankrise.checkpoints.lora import ModuleAdvice as ModuleAdvice
from rankrise.checkpoints.lora import ModuleSpectrum as ModuleSpectrum
from rankrise.checkpoints.lora import NotCarried as NotCarried
from rankrise.checkpoints.lora import advise as advise
from rankrise.checkpoints.lora import advise_run as advise_run
from rankrise.checkpoints.lora import allocate_ranks as allocate_ranks
from rankrise.checkpoints.lora import extract_lora as extract_lora
from rankrise.checkpoints.lora import resize_lora as resize_lora
from rankrise.checkpoints.match import Pair as Pair
from rankrise.checkpoints.match import Preflight as Preflight
from rankrise.checkpoints.match import match_checkpoints as match_checkpoints
