"""Many runs at once: grids over the fields of specs, carried out by Dask on this machine or on a cluster.

Importing it loads neither Dask nor PyTorch.
"""

from rankrise.lab.sweep._cluster import Workers as Workers
from rankrise.lab.sweep._grid import Grid as Grid
from rankrise.lab.sweep._grid import read_fields as read_fields
from rankrise.lab.sweep._registry import GRIDS as GRIDS
from rankrise.lab.sweep._sweep import Standing as Standing
from rankrise.lab.sweep._sweep import SweepWatch as SweepWatch
from rankrise.lab.sweep._sweep import sweep as sweep
