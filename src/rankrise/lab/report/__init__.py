"""The report of a reproduction, and the demo."""

from rankrise.lab.report._report import demo_data as demo_data
from rankrise.lab.report._report import write_demo as write_demo
from rankrise.lab.report._report import write_report as write_report
from rankrise.lab.report._summary import environment_of as environment_of
from rankrise.lab.report._summary import ran as ran
