"""`rankrise list`: every experiment, whether its data is found, and how many of its runs are finished."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankrise._tables import table

if TYPE_CHECKING:
    from rankrise.lab.experiments import Experiment


def list_experiments(
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data sets. [default: data]", envvar="RANKRISE_DATA")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """List the experiments, whether the data of each scale is found, and how many runs are done."""
    from rankrise.lab.experiments import experiments

    records = [_record(experiment, data, out) for experiment in experiments().values()]
    if as_json:
        typer.echo(json.dumps(records, indent=1))
        return
    rows = [
        {
            "name": record["name"],
            **{scale: "ready" if not entry["missing"] else "no data" for scale, entry in record["scales"].items()},
            "done": record["done"],
            "what": record["title"],
        }
        for record in records
    ]
    typer.echo(table(rows, left=("name", "smoke", "small", "paper", "what")))
    if any("no data" in row.values() for row in rows):
        typer.echo(f"\nData is looked for in {data or 'data'}; --data DIR or RANKRISE_DATA=DIR names another folder.")
        typer.echo("`rankrise run NAME --dry-run` says what is missing, and how to get it.")


def _record(experiment: "Experiment", data: Path | None, out: Path) -> dict[str, Any]:
    from rankrise.lab.experiments import kind_of, missing_data, spec_hash

    return {
        "name": experiment.name,
        "title": experiment.title,
        "shows": experiment.shows,
        "scales": {
            scale: {
                "hash": spec_hash(spec),
                "data": kind_of(spec).data_name(spec),
                "missing": missing_data(spec, data),
            }
            for scale, spec in experiment.specs.items()
        },
        "done": _count_done(out / experiment.name),
    }


def _count_done(folder: Path) -> int:
    from rankrise.store import has_run, is_sealed

    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return sum(1 for path in found if has_run(path) and _is_readable_and(is_sealed, path))


def _is_readable_and(holds: Any, path: Path) -> bool:
    try:
        return bool(holds(path))
    except (OSError, ValueError):  # a damaged run does not count as done
        return False
