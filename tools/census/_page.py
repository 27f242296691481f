"""The page docs/families.md, made of the records of the census."""

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

OUTCOMES = {
    "verified": "both circuits of every head are those of the forward, and nothing is left out",
    "resolved with a note": "likewise, and the notes name what the forward has beyond the products",
    "not judged": "resolved, but no forward with random inputs could be run that uses these layers",
    "wrong": "the forward contradicts the reading, or has something that no note names",
    "refused": "there is softmax attention, or no forward that would show it can be run; refused with the reason",
    "crashed": "an error that is no refusal, or a process that died twice",
    "no softmax attention": "nothing to read: convolutions, state spaces, linear attention",
    "could not be built": "the default config, made small, gives no model here, or a library is missing",
}


def page(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the page.

    Args:
        records: What `examine` found, as plain values.
    """
    release = version("transformers")
    counts = Counter(record["outcome"] for record in records)
    without = counts["no softmax attention"] + counts["could not be built"]
    attention = len(records) - without
    resolved = attention - counts["refused"] - counts["crashed"]
    same = sum(record.get("disk") == "same" for record in records)
    lines = [
        "# Families of transformers",
        "",
        "This page is written by `make census`. [Which weights, exactly](heads.md) explains layouts and notes.",
        "",
        f"Every model type of transformers {release} is built small and random from its default config, resolved, and",
        "compared with its own attention. Scores and outputs of every head are predicted from the cut weights and the",
        "recorded inputs of the projections, for two inputs, and must be those that the softmax and W_O of the forward",
        "give. What a product leaves out (rotations, norms, gates, biases, relative positions) is taken out of the",
        "forward for this, and put back one kind at a time: if the reading then fails, a note of the layer must name",
        "that kind. Where a token attends to some others only (the note sparse), a layer whose scores cannot be",
        "compared is not held against the reading. `tools/census` does this.",
        "",
        f"Of {len(records)} types, {attention} are built here and have softmax attention; {resolved} of them resolve.",
        f"Saved and read again by the names on disk and config.json alone, {same} of these give the same heads in",
        "every layer; where the files give less, the last column says what.",
        "",
        "| outcome | types | meaning |",
        "|---|---|---|",
        *(f"| {outcome} | {counts[outcome]} | {meaning} |" for outcome, meaning in OUTCOMES.items()),
        "",
        "| model type | outcome | layout | notes, or the reason | on disk |",
        "|---|---|---|---|---|",
        *(_row(record) for record in sorted(records, key=lambda record: record["model_type"])),
    ]
    return "\n".join(lines) + "\n"


def _row(record: Mapping[str, Any]) -> str:
    notes = [*record.get("notes", ()), *(["layers left out"] if record.get("left_out") else ())]
    said = record["why"] or ", ".join(notes)
    cells = (record["model_type"], record["outcome"], record.get("scheme", ""), said, record.get("disk", ""))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
