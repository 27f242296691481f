"""Write the demo page again: `python -m rankrise.report.demo docs/demo/index.html [--runs DIR]`.

Without `--runs` the numbers inside the page stay and its looks are made new. With it, numbers come from the runs in
`DIR/<experiment>/<hash>`: the family toy-flow and toy-stages at smoke with seed 4, vit-digits at small.
"""

import argparse
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    from rankrise.report import demo_data, read_demo, write_demo
    from rankrise.store import environment, has_run, is_sealed

    parser = argparse.ArgumentParser(description="Write the demo page again.")
    parser.add_argument("page", type=Path)
    parser.add_argument("--runs", type=Path, help="take the numbers from finished runs below this folder")
    options = parser.parse_args(arguments)
    if options.runs is None:
        data = read_demo(options.page)
    else:
        folders = [folder for folder in sorted(options.runs.glob("*/*")) if has_run(folder) and is_sealed(folder)]
        names = {folder.parent.name for folder in folders}
        runs = {name: [folder for folder in folders if folder.parent.name == name] for name in sorted(names)}
        data = demo_data(runs, environment())
    write_demo(options.page, data)
    sys.stderr.write(f"wrote {options.page}\n")


if __name__ == "__main__":
    main()
