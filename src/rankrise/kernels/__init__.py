"""The empirical kernel of a network on a batch: the Jacobian as an operator, its Gram matrix, and what rank it has."""

from rankrise.kernels._measures import KernelMeasures as KernelMeasures
from rankrise.kernels._measures import kernel_measures as kernel_measures
from rankrise.kernels._operator import JacobianOperator as JacobianOperator
