"""Publish a run of lora-prediction: `python studies/write_prediction.py runs/lora-prediction/paper-0`.

Writes `results/lora_prediction.json` from the run, and the tables of docs/checkpoints.md from that file; without a run
only the tables again.
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # the files beside this one are imported as `studies`

from studies.prediction_result import Prediction, prediction_lines, read_prediction  # noqa: E402

from rankrise.store import load_spec  # noqa: E402

PAGE, RESULT = ROOT / "docs" / "checkpoints.md", ROOT / "results" / "lora_prediction.json"
_BLOCK = re.compile(r"(<!-- prediction: [^>]*-->\n).*?(<!-- end of prediction -->)", flags=re.S)


def result_of(run: Path, *, unfinished: bool) -> dict[str, object]:
    """What is committed: the result, the spec and where it ran."""
    config = load_spec(run)["config"]
    environment = json.loads((run / "env.json").read_text(encoding="utf-8"))
    return {**read_prediction(run, unfinished=unfinished).to_json(), **config, "environment": environment}


def page_lines(record: dict[str, object]) -> list[str]:
    """The tables, and what they were measured on."""
    result = Prediction.from_json(record)
    library, environment = result.library, record["environment"]
    tokens = library["num_tokens"]
    where = (
        f"Python {library['python']}'s library: {sum(library['num_files'].values())} files, "
        f"{tokens['train']:,} training, {tokens['validation']:,} validation and {tokens['test']:,} test tokens. "
        f"{environment['accelerator'] or environment['processor']}, "
        + ", ".join(f"{name} {environment['packages'][name]}" for name in ("torch", "peft"))
        + "."
    )
    return [*prediction_lines(result), "", where]


def with_tables(page: str, record: dict[str, object]) -> str:
    """The page with its tables made again."""
    text = "\n".join(page_lines(record))
    return _BLOCK.sub(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", page)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", help="folder of a finished run")
    parser.add_argument("--unfinished", action="store_true", help="take a run that was cut off, as far as it is whole")
    options = parser.parse_args()
    if options.run is not None:
        record = result_of(options.run, unfinished=options.unfinished)
        RESULT.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        print(f"wrote {RESULT.relative_to(ROOT)}")
    record = json.loads(RESULT.read_text(encoding="utf-8"))
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), record), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
