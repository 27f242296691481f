"""What training changed: rows for weights and circuits, their totals and curves, and the text that shows them."""

from rankrise.checkpoints.diff._comparison import CheckpointWarning as CheckpointWarning
from rankrise.checkpoints.diff._comparison import Plan as Plan
from rankrise.checkpoints.diff._comparison import Progress as Progress
from rankrise.checkpoints.diff._comparison import diff as diff
from rankrise.checkpoints.diff._comparison import plan_diff as plan_diff
from rankrise.checkpoints.diff._result import Diff as Diff
from rankrise.checkpoints.diff._result import Row as Row
from rankrise.checkpoints.diff._result import Total as Total
from rankrise.checkpoints.diff._sources import Step as Step
from rankrise.checkpoints.diff._sources import find_steps as find_steps
from rankrise.checkpoints.diff._text import curve_table as curve_table
from rankrise.checkpoints.diff._text import diff_text as diff_text
from rankrise.checkpoints.diff._text import head_table as head_table
from rankrise.checkpoints.diff._text import layer_table as layer_table
from rankrise.checkpoints.diff._text import number as number
from rankrise.checkpoints.diff._text import summary_lines as summary_lines
from rankrise.checkpoints.diff._text import weight_table as weight_table
