"""Two checkpoints brought together by names, shapes and configs, before any value is read."""

from rankrise.checkpoints.match._alignment import block_of as block_of
from rankrise.checkpoints.match._alignment import layer_of as layer_of
from rankrise.checkpoints.match._modules import Module as Module
from rankrise.checkpoints.match._modules import find_modules as find_modules
from rankrise.checkpoints.match._modules import is_expert_stack as is_expert_stack
from rankrise.checkpoints.match._modules import is_taken_for_experts as is_taken_for_experts
from rankrise.checkpoints.match._pairs import Pair as Pair
from rankrise.checkpoints.match._pairs import Preflight as Preflight
from rankrise.checkpoints.match._preflight import match_checkpoints as match_checkpoints
