"""Figures drawn, and the report around them."""

from rankrise.lab.report._demo import demo_data as demo_data
from rankrise.lab.report._demo import write_demo as write_demo
from rankrise.lab.report._draw import draw as draw
from rankrise.lab.report._draw import save_figure as save_figure
from rankrise.lab.report._environments import environment_of as environment_of
from rankrise.lab.report._report import write_report as write_report
