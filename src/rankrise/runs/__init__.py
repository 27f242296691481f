"""Any run directory as data, whoever wrote it: a tracker in someone's own loop, the trainer, or the theory.

A run is opened with `open_run`; `compare` puts several side by side; `find_runs` lists all runs below a folder with
their state. Tables are checked when
they are read, and `NotMeasurable` says in a sentence what a run lacks.
"""

from rankrise.runs._compare import Comparison as Comparison
from rankrise.runs._compare import compare as compare
from rankrise.runs._curve import Array as Array
from rankrise.runs._curve import Curve as Curve
from rankrise.runs._curve import Gaps as Gaps
from rankrise.runs._curve import NotMeasurable as NotMeasurable
from rankrise.runs._find import FoundRun as FoundRun
from rankrise.runs._find import check_run as check_run
from rankrise.runs._find import differing_fields as differing_fields
from rankrise.runs._find import find_runs as find_runs
from rankrise.runs._find import group_runs as group_runs
from rankrise.runs._find import open_run as open_run
from rankrise.runs._find import spec_fields as spec_fields
from rankrise.runs._learned import HeadChange as HeadChange
from rankrise.runs._learned import RunStage as RunStage
from rankrise.runs._learned import layer_means as layer_means
from rankrise.runs._learned import whole_numbers as whole_numbers
from rankrise.runs._numbers import early_mean as early_mean
from rankrise.runs._numbers import rank_correlation as rank_correlation
from rankrise.runs._numbers import read_alike as read_alike
from rankrise.runs._numbers import read_together as read_together
from rankrise.runs._overview import LayerRow as LayerRow
from rankrise.runs._overview import Overview as Overview
from rankrise.runs._overview import Progress as Progress
from rankrise.runs._overview import headline as headline
from rankrise.runs._overview import sparkline as sparkline
from rankrise.runs._run_data import Recorded as Recorded
from rankrise.runs._run_data import RunData as RunData
from rankrise.runs._sweep import Sweep as Sweep
from rankrise.runs._sweep import SweepRow as SweepRow
from rankrise.runs._sweep import open_sweep as open_sweep
from rankrise.runs._sweep import read_sweep as read_sweep
from rankrise.runs._sweep import write_sweep_plan as write_sweep_plan
