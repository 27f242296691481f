"""A reproduction of seconds: two seeds of a network, a smaller scale of it, and the steps of Algorithm 1.

Run as a script, it is the command `rankrise` with that plan.
"""

import sys

from rankrise.lab.experiments import _plan
from rankrise.lab.experiments.specs import Entry

ENTRIES = (
    Entry("toy-stages", "smoke"),
    Entry("vit-cifar10", "smoke", (0, 1)),
    Entry("vit-cifar10-scale-1", "smoke"),
    Entry("vit-cifar10-scale-0.1", "smoke"),
    Entry("vit-cifar100", "small"),  # its data is not there
    Entry("vit-imagenet", "paper", by_hand="Takes days"),
)

if __name__ == "__main__":
    from rankrise.cli import main

    _plan.ENTRIES["smoke"] = ENTRIES
    sys.argv[0] = "rankrise"
    main()
