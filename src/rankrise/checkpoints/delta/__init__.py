"""The change Δ = tuned − base of one weight: read in blocks of rows, measured, decomposed."""

from rankrise.checkpoints.delta._change import HELD_BYTES as HELD_BYTES
from rankrise.checkpoints.delta._change import Delta as Delta
from rankrise.checkpoints.delta._change import Matrix as Matrix
from rankrise.checkpoints.delta._change import find_device as find_device
from rankrise.checkpoints.delta._change import matrices as matrices
from rankrise.checkpoints.delta._change import note_on_size as note_on_size
from rankrise.checkpoints.delta._decomposition import Decomposition as Decomposition
from rankrise.checkpoints.delta._decomposition import decompose_delta as decompose_delta
from rankrise.checkpoints.delta._decomposition import decompose_factors as decompose_factors
from rankrise.checkpoints.delta._intruders import Intruders as Intruders
from rankrise.checkpoints.delta._intruders import find_intruders as find_intruders
from rankrise.checkpoints.delta._spectra import delta_blocks as delta_blocks
from rankrise.checkpoints.delta._spectra import first_pass as first_pass
from rankrise.checkpoints.delta._spectra import full_floor as full_floor
from rankrise.checkpoints.delta._spectra import is_whole as is_whole
from rankrise.checkpoints.delta._spectra import leading_values as leading_values
from rankrise.checkpoints.delta._spectra import quick_floor as quick_floor
from rankrise.checkpoints.delta._spectra import spectrum as spectrum
from rankrise.checkpoints.delta._stacks import StackDecomposition as StackDecomposition
from rankrise.checkpoints.delta._stacks import decompose_stack as decompose_stack
