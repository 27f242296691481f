"""`rankrise env`: the hardware and the versions of this machine, for bug reports and to keep beside results."""

import json
from typing import Annotated

import typer


def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Print hardware and versions; nothing that identifies the user."""
    from rankrise.store import environment

    record = environment()
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    packages = record.pop("packages")
    assert isinstance(packages, dict)
    rows = {**record, **packages}
    for name, value in rows.items():
        typer.echo(f"{name:<24}{'-' if value is None else value}")
