"""The specs of all experiments, as values, in the order of `rankrise list`."""

from rankrise.lab.experiments.specs import (
    _full_heads,
    _gauged,
    _paper_networks,
    _questions,
    _toys,
    _varied_networks,
)
from rankrise.lab.experiments.specs._reproduction import ENTRIES as ENTRIES
from rankrise.lab.experiments.specs._reproduction import Entry as Entry

ALL = (
    *_paper_networks.DIGITS,
    *_toys.THEORY,
    *_full_heads.FULL_HEADS,
    *_questions.QUESTIONS,
    *_toys.HEAD,
    *_paper_networks.CIFAR,
    *_paper_networks.IMAGES,
    *_paper_networks.TEXT,
    *_varied_networks.VARIED,
    *_gauged.GAUGED,
)
