"""What a report says about runs, claims and environments, as rows of text."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rankrise.lab.claims import Verdict
from rankrise.lab.experiments import experiments, family_members, summarise_run
from rankrise.lab.figures import data_name, describe_run
from rankrise.runs import RunData
from rankrise.store import UntrustedFolder, load_spec, read_json

SIGNS = {"holds": "✓", "fails": "✗", "not tested": "–"}
_SHOWN = {
    "test_accuracy": "test accuracy",
    "train_accuracy": "train accuracy",
    "test_loss": "test loss",
    "loss": "loss",
}


def verdict_rows(verdicts: "Sequence[Verdict]") -> list[dict[str, Any]]:
    """A row for each verdict."""
    return [
        {
            "claim": v.claim,
            "verdict": v.verdict,
            "sign": SIGNS.get(v.verdict, "?"),
            "kind": v.verdict.replace(" ", "-") if v.verdict in SIGNS else "unknown",
            "value": _value(v),
            "n": v.n,
            "reason": v.reason,
            "runs": v.runs,
        }
        for v in verdicts
    ]


def claim_groups(verdicts: "Sequence[Verdict]", runs: "Mapping[str, Sequence[Path]]") -> list[dict[str, Any]]:
    """The claims that were tested, grouped by what they are about; all claims about the toy are one group."""
    found: dict[str, list[Verdict]] = {}
    for v in verdicts:
        if v.verdict != "not tested":
            found.setdefault(v.claim.about, []).append(v)
    return [
        {
            "name": name,
            "what": _of_group(members[0].claim.of, runs),
            "counts": counts(members),
            "rows": verdict_rows(members),
        }
        for name, members in found.items()
    ]


def _of_group(of: str, runs: "Mapping[str, Sequence[Path]]") -> str:
    """What was run of an experiment, or of the first member of a family that has runs; empty without runs."""
    members = {experiment.name for experiment in family_members(of)}
    names = [name for name in runs if runs[name] and (name == of or name in members)]
    return describe_run(runs[names[0]][0], of_family=of not in runs) if names else ""


def counts(verdicts: "Sequence[Verdict]") -> str:
    """How many claims hold, fail, and are not tested, in words.

    >>> counts([])
    'no claims were evaluated'
    """
    parts = [(sum(v.verdict == name for v in verdicts), name) for name in SIGNS]
    words = {"holds": "hold", "fails": "fail", "not tested": "not tested"}
    named = [f"{number} {words[name]}" for number, name in parts if number]
    return ", ".join(named) if named else "no claims were evaluated"


def ran(runs: "Mapping[str, Sequence[Path]]", verdicts: "Sequence[Verdict]") -> str:
    """How much was run, of what size, and on which data, in a sentence.

    Args:
        runs: Folders by experiment.
        verdicts: What was made of them; they know how the runs differ from the paper's size.

    >>> ran({}, [])
    'nothing.'
    """
    folders = list(dict.fromkeys(Path(folder) for members in runs.values() for folder in members))
    if not folders:
        return "nothing."
    found = [RunData(folder) for folder in folders]
    data = dict.fromkeys(data_name(run) for run in found if "training" in run.spec)
    what = [*(["the toy"] if any("training" not in run.spec for run in found) else []), *_networks(list(data))]
    sizes = {v.apart for v in verdicts if v.value is not None}
    num = len(folders)
    return f"{num} run{'' if num == 1 else 's'} {_size(sizes)}: {', and '.join(what)}."


def _size(apart: Collection[str]) -> str:
    """How the runs compare with the paper's size, in words.

    >>> _size({""}), _size({"scale smoke"}), _size({"", "60 of 500 epochs"}), _size(())
    ("at the paper's size", 'at scale smoke', 'of several sizes', 'of which no claim can be judged')
    """
    if not apart:
        return "of which no claim can be judged"
    if len(apart) > 1:
        return "of several sizes"
    one = next(iter(apart))
    return f"at {one}" if one else "at the paper's size"


def _networks(data: list[str]) -> list[str]:
    """Networks by their data, in words.

    >>> _networks(["digits", "WikiText-2"])
    ['networks on digits and WikiText-2']
    """
    if not data:
        return []
    return [f"networks on {' and '.join(part for part in (', '.join(data[:-1]), data[-1]) if part)}"]


def run_rows(runs: "Mapping[str, Sequence[Path]]", out: Path) -> list[dict[str, Any]]:
    """A row for each experiment: what it is, its runs with links from `out`, and how each run ended."""
    return [
        {
            "name": name,
            "what": _what(name, Path(folders[0])),
            "runs": [_run(Path(folder), out) for folder in folders],
        }
        for name, folders in runs.items()
        if folders
    ]


def _what(name: str, folder: Path) -> str:
    """What the runs are, by their own spec; for a toy, whose spec says less, the title comes first."""
    known = experiments()
    words = describe_run(folder)
    spec = RunData(folder).spec
    is_toy = "task" in spec or spec.get("model", {}).get("kind") == "toy_head"
    return f"{known[name].title}. {words}" if is_toy and name in known else words


def environment_of(runs: Mapping[str, Sequence[Path]]) -> dict[str, object]:
    """The environments of all runs as one record; where they differ, the record lists the values.

    Args:
        runs: Folders by experiment.

    >>> environment_of({})
    {}
    """
    found = [_environment(Path(folder)) for folder in dict.fromkeys(f for folders in runs.values() for f in folders)]
    return _merged([record for record in found if record])


def _merged(records: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Merge records key by key, and mappings inside them, such as that of the packages, in the same way."""
    merged: dict[str, object] = {}
    for key in dict.fromkeys(key for record in records for key in record):
        values = [record[key] for record in records if record.get(key) is not None]
        inner = [value for value in values if isinstance(value, Mapping)]
        if inner:
            merged[key] = _merged(inner)
        else:
            texts = list(dict.fromkeys(str(value) for value in values))
            merged[key] = values[0] if len(texts) == 1 else " or ".join(texts) if texts else None
    return merged


def _environment(folder: Path) -> Mapping[str, object]:
    try:
        with UntrustedFolder(folder) as inner:
            record = read_json(inner, "env.json")
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def environment_rows(environment: Mapping[str, object]) -> list[tuple[str, str]]:
    """The names and values of an environment; packages share one row with their versions.

    >>> environment_rows({"python": "3.12", "packages": {"torch": "2.13", "peft": None}})
    [('python', '3.12'), ('packages', 'torch 2.13')]
    """
    rows = []
    for name, value in environment.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {inner}" for key, inner in value.items() if inner is not None)
        if value is not None:
            rows.append((name.replace("_", " "), str(value)))
    return rows


def _run(folder: Path, out: Path) -> dict[str, Any]:
    config = load_spec(folder).get("config", {})
    spec = config.get("spec", {}) if isinstance(config, Mapping) else {}
    summary = summarise_run(folder)
    numbers = [f"{label} {summary.scalars[name]:.4g}" for name, label in _SHOWN.items() if name in summary.scalars]
    epochs = spec.get("training", {}).get("epochs")
    return {
        "hash": folder.name,
        "seed": spec.get("seed", ""),
        "length": f"{epochs} epochs" if epochs else f"{summary.step} points",
        "numbers": ", ".join(numbers[:2]),
        "link": link(folder, out),
    }


def link(folder: Path, out: Path) -> str:
    """A link from a page in `out` to a folder. It is relative, so that no path of this machine is published.

    >>> link(Path("runs/javascript:alert(1)/0"), Path("report"))
    './../runs/javascript%3Aalert%281%29/0/'
    """
    relative = os.path.relpath(folder, out)
    return "./" + quote(Path(relative).as_posix()) + "/"


def _value(verdict: Verdict) -> str:
    if verdict.value is None:
        return ""
    return f"{verdict.value:.3g} [{verdict.interval}]" if verdict.interval else f"{verdict.value:.3g}"
