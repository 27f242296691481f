"""`exp` of the entropy of `σ / Σ σ`; sees the tail of the spectrum."""

from rankrise.linalg import effective_rank
from rankrise.tracking.quantities._quantity import Quantity

EFFECTIVE_RANK = Quantity("effective_rank", "spectra", lambda change: effective_rank(change.sigma))
