"""`rankrise lora`: which rank each module needs, and the adapter with those ranks."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankrise._tables import table
from rankrise.cli._diff import existing
from rankrise.cli._function import load_pair, read_data
from rankrise.cli._output import progress

if TYPE_CHECKING:
    from rankrise.checkpoints import Advice, Extraction

_INPUTS = 256  # inputs of --data that --function reads at most
_WORTH_A_NOTE = 1e-3  # share of the change that other ranks within the budget might keep beyond the chosen ones

Energy = Annotated[float | None, typer.Option(help="Share of its change that every module keeps [default: 0.95]")]
Rank = Annotated[int | None, typer.Option(help="The same rank for every module.")]
Error = Annotated[
    float | None, typer.Option(help="Reach this relative error over all modules with as few parameters as possible.")
]
Budget = Annotated[int | None, typer.Option(help="Number of parameters in all, spent where they capture most.")]
Snap = Annotated[bool, typer.Option("--snap", help="Ranks among 8, 16, 32, 64.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def lora(
    base: Annotated[Path, typer.Argument(help="The model that training started from; or a tracked run, for advice.")],
    tuned: Annotated[Path | None, typer.Argument(help="The model it ended with.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the PEFT adapter; without it, advice only.")] = None,
    energy: Energy = None,
    rank: Rank = None,
    error: Error = None,
    budget: Budget = None,
    floor: Annotated[
        bool, typer.Option("--floor", help="Keep every direction that rounding cannot have made.")
    ] = False,
    by_function: Annotated[
        float | None,
        typer.Option("--function", help="Ranks that keep the outputs within this distance D, on the inputs of --data."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Inputs for --function: .npz, .safetensors, or text for the tokenizer.")
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(help="Ranks before any training, without TUNED: .npz, .safetensors, or text for the tokenizer."),
    ] = None,
    snap: Snap = False,
    save: Annotated[
        list[str] | None, typer.Option(help="Module to write whole: an embedding, a norm; 'all'. Repeatable.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Use exact decompositions, not randomised ones.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Compare logits, with transformers and peft.")] = False,
    tokens: Annotated[str | None, typer.Option(help="Token ids for --verify: 1,2,3 [default: random]")] = None,
    dtype: Annotated[str, typer.Option(help="Dtype of the adapter: float32, bfloat16, float16.")] = "float32",
    steps: Annotated[int | None, typer.Option(help="Use only this many first steps of a tracked run.")] = None,
    device: Annotated[str, typer.Option(help="Where matrices are decomposed.")] = "cpu",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Stop after the checks that need no weights.")] = False,
    allow_torch_load: Annotated[
        bool, typer.Option("--allow-torch-load", help="Read pickles, with weights_only.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Tell which LoRA rank each module needs, and write the adapter that carries the change.

    The adapter is written whole or not at all. It is then read back, and its error is reported for every module. With
    a run directory of the tracker instead of two models, the command gives advice from the first steps of that run.
    """
    rules: dict[str, Any] = {"energy": energy, "rank": rank, "error": error, "budget": budget, "snap": snap}
    if calibrate is not None:
        wrong = [f"--{k}" for k, v in {**rules, "out": out, "floor": floor, "function": by_function}.items() if v]
        if tuned is not None or set(wrong) - {"--rank"}:
            raise typer.BadParameter("`--calibrate` takes a base alone, and of the rules `--rank`, the average.")
        existing(base, are_models=True)
        existing(calibrate)
        _calibrated(base, calibrate, 8 if rank is None else rank, as_json)
        return
    if tuned is None:
        _from_run(
            base,
            steps,
            rules,
            as_json,
            unusable={
                "function": by_function,
                "data": data,
                "out": out,
                "floor": floor,
                "save": save,
                "verify": verify,
            },
        )
        return
    existing(base, tuned, are_models=True)
    if (by_function is None) != (data is None):
        raise typer.BadParameter("`--function` and `--data` must be given together.")
    import torch

    from rankrise.checkpoints import extract_lora, match_checkpoints, open_checkpoint

    if dry_run:
        checkpoints = [open_checkpoint(path, allow_torch_load=allow_torch_load) for path in (base, tuned)]
        preflight = match_checkpoints(*checkpoints)
        typer.echo(json.dumps(preflight.to_json(), indent=1) if as_json else preflight.text())
        raise typer.Exit(1 if preflight.problems else 0)
    if dtype not in ("float32", "bfloat16", "float16"):
        raise typer.BadParameter(f"`--dtype` must be float32, bfloat16 or float16; got {dtype}.")
    begin, report = time.monotonic(), progress()

    def on_module(name: str, done: int, total: int) -> None:
        left = (time.monotonic() - begin) * (total - done) / done
        report(f"{done} of {total} tensors, about {left:.0f} s left")

    if by_function is not None and data is not None:
        rules["ranks"] = _by_function(base, tuned, by_function, data, report)
        begin = time.monotonic()
    done = extract_lora(
        base, tuned, out=out, **rules, floor=floor, save=save or (), exact=exact, dtype=getattr(torch, dtype),
        verify=verify, tokens=_ids(tokens), device=device, allow_torch_load=allow_torch_load, on_module=on_module,
    )  # fmt: skip
    show_extraction(done, as_json=as_json)


def _by_function(base: Path, tuned: Path, error: float, data: Path, report: Callable[[str], None]) -> dict[str, int]:
    """Ranks that keep the outputs within `error`; a line on stderr says which distance they reach."""
    from rankrise.checkpoints import choose_ranks

    def on_module(name: str, done: int, total: int) -> None:
        report(f"{done} of {total} modules cut on their own")

    found = choose_ranks(*load_pair(base, tuned), read_data(data, base, _INPUTS), error, on_module=on_module)
    judged = "" if found.held_out is None else f", {found.held_out:.3g} on as many others"
    typer.echo(
        f"D = {found.distance:.3g} on the inputs that chose the ranks{judged}, with the rest as "
        f"tuned; {found.parameters:,} parameters, {found.num_passes} passes",
        err=True,
    )
    return dict(found.ranks)


def _calibrated(base: Path, data: Path, rank: int, as_json: bool) -> None:
    """Print ranks from the gradients of the base on a few inputs."""
    from rankrise._extras import require
    from rankrise.checkpoints.function import read_inputs
    from rankrise.checkpoints.lora import load_model
    from rankrise.growth import calibrate_ranks

    require("Running a model", "transformers")
    inputs = read_inputs(data, base, most=_INPUTS)
    if set(inputs) == {"input_ids", "labels"}:
        inputs["labels"] = inputs["input_ids"]  # the models of transformers shift labels themselves
    size = max(1, min(8, len(next(iter(inputs.values()))) // 2))
    count = len(next(iter(inputs.values()))) // size
    batches = [{name: t[size * i : size * (i + 1)] for name, t in inputs.items()} for i in range(count)]
    found = calibrate_ranks(load_model(base, base), batches, rank=rank)
    if as_json:
        record = {"ranks": found.ranks, "signals": found.signals, "parameters": found.parameters}
        typer.echo(json.dumps({**record, "config": found.training_config()}, indent=1))
        return
    rows = [{"module": n, "signal": f"{s:.3g}", "rank": found.ranks.get(n, 0)} for n, s in found.signals.items()]
    typer.echo(
        f"ranks by the gradient before training, {count} batches of {size}; {found.parameters:,} parameters, "
        f"at most those of rank {rank} everywhere\n\n{table(rows, left=('module',))}\n\n"
        f"for peft.LoraConfig: {json.dumps(found.training_config())}\n\nfor axolotl:\n{found.axolotl()}"
    )
    typer.echo(
        "One look before training may be worse than one rank everywhere; rankrise.growing_lora looks while it trains.",
        err=True,
    )


def show_extraction(done: "Extraction", *, as_json: bool) -> None:
    """Print tables or JSON on stdout, and the folder that was written on stderr."""
    if as_json:
        typer.echo(json.dumps(done.to_json(), indent=1, allow_nan=False))
    else:
        typer.echo(_extraction_text(done))
    if done.out is not None:
        typer.echo(f"wrote {done.out} ({done.num_bytes / 1e6:.3g} MB)", err=True)


def _extraction_text(done: "Extraction") -> str:
    from rankrise.checkpoints.compare import changed_by, percent
    from rankrise.checkpoints.files import show

    *lines, training = _advice_lines(done.advice, done.errors)
    changed = len(done.advice.modules)
    weights = sum(m.shape[0] * m.shape[1] for m in done.advice.modules if m.rank)
    share = f" ({done.advice.parameters / weights:.2g} of their weights')" if weights else ""
    how = "exact" if done.is_exact else "randomised; the error is that of the factors, not an estimate"
    where = "read back from the file" if done.out is not None else "of the advised ranks"
    by = "" if done.relative_size is None else f"{changed_by(done.relative_size)}; "
    lines.append(
        f"\n{by}{len(done.advice.ranks)} of {changed} changed modules, {done.advice.parameters:,} parameters{share}; "
        f"relative error {done.error:.4g} ({where}){_with_rest(done)}. Decomposition: {how}."
    )
    lines += [f"note: {note}" for note in done.notes]
    if done.advice.gap > _WORTH_A_NOTE:
        lines.append(f"note: other ranks within the budget might keep up to {done.advice.gap:.2g} more of the change")
    lines += done.preflight.lines()
    if done.unchanged:
        lines.append(f"unchanged, left out: {len(done.unchanged)} tensors")
    if done.saved:
        lines.append(f"written whole: {', '.join(map(show, done.saved))}")
    if done.not_carried:
        rows = [
            {
                "not carried by LoRA": show(item.name, 80),
                "kind": item.kind,
                "parameters": item.num_parameters,
                "size": percent(item.relative_size),
                "of the change": percent(item.share),
                "--save": show(item.module or "-", 80),
            }
            for item in done.not_carried[:12]
        ]
        lines.append("\n" + table(rows, left=("not carried by LoRA", "kind", "--save")))
        if len(done.not_carried) > 12:
            lines.append(f"and {len(done.not_carried) - 12} more; --json lists them")
    if done.logits is not None:
        check = done.logits
        lines.append(
            f"\nlogits on {check.inputs}: base + adapter differs from tuned by {check.max_difference:.3g} at most, "
            f"{check.relative_error:.3g} of what tuning changed; same answer at {check.agreement:.1%} of positions "
            f"(base alone {check.base_agreement:.1%})"
        )
    return "\n".join([*lines, training])


def _with_rest(done: "Extraction") -> str:
    unknown = sum(item.share != item.share for item in done.not_carried)
    if unknown:
        return f", without the {unknown} that only the tuned model has, which are not carried"
    return f", {done.total_error:.4g} with what is not carried" if done.not_carried else ""


def _advice_lines(advice: "Advice", errors: Any = None) -> list[str]:
    """Return the rule, the table of ranks, the error curve, and last the arguments that a training takes."""
    from rankrise.checkpoints.compare import percent
    from rankrise.checkpoints.files import show

    rows = [
        {
            "module": show(module.name, 80),
            "shape": f"{module.shape[0]}×{module.shape[1]}",
            "size": percent(module.relative_size),
            "of the change": percent(module.share),
            "rank": module.rank,
            "error": f"{(errors or {}).get(module.name, module.error):.4g}",
            "parameters": module.parameters,
            "worth it": module.is_worth_it,
            "note": module.note,
        }
        for module in advice.modules
    ]
    empty = {key for key, blank in (("size", "-"), ("note", "")) if all(row[key] == blank for row in rows)}
    rows = [{key: cell for key, cell in row.items() if key not in empty} for row in rows]
    lines = [f"rank by {advice.rule}\n", table(rows, left=("module", "note"))]
    if advice.curve:
        points = [
            {"rank for all": p.rank, "parameters": p.parameters, "error": f"{'≤ ' if p.is_bound else ''}{p.error:.4g}"}
            for p in advice.curve
        ]
        lines.append("\n" + table(points))
    arguments = f"for peft.LoraConfig: {json.dumps(advice.training_config())}" if advice.ranks else "nothing to adapt"
    return [*lines, f"\n{arguments}"]


def _from_run(run: Path, steps: int | None, rules: dict[str, Any], as_json: bool, unusable: dict[str, Any]) -> None:
    from rankrise.checkpoints import advise_run
    from rankrise.store import has_run

    if not has_run(run):
        raise typer.BadParameter(f"Two checkpoints are needed, or one tracked run; {run} is no run: add TUNED.")
    wrong = [f"--{name}" for name, value in unusable.items() if value]
    if wrong:
        raise typer.BadParameter(f"A tracked run gives advice only; leave out {', '.join(wrong)}, or add TUNED.")
    advice = advise_run(run, steps=steps, **rules)
    if as_json:
        typer.echo(json.dumps(advice.to_json(), indent=1, allow_nan=False))
    else:
        typer.echo("\n".join(_advice_lines(advice)))


def _ids(tokens: str | None) -> list[int] | None:
    if tokens is None:
        return None
    try:
        return [int(word) for word in tokens.replace(",", " ").split()]
    except ValueError:
        raise typer.BadParameter(f"`--tokens` must be whole numbers like 1,2,3; got {tokens}.") from None
