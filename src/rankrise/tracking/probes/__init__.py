"""Probes for any model: what they read becomes rows of the table, like the ranks."""

from rankrise.tracking.probes._classifier import ClassifierProbe as ClassifierProbe
from rankrise.tracking.probes._entropy import EntropyProbe as EntropyProbe
from rankrise.tracking.probes._kernel import KernelProbe as KernelProbe
from rankrise.tracking.probes._laziness import LazinessProbe as LazinessProbe
