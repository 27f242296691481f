"""What a checkpoint learned over its base, from the files alone.

Checkpoints are hostile input: every header, index and name is checked before it is believed, pickles are refused unless
allowed, and weights are read one pair at a time.
"""

from rankrise.checkpoints._adapters import LowRankDelta as LowRankDelta
from rankrise.checkpoints._checkpoint import Checkpoint as Checkpoint
from rankrise.checkpoints._open import open_checkpoint as open_checkpoint
from rankrise.checkpoints._preflight import Pair as Pair
from rankrise.checkpoints._preflight import Preflight as Preflight
from rankrise.checkpoints._preflight import match_checkpoints as match_checkpoints
from rankrise.checkpoints._safetensors import TensorInfo as TensorInfo
