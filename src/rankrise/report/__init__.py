"""Figures drawn, and the report around them."""

from rankrise.report._demo import demo_data as demo_data
from rankrise.report._demo import write_demo as write_demo
from rankrise.report._draw import draw as draw
from rankrise.report._draw import save_figure as save_figure
from rankrise.report._environments import environment_of as environment_of
from rankrise.report._report import write_report as write_report
