"""`python -m tools.census`: examine every model type of the installed transformers and write docs/families.md."""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.census._page import page
from tools.census._workers import run_all

PAGE = Path(__file__).parents[2] / "docs" / "families.md"


def main() -> None:
    """Examine the types that are named, or all of them, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*", help="model types; none means all")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write every record here, a line each")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page is written")
    arguments = parser.parse_args()
    out = arguments.json.open("w") if arguments.json else None
    records = []
    for record in take(arguments.types, workers=arguments.workers):
        records.append(record)
        if out:
            out.write(json.dumps(record) + "\n")
            out.flush()
        print(f"\r{len(records)}", end="", file=sys.stderr)
    print(Counter(record["outcome"] for record in records))
    if not arguments.types:
        arguments.page.write_text(page(records), encoding="utf-8")
        print(f"\nwrote {arguments.page}", file=sys.stderr)


def take(types: Sequence[str] = (), *, workers: int = 2) -> Iterator[dict[str, Any]]:
    """Yield the record of every model type, or of those that are named."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers
    import transformers.masking_utils
    import transformers.modeling_utils
    from tools.census._examine import examine
    from tools.census._tiny import model_types

    transformers.logging.set_verbosity_error()

    def timed(name: str) -> dict[str, Any]:
        start = time.process_time()
        return examine(name).as_dict() | {"seconds": round(time.process_time() - start, 1)}

    yield from run_all(types or model_types(), timed, workers=workers)


if __name__ == "__main__":
    main()
