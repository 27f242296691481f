"""Values only: what every experiment is made of, in the order of `rankrise list`."""

from rankrise.lab.experiments.specs import _networks, _toys
from rankrise.lab.experiments.specs._reproduction import PARTS as PARTS
from rankrise.lab.experiments.specs._reproduction import Part as Part

ALL = (
    *_networks.DIGITS,
    *_toys.THEORY,
    *_toys.HEAD,
    *_networks.CIFAR,
    *_networks.IMAGES,
    *_networks.TEXT,
    *_networks.VARIED,
)
