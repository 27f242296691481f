"""Figures as records, their renderers, and the figures of any single network, from the runs that are there.

A figure is a `FigureData` first: numbers with labels, made from runs. `draw` and `save_figure` turn it into files with
matplotlib, `figure_json` into what the scripts of a page draw, `to_csv` into a table. Nothing here trains, and nothing
here knows an experiment by name: names, titles and words come as arguments.
"""

from typing import TYPE_CHECKING

from rankrise._lazy import lazy_names as _lazy_names
from rankrise.view._by_scale import components_by_scale as components_by_scale
from rankrise.view._by_scale import stable_rank_by_scale as stable_rank_by_scale
from rankrise.view._colours import colour_ramps as colour_ramps
from rankrise.view._draw import draw as draw
from rankrise.view._draw import picture as picture
from rankrise.view._figure import Axis as Axis
from rankrise.view._figure import Cells as Cells
from rankrise.view._figure import Control as Control
from rankrise.view._figure import FigureData as FigureData
from rankrise.view._figure import Mark as Mark
from rankrise.view._figure import Order as Order
from rankrise.view._figure import Panel as Panel
from rankrise.view._figure import Trace as Trace
from rankrise.view._figure import is_finite as is_finite
from rankrise.view._figure import numbers as numbers
from rankrise.view._figure import to_csv as to_csv
from rankrise.view._json import figure_json as figure_json
from rankrise.view._latent_figure import latent_figure as latent_figure
from rankrise.view._networks import CIRCUITS as CIRCUITS
from rankrise.view._networks import Circuit as Circuit
from rankrise.view._networks import band_words as band_words
from rankrise.view._networks import depth_level as depth_level
from rankrise.view._networks import epochs as epochs
from rankrise.view._networks import initial_stable_rank as initial_stable_rank
from rankrise.view._networks import layer_name as layer_name
from rankrise.view._networks import layer_ranges as layer_ranges
from rankrise.view._networks import mean_and_band as mean_and_band
from rankrise.view._networks import time_label as time_label
from rankrise.view._page import asset as asset
from rankrise.view._page import plotly_script as plotly_script
from rankrise.view._page import render as render
from rankrise.view._run_figures import RUN_FIGURES as RUN_FIGURES
from rankrise.view._run_figures import RunFigure as RunFigure
from rankrise.view._run_figures import check_run_figure as check_run_figure
from rankrise.view._run_figures import figure_of_comparison as figure_of_comparison
from rankrise.view._run_figures import figure_of_run as figure_of_run
from rankrise.view._run_figures import run_figure_ids as run_figure_ids
from rankrise.view._run_figures import training_curves as training_curves
from rankrise.view._run_page import RunGallery as RunGallery
from rankrise.view._run_page import comparison_gallery as comparison_gallery
from rankrise.view._run_page import run_gallery as run_gallery
from rankrise.view._run_page import run_page as run_page
from rankrise.view._run_summary import ENERGY as ENERGY
from rankrise.view._run_summary import RunSummary as RunSummary
from rankrise.view._run_summary import compared_ranks as compared_ranks
from rankrise.view._run_summary import summarise as summarise
from rankrise.view._saved import save_figure as save_figure
from rankrise.view._spectra import perturbation_vs_init as perturbation_vs_init
from rankrise.view._spectra import spectrum_over_training as spectrum_over_training
from rankrise.view._stable_ranks import stable_rank_by_head as stable_rank_by_head
from rankrise.view._stable_ranks import stable_rank_over_training as stable_rank_over_training
from rankrise.view._stages_figure import stages_figure as stages_figure

if TYPE_CHECKING:
    from rankrise.view._diff_page import diff_page as diff_page

# The page of a diff reads checkpoints with torch, whose import would take most of the time of drawing a run.
__getattr__, __dir__ = _lazy_names(__name__, {"_diff_page": ["diff_page"]})
