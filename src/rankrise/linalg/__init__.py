"""Spectra of products and of differences of products, rank measures, and the floor that rounding leaves.

Pure functions on stacks of matrices, any floating dtype in, float64 out, on the device of the input. The same input
gives the same bits on the same device; CPU and GPU agree within the error bound of each function.
"""

from rankrise.linalg._decompose import symmetric_eigen as symmetric_eigen
from rankrise.linalg._decompose import thin_svd as thin_svd
from rankrise.linalg._floor import RankAboveFloor as RankAboveFloor
from rankrise.linalg._floor import rank_above_floor as rank_above_floor
from rankrise.linalg._floor import rounding_variance as rounding_variance
from rankrise.linalg._floor import storage_dtype as storage_dtype
from rankrise.linalg._iteration import StableRank as StableRank
from rankrise.linalg._iteration import delta_stable_rank as delta_stable_rank
from rankrise.linalg._iteration import leading_directions as leading_directions
from rankrise.linalg._measures import RankMeasures as RankMeasures
from rankrise.linalg._measures import effective_rank as effective_rank
from rankrise.linalg._measures import energy_rank as energy_rank
from rankrise.linalg._measures import gaussian_spectra as gaussian_spectra
from rankrise.linalg._measures import nuclear_ratio as nuclear_ratio
from rankrise.linalg._measures import numerical_rank as numerical_rank
from rankrise.linalg._measures import rank_measures as rank_measures
from rankrise.linalg._measures import stable_rank as stable_rank
from rankrise.linalg._products import SVD as SVD
from rankrise.linalg._products import delta_spectrum as delta_spectrum
from rankrise.linalg._products import delta_svd as delta_svd
from rankrise.linalg._products import matrix_spectrum as matrix_spectrum
from rankrise.linalg._products import product_spectrum as product_spectrum
