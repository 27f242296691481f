"""The heads of a saved model, read by the names on disk and config.json alone, against those in memory."""

import contextlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from rankrise.heads import HeadMap, resolve

Heads = tuple[Tensor, Tensor, Tensor, Tensor]
SAME = "same"


def compare_with_disk(model: nn.Module, in_memory: HeadMap) -> tuple[str, bool]:
    """Return what the files give, in words, and whether they contradict memory.

    Every layer of the files must have the heads of some layer in memory, and no layer in memory serves twice. Names may
    differ, and with them the order. Layers that the files do not give are no contradiction.

    Args:
        model: A model with random weights, so that no two layers are alike.
        in_memory: The heads that `resolve` found in the model.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            with contextlib.redirect_stdout(None):
                model.save_pretrained(folder)  # type: ignore[operator]
        except Exception as failure:
            return f"could not be saved: {type(failure).__name__}", False
        files = sorted(Path(folder).glob("*.safetensors"))
        weights = {name: tensor for file in files for name, tensor in load_file(file).items()}
        config = json.loads((Path(folder) / "config.json").read_text())
    try:
        on_disk = resolve(weights, config=config)
    except ValueError as refusal:
        return f"refused: {refusal}".split("\n")[0][:160], False
    memory = _heads_of(in_memory, dict(model.named_parameters(remove_duplicate=False)))
    strange = []
    found: set[str] = set()
    doubtful = {layer.name for layer in on_disk if layer.doubt}
    guessed = 0
    for name, heads in _heads_of(on_disk, weights).items():
        same = next((other for other in memory if other not in found and _equal(heads, memory[other])), None)
        if same is not None:
            found.add(same)
        elif not any(_equal(heads, others) for others in memory.values()):  # else one weight has two names
            guessed += name in doubtful
            strange += [] if name in doubtful else [name]
    if guessed and not strange:
        return (
            f"{guessed} of {len(on_disk)} layers differ, and a note says that their number of heads is a guess",
            False,
        )
    if strange:
        return f"{strange[0]!r} has the heads of no layer in memory", True
    if len(found) < len(_distinct(memory)):
        return f"{len(found)} of {len(_distinct(memory))} layers", False
    return SAME, False


def _heads_of(head_map: HeadMap, weights: Mapping[str, Tensor]) -> dict[str, Heads]:
    with torch.no_grad():
        return {
            layer.name: (*layer.factors("kq", weights.__getitem__), *layer.factors("vo", weights.__getitem__))
            for layer in head_map
        }


def _distinct(memory: Mapping[str, Heads]) -> list[Heads]:
    """Return each layer's heads once: a block that is used several times is stored once."""
    distinct: list[Heads] = []
    for heads in memory.values():
        if not any(_equal(heads, others) for others in distinct):
            distinct.append(heads)
    return distinct


def _equal(one: Heads, two: Heads) -> bool:
    """Compare both circuits of every head: files may store the dimensions of queries and keys in another order."""
    if any(a.shape != b.shape for a, b in zip(one, two, strict=True)):
        return False
    (k, q, v, o), (k2, q2, v2, o2) = ([factor.float() for factor in heads] for heads in (one, two))
    if not torch.allclose(v[0] @ o[0].mT, v2[0] @ o2[0].mT, rtol=1e-4, atol=1e-5):
        return False  # as for nearly every pair of layers
    return all(
        torch.allclose(a @ b.mT, c @ d.mT, rtol=1e-4, atol=1e-5) for a, b, c, d in ((k, q, k2, q2), (v, o, v2, o2))
    )
