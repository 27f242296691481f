"""From runs to verdicts: runs of one seed are matched, and each missing run is named in the reason."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankrise.lab.claims import (
    _attention_entropy,
    _full_heads,
    _laziness,
    _questions,
    _scales_and_data_sets,
    _single_networks,
    _slingshots,
    _toy,
    _variants,
)
from rankrise.lab.claims._claim import Claim, Predicate, Verdict
from rankrise.lab.claims._judge import judge, untested
from rankrise.lab.claims._outcomes import TOPICS
from rankrise.lab.experiments import SCALES, experiments, find_experiment, to_json, vary
from rankrise.lab.experiments.specs import ENTRIES
from rankrise.runs import NotMeasurable, RunData, group_runs
from rankrise.store import write_json

PREDICATES: tuple[Predicate, ...] = (
    *_toy.PREDICATES,
    *_full_heads.PREDICATES,
    *_questions.PREDICATES,
    *_single_networks.PREDICATES,
    *_scales_and_data_sets.PREDICATES,
    *_variants.PREDICATES,
    *_slingshots.PREDICATES,
    *_attention_entropy.PREDICATES,
    *_laziness.PREDICATES,
)
_PIPE = r"\|"  # how a cell of a table in Markdown writes |
_LENGTH = ("epochs", "warmup_epochs", "track_every", "num_spectra", "evaluate_every")  # fields of `training`


def claims() -> list[Claim]:
    """Every claim, in the order of the paper.

    >>> claims()[0].id
    'one-joins-per-stage@toy-stages'
    """
    return [predicate.claim for predicate in PREDICATES]


def evaluate_claims(runs: Mapping[str, Sequence[Path]], *, absent: Mapping[str, str] | None = None) -> list[Verdict]:
    """Test every claim on the runs there are.

    Seeds are independent repeats, and the heads of one network are not. A number is therefore taken over heads and
    layers within a run, and its 95% interval (Student's t) over runs. The mean over seeds decides; if a claim says that
    something is always so, its worst seed decides and there is no interval. Experiments that a claim compares are
    compared seed by seed. A run tests nothing if its data only stand in for the experiment's own data, as at scale
    `smoke`, or if it has fewer than ten measurements. A run of another scale than `paper` counts, and the verdict names
    the difference: "scale small", "60 of 500 epochs". A run of `rankrise reproduce` is of the scale that was asked for.

    Args:
        runs: Folders of finished runs by experiment, one for each seed.
        absent: Why experiments have no run, a sentence for each experiment, by name. Claims that are not tested because
            of a missing run give this sentence as their reason.

    Raises:
        ValueError: A folder is no run of an experiment.

    >>> verdict = evaluate_claims({})[0]
    >>> verdict.verdict, verdict.reason
    ('not tested', 'No run of toy-stages. `rankrise run toy-stages` makes one.')
    """
    data = {name: [RunData(Path(folder)) for folder in folders] for name, folders in runs.items()}
    for run in (run for members in data.values() for run in members):
        if not run.spec:
            raise ValueError(f"{run.folder} must be the run of an experiment; its spec.json holds none.")
    return [_evaluate(predicate, data, absent or {}) for predicate in PREDICATES]


def write_verdicts(folder: Path, verdicts: Sequence[Verdict]) -> Path:
    """Write the verdicts into `verdicts.json` beside the runs, a list of records, for whoever shows these runs.

    Raises:
        OSError: The folder cannot be written.

    >>> import json, tempfile
    >>> json.loads(write_verdicts(Path(tempfile.mkdtemp()), evaluate_claims({})[:1]).read_text())[0]["verdict"]
    'not tested'
    """
    path = folder / "verdicts.json"
    write_json(path, [verdict.to_json() for verdict in verdicts], "verdicts")
    return path


def _evaluate(predicate: Predicate, data: Mapping[str, Sequence[RunData]], absent: Mapping[str, str]) -> Verdict:
    present = [name for name in predicate.needs if data.get(name)]
    missing = [name for name in predicate.needs if name not in present]
    if missing and len(present) < (predicate.at_least or len(predicate.needs)):
        names = " ".join(missing)
        reasons = dict.fromkeys(absent[name] for name in missing if name in absent)
        if reasons:
            return untested(predicate, " ".join(reasons))
        return untested(predicate, f"No run of {', '.join(missing)}. `rankrise run {names}` makes one.")
    for name in present:
        if len(group_runs(data[name])) > 1:
            return untested(predicate, f"Runs of {name} must differ in their seed only. Pass those of one scale.")
    by_seed = [{run.seed: run for run in data[name]} for name in present]
    seeds = sorted(set.intersection(*(set(found) for found in by_seed)))
    if not seeds:
        return untested(predicate, f"No seed was run of all of {', '.join(present)}. Run them with the same --seed.")
    used = [[found[seed] for found in by_seed] for seed in seeds]
    if predicate.shared and any(predicate.shared(run.spec) != predicate.shared(used[0][0].spec) for run in used[0]):
        return untested(predicate, f"Runs of {', '.join(present)} must be of {predicate.one_of}. Pass such runs.")
    for name, run in zip(present, used[0], strict=True):
        if stand_in := _stand_in(name, run):
            return untested(predicate, stand_in)
    try:
        findings = [predicate.measure(*group) for group in used]
    except NotMeasurable as error:
        return untested(predicate, str(error))
    except (OSError, ValueError):  # its message would publish a path of this machine
        return untested(predicate, f"A run of {', '.join(present)} cannot be read: move it away, and run it again.")
    sources = tuple(dict.fromkeys(run.source for group in used for run in group))
    apart = dict.fromkeys(departure(name, run.spec) for name, run in zip(present, used[0], strict=True))
    return judge(predicate, seeds, findings, sources, "; ".join(words for words in apart if words))


def _stand_in(name: str, run: RunData) -> str:
    """Why a run is on other data than its experiment is about, as at scale `smoke`; empty if it is on those data."""
    wanted = to_json(find_experiment(name).paper).get("data", {}).get("name")
    got = run.spec.get("data", {}).get("name")
    if wanted is None or got is None or got == wanted:
        return ""
    return f"{run.source} was trained on {got}, which stands in for {wanted}: run it at a larger scale."


@functools.cache
def _of_plans(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Scales at which `rankrise reproduce` runs an experiment for other epochs than its own, and what it runs there."""
    known = experiments().get(name)
    if known is None:
        return []
    return [
        (scale, to_json(vary(known.spec(entry.scale), epochs=entry.epochs)))
        for scale, entries in ENTRIES.items()
        for entry in entries
        if entry.name == name and entry.epochs is not None and not entry.by_hand
    ]


@functools.cache
def _registered(name: str) -> dict[str, dict[str, Any]]:
    """The specs of an experiment by scale, from the largest scale to the smallest; empty for an unknown experiment."""
    known = experiments().get(name)
    return {scale: to_json(known.spec(scale)) for scale in reversed(SCALES)} if known else {}


def departure(name: str, spec: Mapping[str, Any]) -> str:
    """How a run differs from its experiment at scale `paper`, such as "60 of 500 epochs"; empty if it does not.

    >>> from dataclasses import replace
    >>> from rankrise.lab.experiments import experiments, to_json, vary
    >>> known = experiments()["vit-cifar10"]
    >>> departure("vit-cifar10", to_json(vary(known.paper, seed=3)))
    ''
    >>> departure("vit-cifar10", to_json(vary(known.paper, epochs=60)))
    '60 of 500 epochs'
    >>> departure("vit-cifar10", to_json(known.small))
    'scale small'
    >>> departure("vit-digits", to_json(experiments()["vit-digits"].smoke))
    'scale smoke'
    >>> departure("vit-digits", to_json(vary(experiments()["vit-digits"].small, epochs=15)))  # as `reproduce` does it
    'scale smoke, 15 epochs'
    >>> departure("vit-cifar10", to_json(replace(known.paper, training=replace(known.paper.training, track_every=7))))
    'a spec of its own'
    """
    specs = _registered(name)
    for scale, other in specs.items():
        if {**other, "seed": 0} == {**spec, "seed": 0}:
            return _words(scale)
    for plan, other in _of_plans(name):
        if {**other, "seed": 0} == {**spec, "seed": 0}:
            return f"{_words(plan)}, {spec['training']['epochs']} epochs"
    for scale, other in specs.items():
        if "training" in spec and _rest(other) == _rest(spec):
            done, whole = spec["training"]["epochs"], other["training"]["epochs"]
            if done == whole:
                break  # the runs differ in their warm-up, or in the steps at which they were measured
            return ", ".join(words for words in (_words(scale), f"{done} of {whole} epochs") if words)
    return "a spec of its own"


def _words(scale: str) -> str:
    return "" if scale == "paper" else f"scale {scale}"


def _rest(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec without its seed, its length, and the steps at which the run is measured."""
    training = spec.get("training")
    if not isinstance(training, Mapping):
        return {**spec, "seed": 0}
    return {**spec, "seed": 0, "training": {key: value for key, value in training.items() if key not in _LENGTH}}


def describe_claims() -> str:
    """All claims as a page in Markdown, each with its exact predicate; `docs/claims.md` holds this text."""
    lines = [
        "# Claims",
        "",
        "What is tested, exactly. `rankrise.lab.claims.evaluate_claims` reads these numbers from the tables",
        "of runs; a claim *holds* if the mean over seeds is as the last column says, and its 95% interval over seeds",
        "is given beside it, with ? where the interval contains the bound: more seeds could turn the verdict. A claim",
        "that something is always so, of all stages and all tasks, would be averaged away by that: its number is that",
        "of the *worst seed*, it has no interval, and one seed that contradicts it is enough. Heads and layers of one",
        "network are not independent: they never count as repeats. Layers count from 0. Where a number or a bound is",
        "known to be chosen after a look at runs, it says so; of the bounds of networks no record was kept. The page",
        "is made by `describe_claims()`, and a test compares the two.",
        "",
        "How seeds were taken: from 0 on, none left out. At scale `smoke` the toy has seeds 0, 1 and 2, its limit",
        "(`toy-stages`) and the flow nearest to it (`toy-flow-1e-32`) 0 to 11; at `small` seed 0 alone; at the",
        "paper's size 0, 1 and 2. Networks have seed 0; those on digits at `smoke` and `small`, but for their",
        "variants, and those by initial scale at the paper's size on CIFAR-10, have 0, 1 and 2. Full heads, readers'",
        "questions and gauges have 3, 4 and 5, because 0, 1 and 2 set their bounds. The tables of full heads at the",
        "paper's size in this repository are of 0, 1 and 2 all the same, which do not judge. A table with missing",
        "steps or with numbers that are not finite tests nothing, runs of several tasks or recipes are not compared,",
        "and a number that is infinite in some seeds only has no mean: such claims are *not tested*. A run that is",
        "not of scale `paper` is judged, and its verdict says what it is: *scale small*, *60 of 500 epochs*.",
    ]
    for topic, title in TOPICS.items():
        lines += ["", f"## {title}", "", "| claim | of | circuit; layers | number | must be |", "|---|---|---|---|---|"]
        for predicate in PREDICATES:
            if predicate.claim.topic == topic:
                claim = predicate.claim
                where = f"{claim.circuit}; {claim.layers}" if claim.layers else claim.circuit
                text = f"`{claim.id}`: {claim.statement} ({claim.reference})"
                cells = (text, _short(predicate), where, claim.aggregate, claim.threshold)
                lines.append(f"| {' | '.join(cell.replace('|', _PIPE) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _short(predicate: Predicate) -> str:
    text = ", ".join(f"`{name}`" for name in predicate.needs)
    return text if predicate.at_least is None else f"{text}; at least {predicate.at_least} of them"
