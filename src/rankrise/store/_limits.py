"""How much a file may claim before anything is allocated for it: rows, unpacked bytes, sizes in a spec.

A few megabytes from somebody else can unpack to gigabytes, so what a file claims is compared with a limit first. Every
limit can be set by its environment variable, and `RANKRISE_NO_LIMITS=1`, which `rankrise --no-limits` sets, lifts all.
"""

import os
import sys
from dataclasses import dataclass

NO_LIMITS = "RANKRISE_NO_LIMITS"


@dataclass(frozen=True)
class Limit:
    """A number that a file must not exceed.

    Attributes:
        variable: The environment variable that sets the limit.
        default: The limit if the variable is not set.
        what: What is counted.
    """

    variable: str
    default: int
    what: str

    @property
    def remedy(self) -> str:
        """What to do about a file that is refused and yet trusted."""
        return f"If you trust it, set {self.variable} to a larger number, or pass --no-limits"

    def is_set(self) -> bool:
        """Whether the user set the limit, or lifted it."""
        return self.variable in os.environ or NO_LIMITS in os.environ

    def value(self) -> int:
        """Return the limit that holds now.

        Raises:
            ValueError: The variable is no number.
        """
        if NO_LIMITS in os.environ:
            return sys.maxsize
        text = os.environ.get(self.variable, str(self.default))
        if not (text.isascii() and text.isdecimal()) or len(text) > 18:
            raise ValueError(f"{self.variable} must be a number of {self.what}; got {text!a}.")
        return int(text)


MOST_ROWS = Limit("RANKRISE_MOST_ROWS", 20_000_000, "rows")
MOST_BYTES = Limit("RANKRISE_MOST_BYTES", 40_000_000, "unpacked bytes")
MOST_NUMBERS = Limit("RANKRISE_MOST_NUMBERS", 250_000_000, "numbers that a run holds")
