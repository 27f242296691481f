"""Figures as data: traces, bands, marks and words, from the tables of finished runs. Nothing is drawn here.

`rankrise.lab.report` draws them.
"""

from rankrise.lab.figures._all import Gallery as Gallery
from rankrise.lab.figures._all import build_figures as build_figures
from rankrise.lab.figures._csv import to_csv as to_csv
from rankrise.lab.figures._data import Axis as Axis
from rankrise.lab.figures._data import Cells as Cells
from rankrise.lab.figures._data import FigureData as FigureData
from rankrise.lab.figures._data import Mark as Mark
from rankrise.lab.figures._data import Order as Order
from rankrise.lab.figures._data import Panel as Panel
from rankrise.lab.figures._data import Trace as Trace
from rankrise.lab.figures._describe import describe_run as describe_run
from rankrise.lab.figures._registry import build_figure as build_figure
from rankrise.lab.figures._registry import figure_ids as figure_ids
from rankrise.lab.figures._registry import takes_experiment as takes_experiment
