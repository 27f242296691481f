"""How much changed: `‖Δ‖_F` and `‖Δ‖₂`."""

from rankrise.tracking.quantities._quantity import Quantity

FROBENIUS_NORM = Quantity("frobenius_norm", "ranks", lambda change: change.frobenius_norm)
SPECTRAL_NORM = Quantity("spectral_norm", "ranks", lambda change: change.spectral_norm)
