"""Write the demo page: `python tools/write_demo.py docs/demo/index.html --runs results/runs`."""

import argparse
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    from rankrise.lab.experiments import runs_by_experiment
    from rankrise.lab.report import demo_data, write_demo

    parser = argparse.ArgumentParser(description="Write the demo page.")
    parser.add_argument("page", type=Path)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs that it shows")
    options = parser.parse_args(arguments)
    write_demo(options.page, demo_data(runs_by_experiment(options.runs)))
    sys.stderr.write(f"wrote {options.page}\n")


if __name__ == "__main__":
    main()
