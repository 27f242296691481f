"""Ranks by function: how many directions of its change a tuned network uses, and LoRA ranks chosen by that."""

from rankrise.checkpoints.function._curve import FunctionPart as FunctionPart
from rankrise.checkpoints.function._curve import FunctionPoint as FunctionPoint
from rankrise.checkpoints.function._curve import FunctionRank as FunctionRank
from rankrise.checkpoints.function._curve import function_rank as function_rank
from rankrise.checkpoints.function._model_inputs import read_inputs as read_inputs
from rankrise.checkpoints.function._ranks import FunctionRanks as FunctionRanks
from rankrise.checkpoints.function._ranks import choose_ranks as choose_ranks
