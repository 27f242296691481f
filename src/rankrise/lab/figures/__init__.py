"""The figures of the paper: which runs each needs, the words for what was run, and the figures that only the paper has.

A figure is a record of `rankrise.view`, which also draws it.
"""

from rankrise.lab.figures._descriptions import Description as Description
from rankrise.lab.figures._descriptions import data_name as data_name
from rankrise.lab.figures._descriptions import describe as describe
from rankrise.lab.figures._descriptions import describe_run as describe_run
from rankrise.lab.figures._gallery import Gallery as Gallery
from rankrise.lab.figures._gallery import build_figure as build_figure
from rankrise.lab.figures._gallery import build_figures as build_figures
from rankrise.lab.figures._gallery import figure_ids as figure_ids
from rankrise.lab.figures._gallery import takes_experiment as takes_experiment
