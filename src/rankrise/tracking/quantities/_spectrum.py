"""All singular values of the change."""

from rankrise.tracking.quantities._quantity import Quantity

SPECTRUM = Quantity("spectrum", "spectra", lambda change: change.sigma)
