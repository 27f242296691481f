"""`python -m rankrise` is the command `rankrise`."""

from rankrise.cli import main

main()
