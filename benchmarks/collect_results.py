"""Thin copies of finished runs, for `results/runs`: `python benchmarks/collect_results.py runs results/runs [NAME...]`.

Copies `runs/<name>/<hash>` to `results/runs/<name>/<hash>`; what is there already is written again.
"""

import argparse
from pathlib import Path

from rankrise.lab.experiments import thin_run
from rankrise.store import has_run, is_sealed


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="folder of the runs")
    parser.add_argument("out", type=Path, help="folder of the copies")
    parser.add_argument("names", nargs="*", help="experiments; all unless given")
    options = parser.parse_args()
    for folder in sorted(options.runs.glob("*/*")):
        if has_run(folder) and is_sealed(folder) and (not options.names or folder.parent.name in options.names):
            copy = thin_run(folder, options.out / folder.parent.name / folder.name)
            size = sum(path.stat().st_size for path in copy.iterdir())
            print(f"{copy}: {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
