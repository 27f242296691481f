"""Figures drawn, and the report around them."""

from rankrise.report._draw import draw as draw
from rankrise.report._draw import save_figure as save_figure
