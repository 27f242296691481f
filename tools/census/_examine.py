"""The examination of one model type: build it, resolve it, compare every layer with the forward."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from tools.census._disk import compare_with_disk
from tools.census._feed import Run, attention_forwards, forwards
from tools.census._forward import KINDS, Recorder, Softmax, randomise, recording
from tools.census._judge import Factors, Verdict, factors, judge
from tools.census._tiny import build
from torch import Tensor, nn

from rankrise.heads import AttentionLayer, HeadMap, resolve

# The note, by its first word, that must be there if a kind of operation is in the forward and not in the product.
NOTES = {
    "rotation": ("RoPE", "latent"),
    "norm": ("QK-norm", "latent", "inner norm"),
    "gate": ("gate", "sink", "query scale", "value bias"),
    "convolution": ("convolution",),
    "cap": ("cap",),
    "bias": ("biases",),
    "position": ("positions", "latent"),
}

# Notes on which queries meet which keys; with one of these, scores need not be those of all tokens with all tokens.
OTHER_TOKENS = ("sparse", "merged", "streams", "pooled")

# Notes on queries and keys that are made from different tokens.
CROSSES = ("cross-attention", "reduced", "pooled", "merged")


@dataclass
class Record:
    """What the census knows of a model type."""

    model_type: str
    outcome: str = ""
    why: str = ""
    layers: int = 0
    scheme: str = ""
    verified: int = 0
    notes: list[str] = field(default_factory=list)  # first words of the notes
    left_out: str = ""  # the notes on layers that are not read
    kinds: list[str] = field(default_factory=list)  # what the forward has beyond the products
    unverified: dict[str, str] = field(default_factory=dict)  # layer to what was seen
    disk: str = ""  # what the names on disk give: "same", or what differs

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def examine(model_type: str) -> Record:
    """Build, resolve and judge one model type."""
    record = Record(model_type)
    try:
        model = build(model_type)
    except Exception as failure:
        record.outcome, record.why = "could not be built", _one_line(failure)
        return record
    model = model.float()
    try:
        head_map = resolve(model)
    except ValueError as refusal:
        record.outcome = "refused" if has_softmax(model) else "no softmax attention"
        record.why = _one_line(refusal)
        return record
    except Exception as crash:
        record.outcome, record.why = "crashed", _one_line(crash)
        return record
    record.layers, record.scheme = len(head_map), head_map.scheme
    record.notes = sorted({note.split(":")[0] for layer in head_map for note in layer.notes})
    record.left_out = " ".join(n for n in head_map.notes if n.split(":")[0] in ("left out", "skipped", "not read"))
    randomise(model)
    try:
        verify(model, head_map, record)
    except Exception as failure:
        record.outcome, record.why = "not judged", f"the census failed: {_one_line(failure)}"
    record.disk, contradicts = compare_with_disk(model, head_map)
    if contradicts:
        record.outcome, record.why = "wrong", f"on disk: {record.disk}"
    return record


def has_softmax(model: nn.Module) -> bool:
    """Return whether a forward of the model or of a part of it has a softmax of a product of queries and keys.

    Where no forward pass can be run, the names of weights decide.
    """
    has_run = False
    for _, run in forwards(model, 0):
        recorder = Recorder(frozenset(), frozenset())
        with contextlib.suppress(Exception), torch.no_grad(), recorder:
            run()
            has_run = True
        if any(isinstance(event, Softmax) and event.of_product for event in recorder.events):
            return True
    return not has_run and any(re.search(r"att(n|ention)\.", name) for name, _ in model.named_parameters())


@dataclass
class _Findings:
    """What the forwards of a model have shown so far."""

    layers: dict[str, AttentionLayer]
    parts: dict[str, Factors]
    held: set[str] = field(default_factory=set)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # layer to what no note names
    kinds: Counter[str] = field(default_factory=Counter)


def verify(model: nn.Module, head_map: HeadMap, record: Record) -> None:
    """Fill in how many layers the forward confirms, and what it has beyond the products."""
    layers = {layer.name: layer for layer in head_map}
    findings = _Findings(layers, {name: factors(layer, model) for name, layer in layers.items()})
    for path, _ in forwards(model, 0):
        wanted = [name for name in layers if name not in findings.held and _below(name, path)]
        if wanted:
            _look(model, findings, wanted, lambda seed, path=path: _forward_of(model, path, seed))
    for name, layer in layers.items():
        alike = {_kind_of(model, layers[other]) for other in findings.held}
        differs = name in findings.verdicts and findings.verdicts[name].judged
        if name not in findings.held and (differs or _kind_of(model, layer) not in alike):
            _call_directly(model, findings, name)
    record.verified = len(findings.held)
    record.kinds = sorted(findings.kinds)
    record.unverified = {n: describe(findings.verdicts.get(n)) for n in layers if n not in findings.held}
    record.unverified |= findings.missing
    _decide(record, model, findings)


def _forward_of(model: nn.Module, path: str, seed: int) -> Run:
    return next(run for where, run in forwards(model, seed) if where == path)


def _call_directly(model: nn.Module, findings: _Findings, name: str) -> None:
    module = model.get_submodule(name)
    head_dim = findings.layers[name].head_dim
    width, key_width = (findings.parts[name].heads[role].shape[1] for role in "qk")
    ways = partial(
        attention_forwards, module, width, key_width, head_dim, crosses=_noted_as(findings.layers[name], CROSSES)
    )
    for index in range(len(ways(0))):

        def run(seed: int, index: int = index) -> Run:
            return ways(seed)[index]

        try:
            with torch.no_grad():
                run(0)()
        except Exception:
            continue
        _look(model, findings, [name], run, by_itself=True)
        if name in findings.held:
            return


def _look(
    model: nn.Module, findings: _Findings, names: Sequence[str], run: Callable[[int], Run], *, by_itself: bool = False
) -> None:
    """Judge layers by one forward: without all that products leave out, then with one kind of it at a time."""
    layers = findings.layers
    neutral, met = _verdicts(model, findings, names, frozenset(KINDS), run)
    findings.verdicts |= {n: v for n, v in neutral.items() if n not in findings.verdicts or v.ran}
    good = [name for name in names if neutral[name].holds]
    findings.held |= set(good)
    for kind in (kind for kind in KINDS if good and kind in met):
        found, _ = _verdicts(model, findings, good, frozenset(KINDS) - {kind}, run)
        for name in good:
            if found[name].comparable and not found[name].holds:
                findings.kinds[kind] += 1
                if not _noted_as(layers[name], NOTES[kind]):
                    findings.missing.setdefault(name, f"its forward has a {kind} that no note names")
    for name in good:
        if neutral[name].scaled and not _noted_as(layers[name], ("scale", "merged")):
            findings.missing.setdefault(name, "values are multiplied by a constant, which no note says")
        if not by_itself and neutral[name].crosses and not _noted_as(layers[name], CROSSES):
            findings.missing.setdefault(name, "queries and keys read different inputs, which no note says")


def _decide(record: Record, model: nn.Module, findings: _Findings) -> None:
    layers, held, verdicts = findings.layers, findings.held, findings.verdicts
    alike = {_kind_of(model, layers[name]) for name in held}
    rest = [name for name in layers if name not in held and _kind_of(model, layers[name]) not in alike]
    judged = [name for name in layers if name not in held and name in verdicts and verdicts[name].judged]
    bad = [name for name in judged if not _noted_as(layers[name], OTHER_TOKENS)]
    rest = [name for name in rest if not _noted_as(layers[name], OTHER_TOKENS)]
    if findings.missing:
        name, why = next(iter(findings.missing.items()))
        record.outcome, record.why = "wrong", f"{name}: {why}"
    elif bad:
        record.outcome, record.why = "wrong", f"{bad[0]}: {describe(verdicts[bad[0]])}"
    elif rest:
        record.outcome, record.why = "not judged", f"{rest[0]}: {describe(verdicts.get(rest[0]))}"
    else:
        record.outcome = "resolved with a note" if record.notes or record.left_out else "verified"


def _verdicts(
    model: nn.Module,
    findings: _Findings,
    names: Sequence[str],
    without: frozenset[str],
    run: Callable[[int], Run],
) -> tuple[dict[str, Verdict], set[str]]:
    """Return what two inputs show about the layers, and the kinds of operations of which some were removed."""
    parts = {name: findings.parts[name] for name in names}
    addresses = frozenset(storage for part in parts.values() for storage in part.storages.values())
    outputs = frozenset(part.storages["o"] for part in parts.values())
    records = []
    met = {"position"} if any(part.views["k"].down for part in parts.values()) else set()
    with _without_rotated(model, findings.layers, parts, "position" in without):
        for seed in (1, 2):
            with recording(model, names, addresses, outputs, without) as recorder, torch.random.fork_rng():
                torch.manual_seed(0)
                with contextlib.suppress(Exception):
                    run(seed)()
            records.append(recorder.events)
            met |= recorder.met
    return {name: judge(part, *records) for name, part in parts.items()}, met


def _kind_of(model: nn.Module, layer: AttentionLayer) -> tuple[str, bool]:
    return type(model.get_submodule(layer.name)).__name__, "cross" in layer.name.lower()


def describe(verdict: Verdict | None) -> str:
    """Say in words what the forward showed."""
    if verdict is None:
        return "no forward could be run"
    if not verdict.ran:
        return "the forward did not use its weights"
    if not verdict.comparable:
        return "how many tokens it reads depends on the input"
    if not verdict.softmax:
        return "no softmax between its queries and its output"
    return "the scores differ" if not verdict.scores else "the output differs" if not verdict.output else "equal"


def _noted_as(layer: AttentionLayer, words: Sequence[str]) -> bool:
    return any(note.startswith(tuple(words)) for note in layer.notes)


def _below(name: str, path: str) -> bool:
    return not path or name == path or name.startswith(f"{path}.")


@contextlib.contextmanager
def _without_rotated(
    model: nn.Module, layers: dict[str, AttentionLayer], parts: dict[str, Factors], wanted: bool
) -> Iterator[None]:
    """Set the rotated key of latent attention to zero, which its product leaves out."""
    saved: list[tuple[Tensor, Tensor]] = []
    for name in parts if wanted else ():
        down = layers[name].roles["k"].down
        if down is not None:
            weight = model.get_parameter(down.parameter)
            saved.append((weight, weight.detach().clone()))
            with torch.no_grad():
                weight[down.rank :] = 0
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, before in saved:
                weight.copy_(before)


def _one_line(failure: Exception) -> str:
    """Return the beginning of a message on one line, without places on this machine."""
    said = re.sub(r" (neither )?in <module .*", "", " ".join(f"{type(failure).__name__}: {failure}".split()))
    return said if len(said) <= 200 else f"{said[:200].rpartition(' ')[0]} …"
