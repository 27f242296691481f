"""Dashboards that get a copy: one small protocol, and two that speak it."""

from rankrise.tracking.sinks._sink import Sink as Sink
from rankrise.tracking.sinks._sink import check_sinks as check_sinks
from rankrise.tracking.sinks._sink import tag as tag
from rankrise.tracking.sinks._tensorboard import TensorBoardSink as TensorBoardSink
from rankrise.tracking.sinks._wandb import WandbSink as WandbSink
