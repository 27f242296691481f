"""`rankrise resize`: an adapter again, with only the ranks that it needs."""

from pathlib import Path
from typing import Annotated

import typer

from rankrise.cli._diff import existing
from rankrise.cli._lora import Budget, Energy, Error, Json, Rank, Snap, show_extraction


def resize(
    adapter: Annotated[
        Path, typer.Argument(help="A LoRA adapter of PEFT or MLX, or a LoRA file of kohya or diffusers.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the new adapter; without it, advice only.")] = None,
    energy: Energy = None,
    rank: Rank = None,
    error: Error = None,
    budget: Budget = None,
    snap: Snap = False,
    as_json: Json = False,
) -> None:
    """Write a LoRA adapter again with lower ranks, scale 1, and report the error for every module.

    LoRA files of kohya and diffusers keep their names and their metadata; every alpha becomes the new rank.
    """
    existing(adapter, are_models=True)
    from rankrise.checkpoints import resize_lora

    done = resize_lora(adapter, out=out, energy=energy, rank=rank, error=error, budget=budget, snap=snap)
    show_extraction(done, as_json=as_json)
