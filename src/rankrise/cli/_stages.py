"""`rankrise stages`: Algorithm 1, and the flow at chosen α against it, from the shell."""

import csv
import json
import math
import re
import runpy
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from rankrise._tables import table
from rankrise.cli._output import progress

if TYPE_CHECKING:
    from rankrise.theory import DiagonalNetwork, Stages, StageTimes

Rows = list[dict[str, object]]
Label = Callable[[int], str]


def stages(
    dim: Annotated[int, typer.Option(help="Token dimension d of the teacher task; the head has 2d weights.")] = 8,
    tokens: Annotated[int, typer.Option(help="Number of tokens in a sample.")] = 10,
    samples: Annotated[int, typer.Option(help="Number of samples.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the task and of θ0.")] = 0,
    data: Annotated[
        Path | None,
        typer.Option("--input", help="Own data: an .npz with x and y both (N, n, d), or x (N, p) and y (N,)."),
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="Own network: FILE.py:NAME of a function h(x, q); the file is run.")
    ] = None,
    num_weights: Annotated[int | None, typer.Option(help="Length of q; needed with --network.")] = None,
    alpha: Annotated[list[float] | None, typer.Option(help="Also solve the flow at this α; repeatable.")] = None,
    log10_alpha: Annotated[
        list[float] | None, typer.Option(help="Also solve the flow at this log10 α, of any size; repeatable.")
    ] = None,
    t_end: Annotated[
        float | None, typer.Option(help="Rescaled time at which everything ends [default: past all]")
    ] = None,
    predict: Annotated[bool, typer.Option(help="Also predict the run at each α, by the finite-α form.")] = True,
    max_stages: Annotated[int | None, typer.Option(help="Stop Algorithm 1 after this many stages.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for stages.csv, times.csv and stages.json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Predict every stage of a diagonal attention head (or linear network): who activates, when, with which sign.

    Without α: the limit α → 0 (Algorithm 1), with its assumptions certified. With α: activation times of the gradient
    flow from that α, the finite-α prediction and the limit side by side.
    """
    logs = [_log10(a) for a in alpha or []] + list(log10_alpha or [])
    _check(logs, t_end, max_stages, seed)
    if out is not None:
        _prepare(out)
    from rankrise import theory

    net, name, label = _network(data, dim=dim, tokens=tokens, samples=samples, seed=seed)
    if network is not None:
        net, name, label = _own_network(network, net, num_weights)
    elif num_weights is not None:
        raise typer.BadParameter("`--num-weights` belongs to `--network`; leave it out, or name your own h.")
    report = progress()
    found = theory.incremental_stages(
        net,
        t_end=math.inf if t_end is None else t_end,
        max_stages=max_stages,
        on_stage=lambda t: report(f"Algorithm 1: stage times up to {t:.4g}"),
    )
    times: StageTimes | None = None
    if logs:
        u0, v0 = theory.gaussian_start(net.num_weights, seed=seed)
        times = theory.stage_times(
            net, u0, v0, log10_alphas=logs, t_end=t_end, stages=found, predict=predict,
            on_alpha=lambda value: report(f"flow at α = {_power(value)} done"),
        )  # fmt: skip
    stage_rows, time_rows = _stage_rows(label, found), _time_rows(label, times, predict)
    record = {
        "network": name,
        "num_weights": net.num_weights,
        "seed": seed,
        "status": found.status.value,
        "stuck": [label(i) for i in found.stuck],
        "loss_at_start": float(found.losses[0]),
        "stages": stage_rows,
        "times": time_rows,
        "flows": _flow_rows(times, predict),
        "convergence_order": None if times is None or math.isnan(times.order) else times.order,
    }
    if as_json:
        typer.echo(_json(record))
    else:
        _print(record, found.advice)
    if out is not None:
        _write_json(out, record)
        typer.echo(f"wrote {out / 'stages.json'}, stages.csv" + (", times.csv" if time_rows else ""), err=True)


def _log10(alpha: float) -> float:
    if not 0 < alpha < 1:
        raise typer.BadParameter(
            f"`--alpha` must lie between 0 and 1; got {alpha}. Below 1e-300 say --log10-alpha -1000 instead."
        )
    return math.log10(alpha)


def _check(logs: list[float], t_end: float | None, max_stages: int | None, seed: int) -> None:
    for value in logs:
        if not -math.inf < value < 0:
            raise typer.BadParameter(
                f"`--log10-alpha` must be negative and finite, as 0 < α < 1; got {value:g}: -32 is α = 1e-32."
            )
    if t_end is not None and not 0 < t_end < math.inf:
        raise typer.BadParameter(f"`--t-end` must be positive and finite; got {t_end:g}: leave it out to see all.")
    if max_stages is not None and max_stages < 0:
        raise typer.BadParameter(f"`--max-stages` must be zero or more; got {max_stages}: leave it out to see all.")
    if not 0 <= seed < 2**63:
        raise typer.BadParameter(f"`--seed` must lie in 0 to 2^63 - 1; got {seed}: pass a smaller one.")


def _prepare(out: Path) -> None:
    """Make the output folder, or refuse it, before any work is done for it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(f"`--out` must be a folder to write to; got {out} ({reason}): name another one.") from error


def _network(
    path: Path | None, *, dim: int, tokens: int, samples: int, seed: int
) -> "tuple[DiagonalNetwork, str, Label]":
    """Return the network, its name for the reader, and names for its coordinates."""
    import torch

    from rankrise import theory
    from rankrise.store import read_npz

    if path is None:
        task = theory.teacher_task(samples=samples, tokens=tokens, dim=dim, seed=seed)
        name = f"attention head, teacher task {samples} x {tokens} x {dim}"
        return theory.attention_head(task.x, task.y), name, _circuit_label(dim)
    if not path.is_file():
        raise ValueError(
            f"`--input` must name a file; {path} is {'a folder' if path.is_dir() else 'not there'}. "
            "Write one with numpy.savez(path, x=x, y=y)."
        )
    arrays = read_npz(path, ("x", "y"), argument="--input")
    x, y = (torch.as_tensor(arrays[name].astype("float64")) for name in ("x", "y"))
    if x.dim() == 2:
        return theory.linear(x, y), f"linear network, {path.name}", lambda i: f"q[{i}]"
    return theory.attention_head(x, y), f"attention head, {path.name}", _circuit_label(x.shape[-1])


def _own_network(where: str, like: "DiagonalNetwork", num_weights: int | None) -> "tuple[DiagonalNetwork, str, Label]":
    """Return a network of the caller's own h on the data of another one, its name, and names for its coordinates."""
    from rankrise import theory

    file, _, function = where.rpartition(":")
    path = Path(file)
    if not function.isidentifier() or path.suffix != ".py" or not path.is_file():
        raise ValueError(
            f"`--network` must be FILE.py:NAME of a file that is there; got {where}: write h(x, q) with torch "
            "functions and pass for instance mine.py:h."
        )
    if num_weights is None:
        raise ValueError("`--num-weights` must be given with `--network`; got nothing: pass the length of q.")
    try:
        h = runpy.run_path(str(path)).get(function)
    except SystemExit as end:
        raise ValueError(
            f"`--network` must name a file that can be run to its end; {path.name} ends the program: remove exit()."
        ) from end
    if not callable(h):
        raise ValueError(
            f"`--network` must name a function; {path.name} has no function {function!r}: correct the name."
        )
    net = theory.DiagonalNetwork(h, *like.data, num_weights=num_weights)
    return net, f"{path.name}:{function}", lambda i: f"q[{i}]"


def _circuit_label(dim: int) -> Label:
    return lambda i: f"{'kq' if i < dim else 'vo'}[{i % dim}]"


def _stage_rows(label: Label, found: "Stages") -> Rows:
    return [
        {
            "stage": k + 1,
            "time": float(found.times[k]),
            "joins": " ".join(label(i) for i in found.groups[k]),
            "sign": "+" if found.signs[k] > 0 else "-",
            "leaves": " ".join(label(i) for i in certificate.left),
            "active": len(found.supports[k + 1]),
            "loss": float(found.losses[k + 1]),
            "lead": certificate.winner_gap,
            "c": certificate.minimum_constant,
            "holds": certificate.holds,
            "verdict": certificate.verdict,
        }
        for k, certificate in enumerate(found.certificates)
    ]


def _time_rows(label: Label, times: "StageTimes | None", predict: bool) -> Rows:
    if times is None:
        return []
    return [
        {
            "coordinate": label(i),
            "alpha": _power(value),
            "limit": float(times.limit[column]),
            "flow": float(times.measured[n, column]),
            **({"predicted": float(times.predicted[n, column])} if predict else {}),
        }
        for column, i in enumerate(times.coordinates)
        for n, value in enumerate(times.log10_alphas)
    ]


def _flow_rows(times: "StageTimes | None", predict: bool) -> Rows:
    if times is None:
        return []
    return [
        {
            "alpha": _power(value),
            "activated": f"{times.num_activated[n]} of {len(times.coordinates)}",
            "distance from limit": float(times.distances[n]),
            **({"prediction error": float(times.prediction_errors[n])} if predict else {}),
            "in the limit's order": times.in_order[n],
            "gradients": times.num_gradients[n],
            "jacobian columns": times.num_jacobian_columns[n],
        }
        for n, value in enumerate(times.log10_alphas)
    ]


def _power(log10_alpha: float) -> str:
    """Return α as text such as `1e-32`, also for an α that no float can hold."""
    exponent = math.floor(log10_alpha)
    return f"{10 ** (log10_alpha - exponent):.3g}e{exponent}"


def _print(record: Mapping[str, object], remedy: str) -> None:
    from rankrise.theory import Status

    typer.echo(f"{record['network']}: {record['num_weights']} weights, loss {record['loss_at_start']:.6g} at θ = 0\n")
    stage_rows = record["stages"]
    assert isinstance(stage_rows, list)
    failing = [row for row in stage_rows if not row["holds"]]
    shown = [{key: row[key] for key in row if key not in ("holds", "verdict")} for row in stage_rows]
    typer.echo(table(shown) or "No stages.")
    for row in failing:
        typer.echo(f"stage {row['stage']}: {row['verdict']}")
    if stage_rows and not failing:
        every = "every stage" if record["status"] == "finished" else "every stage shown"
        typer.echo(f"Assumptions 4.2 and 4.3 hold at {every}.")
    if remedy != Status.FINISHED.remedy:
        typer.echo(f"{record['status']}: {remedy}")
    for key in ("times", "flows"):
        rows = record[key]
        assert isinstance(rows, list)
        if rows:
            typer.echo("\n" + table(rows))
    if record["convergence_order"] is not None:
        typer.echo(f"distance from the limit falls like log(1/α)^-{record['convergence_order']:.2f}")


def _json(record: Mapping[str, object]) -> str:
    """Return strict JSON: a number that is not finite (no second candidate, never activated) becomes null."""

    def strict(value: object) -> object:
        if isinstance(value, Mapping):
            return {key: strict(item) for key, item in value.items()}
        if isinstance(value, list):
            return [strict(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(strict(record), indent=1, allow_nan=False)


def _write_json(out: Path, record: Mapping[str, object]) -> None:
    from rankrise.store import environment, replacing

    full = {**record, "command": _command(sys.argv[1:]), "environment": environment()}
    with replacing(out / "stages.json", "report") as temporary:
        temporary.write_text(_json(full) + "\n")
    for name, key in (("stages.csv", "stages"), ("times.csv", "times")):
        rows = record[key]
        assert isinstance(rows, list)
        if rows:
            with replacing(out / name, "report") as temporary, temporary.open("w", newline="") as file:
                writer = csv.DictWriter(file, fieldnames=list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)


def _command(words: Sequence[str]) -> str:
    """Return the command line with the last part of each path, because the file is meant to be published.

    >>> _command(["stages", "--input", "/home/me/data.npz", "--out=/tmp/b/", "--alpha", "1e-32"])
    'rankrise stages --input data.npz --out=b --alpha 1e-32'
    """
    parts = [re.fullmatch(r"(--[\w-]+=)?(.*)", word, re.DOTALL) for word in words]
    return " ".join(["rankrise", *(f"{part[1] or ''}{PurePath(part[2]).name}" for part in parts if part)])
