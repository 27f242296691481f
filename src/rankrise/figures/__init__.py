"""Figures as data: traces, bands, marks and words, from the tables of finished runs. Nothing is drawn here.

`rankrise.report` draws them.
"""

from rankrise.figures._all import Gallery as Gallery
from rankrise.figures._all import build_figures as build_figures
from rankrise.figures._csv import to_csv as to_csv
from rankrise.figures._data import Axis as Axis
from rankrise.figures._data import Cells as Cells
from rankrise.figures._data import FigureData as FigureData
from rankrise.figures._data import Mark as Mark
from rankrise.figures._data import Order as Order
from rankrise.figures._data import Panel as Panel
from rankrise.figures._data import Trace as Trace
from rankrise.figures._describe import describe_run as describe_run
from rankrise.figures._registry import build_figure as build_figure
from rankrise.figures._registry import figure_ids as figure_ids
from rankrise.figures._registry import takes_experiment as takes_experiment
