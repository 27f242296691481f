"""`‖Δ‖_F² / ‖Δ‖₂²`, the paper's measure of rank; 0 of a change that is zero."""

from rankrise.tracking.quantities._quantity import Quantity

STABLE_RANK = Quantity("stable_rank", "ranks", lambda change: change.stable_rank)
