"""`rankrise function`: how many directions of its change a tuned model uses."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankrise._tables import table
from rankrise.cli._diff import existing

if TYPE_CHECKING:
    from rankrise.checkpoints import FunctionPart, FunctionRank

Most = Annotated[int, typer.Option("--inputs", help="How many inputs to read from the beginning of --data.", min=1)]


def function(
    base: Annotated[Path, typer.Argument(help="Folder of the model that training started from.")],
    tuned: Annotated[Path, typer.Argument(help="Folder of the model it ended with.")],
    data: Annotated[
        Path, typer.Option(help="Inputs: .npz or .safetensors by name, or text for the model's tokenizer.")
    ],
    error: Annotated[float, typer.Option(help="Distance D up to which a cut counts as the same function.")] = 0.05,
    inputs: Most = 256,
    seed: Annotated[int, typer.Option(help="Seed of the random directions of the control.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Cut every change to rank r, keep the tuned rest, and measure how far the outputs are from the tuned model's.

    D is 1 where all changes of a part are cut away and 0 where they are whole. The control has the same singular values
    in random directions. Models are loaded by transformers, from folders.
    """
    if not 0 < error < 1:
        raise typer.BadParameter(f"`--error` must be between 0 and 1; got {error:g}.")
    existing(base, tuned, are_models=True)
    existing(data)
    from rankrise.checkpoints import function_rank

    read = read_data(data, base, inputs)  # before the models, because bad inputs are refused at once
    found = function_rank(*load_pair(base, tuned), read, seed=seed)
    typer.echo(json.dumps(found.to_json(), indent=1) if as_json else _text(found, error))


def load_pair(base: Path, tuned: Path) -> tuple[Any, Any]:
    """Load both models through transformers, in float32."""
    from rankrise._extras import require
    from rankrise.checkpoints.lora import load_model

    require("Running a model", "transformers")
    return load_model(base, base), load_model(tuned, base)


def read_data(data: Path, base: Path, most: int) -> Any:
    """Read inputs from the file of `--data`."""
    from rankrise.checkpoints.function import read_inputs

    return read_inputs(data, base, most=most)


def _text(found: "FunctionRank", error: float) -> str:
    points = [
        {
            "rank": point.rank,
            "D": f"{point.distance:.3g}",
            "agreement": f"{point.agreement:.1%}",
            **({} if point.loss is None else {"loss": f"{point.loss:.4g}"}),
            "D, random directions": "-" if point.rank == 0 else f"{point.control:.3g}",
            "energy left out": f"{point.energy_left:.2g}",
        }
        for point in found.whole.points
    ]
    parts = [
        {
            "part": _name(part),
            "of the distance": f"{part.share:.3g}",
            f"rank for D ≤ {error:g}": part.rank(error),
            f"rank for energy {1 - error:g}": part.energy_rank(error),
            "D at rank 1": f"{part.points[1].distance:.3g}",
        }
        for part in found.parts
    ]
    lines = [
        f"{found.num_matrices} changed matrices, {found.num_inputs} inputs; the rest stays as tuned\n",
        table(points),
        "\n" + table(parts, left=("part",)),
    ]
    if found.tuned_loss is not None:
        lines.append(
            f"\nloss of the tuned model {found.tuned_loss:.4g}, with every change cut away {found.base_loss:.4g}"
        )
    return "\n".join(lines)


def _name(part: "FunctionPart") -> str:
    if part.layer is not None:
        return "outside the layers" if part.layer < 0 else f"layer {part.layer}"
    return {"kq": "queries and keys", "vo": "values and outputs", "linear": "other weights", None: "all"}[part.circuit]
