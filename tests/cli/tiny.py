"""A reproduction of seconds: two seeds of a network, a smaller scale of it, and the steps of Algorithm 1.

Run as a script, it is the command `rankrise` with that plan.
"""

import sys

from rankrise.lab.experiments import _plan
from rankrise.lab.experiments.specs import Part

PARTS = (
    Part("toy-stages", "smoke"),
    Part("vit-cifar10", "smoke", (0, 1)),
    Part("vit-cifar10-scale-1", "smoke"),
    Part("vit-cifar10-scale-0.1", "smoke"),
    Part("vit-cifar100", "small"),  # its data is not there
    Part("vit-imagenet", "paper", by_hand="Takes days"),
)

if __name__ == "__main__":
    from rankrise.cli import main

    _plan.PARTS["smoke"] = PARTS
    sys.argv[0] = "rankrise"
    main()
