"""Where runs were made, from what each of them recorded."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path


def environment_of(runs: Mapping[str, Sequence[Path]]) -> dict[str, object]:
    """The environments of runs as one: where they differ, the values are listed.

    Args:
        runs: Folders by experiment.

    >>> environment_of({})
    {}
    """
    found = [_read(Path(folder)) for folder in dict.fromkeys(f for folders in runs.values() for f in folders)]
    return _merge([record for record in found if record])


def _merge(records: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Key by key; packages inside."""
    merged: dict[str, object] = {}
    for key in dict.fromkeys(key for record in records for key in record):
        values = [record[key] for record in records if record.get(key) is not None]
        inner = [value for value in values if isinstance(value, Mapping)]
        if inner:
            merged[key] = _merge(inner)
        else:
            texts = list(dict.fromkeys(str(value) for value in values))
            merged[key] = values[0] if len(texts) == 1 else " or ".join(texts) if texts else None
    return merged


def _read(folder: Path) -> Mapping[str, object]:
    try:
        record = json.loads((folder / "env.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
