"""Plateaus, drops, emergence times and stages in a measured curve.

These are pure functions on arrays, which use no file, no plot and nothing of the rest of the package. Steps may be
spaced unevenly; noise is estimated from the curve itself.
"""

from rankrise.signals._analysis import FEWEST as FEWEST
from rankrise.signals._analysis import thin as thin
from rankrise.signals._detect import Emergence as Emergence
from rankrise.signals._detect import Plateau as Plateau
from rankrise.signals._detect import Stage as Stage
from rankrise.signals._detect import Stages as Stages
from rankrise.signals._detect import detect_stages as detect_stages
from rankrise.signals._detect import emergence_times as emergence_times
from rankrise.signals._slingshots import Slingshot as Slingshot
from rankrise.signals._slingshots import Slingshots as Slingshots
from rankrise.signals._slingshots import detect_slingshots as detect_slingshots
