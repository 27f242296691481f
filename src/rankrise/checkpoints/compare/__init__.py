"""What training changed: rows for weights and circuits, their totals and curves, and the text that shows them."""

from rankrise.checkpoints.compare._comparison import CheckpointWarning as CheckpointWarning
from rankrise.checkpoints.compare._comparison import DiffProgress as DiffProgress
from rankrise.checkpoints.compare._comparison import Plan as Plan
from rankrise.checkpoints.compare._comparison import diff as diff
from rankrise.checkpoints.compare._comparison import plan_diff as plan_diff
from rankrise.checkpoints.compare._result import Diff as Diff
from rankrise.checkpoints.compare._result import Row as Row
from rankrise.checkpoints.compare._result import Total as Total
from rankrise.checkpoints.compare._sources import Step as Step
from rankrise.checkpoints.compare._sources import find_steps as find_steps
from rankrise.checkpoints.compare._sources import jumps as jumps
from rankrise.checkpoints.compare._text import changed_by as changed_by
from rankrise.checkpoints.compare._text import curve_table as curve_table
from rankrise.checkpoints.compare._text import diff_text as diff_text
from rankrise.checkpoints.compare._text import head_table as head_table
from rankrise.checkpoints.compare._text import layer_table as layer_table
from rankrise.checkpoints.compare._text import number as number
from rankrise.checkpoints.compare._text import percent as percent
from rankrise.checkpoints.compare._text import summary_lines as summary_lines
from rankrise.checkpoints.compare._text import weight_table as weight_table
