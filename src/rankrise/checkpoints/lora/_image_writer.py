"""A LoRA file of kohya or diffusers with other ranks: the same names, and alpha = rank where alpha is stated.

Which scale a loader gives a module whose file states no alpha differs: ComfyUI takes 1, diffusers takes the rank of the
first module as the alpha of all. Where the new ranks differ, the metadata of diffusers therefore state every rank and
alpha.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankrise.checkpoints.files import METADATA, Checkpoint, Layout, LowRankDelta, num_bytes
from rankrise.checkpoints.lora._peft_writer import AdapterModule, lora_arguments

_HASHES = ("sshs_model_hash", "sshs_legacy_hash")  # hashes of the old file, which are wrong for the new one


@dataclass(frozen=True, eq=False)
class LoraFile:
    """All that is written for one file; `source` is the file as it was."""

    modules: Sequence[AdapterModule]
    source: Checkpoint

    @property
    def file_name(self) -> str:
        """The name that the file had."""
        name = self.source.path.name
        return name if name.endswith(".safetensors") else "pytorch_lora_weights.safetensors"

    @property
    def num_bytes(self) -> int:
        """Return the number of bytes of all tensors."""
        return num_bytes(self.layout())

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata as they were, with the new ranks and alphas."""
        found = {key: value for key, value in self.source.metadata.items() if isinstance(value, str)}
        found = {key: value for key, value in found.items() if key not in _HASHES}
        ranks = {module.name: module.rank for module in self.modules}
        same = str(next(iter(ranks.values()))) if len(set(ranks.values())) == 1 else "Dynamic"
        found |= {key: same for key in ("ss_network_dim", "ss_network_alpha") if key in found}
        states_alpha = all(delta.alpha for delta in self.source.deltas.values())
        if self.source.kind == "diffusers" and (METADATA in found or (same == "Dynamic" and not states_alpha)):
            found[METADATA] = json.dumps(_configs(ranks, json.loads(found.get(METADATA, "{}"))), sort_keys=True)
        return found

    def config(self) -> None:
        """These files have no config beside them."""

    def names(self, module: str) -> tuple[str, str]:
        """Names of A and B in the file."""
        delta = self._delta(module)
        return delta.a, delta.b

    def layout(self) -> Layout:
        """Names, dtypes and shapes in the file."""
        found: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        for module in self.modules:
            delta = self._delta(module.name)
            _, *inputs = self.source.tensors[delta.a].shape
            outputs, _, *ones = self.source.tensors[delta.b].shape
            found[delta.a] = module.dtype, (module.rank, *inputs)
            found[delta.b] = module.dtype, (outputs, module.rank, *ones)
            if delta.alpha:
                found[delta.alpha] = torch.float32, self.source.tensors[delta.alpha].shape
        return found

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that the layout names, one module at a time."""
        layout = self.layout()
        for module in self.modules:
            delta = self._delta(module.name)
            for name, tensor in zip((delta.a, delta.b), module.tensors(), strict=True):
                yield name, tensor.reshape(layout[name][1])
            if delta.alpha:
                yield delta.alpha, torch.full(layout[delta.alpha][1], float(module.rank))

    def _delta(self, module: str) -> LowRankDelta:
        return self.source.deltas[f"{module}.weight"]


def _configs(ranks: Mapping[str, int], before: Mapping[str, Any]) -> dict[str, Any]:
    """The configs of PEFT by the part of the model, as diffusers keeps them: `unet.r` and `unet.lora_alpha`."""
    found = dict(before)
    for part in dict.fromkeys(name.partition(".")[0] for name in ranks):
        own = {name.partition(".")[2]: rank for name, rank in ranks.items() if name.partition(".")[0] == part}
        found |= {f"{part}.{key}": value for key, value in lora_arguments(own).items()}
        found[f"{part}.use_rslora"] = False
    return found
