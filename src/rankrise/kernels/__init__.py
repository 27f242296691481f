"""The empirical kernel of a network on a batch: the Jacobian as an operator, its Gram matrix, its leading directions.

Features of the Fisher kernel are the inputs seen along these directions. Nothing here ever forms the Jacobian.
"""

from rankrise.kernels._features import FisherFeatures as FisherFeatures
from rankrise.kernels._low_rank import LowRank as LowRank
from rankrise.kernels._low_rank import top_directions as top_directions
from rankrise.kernels._measures import KernelMeasures as KernelMeasures
from rankrise.kernels._measures import kernel_measures as kernel_measures
from rankrise.kernels._operator import JacobianOperator as JacobianOperator
