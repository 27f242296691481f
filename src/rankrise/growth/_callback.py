"""HF `Trainer`: a callback that makes an adapter grow."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankrise._extras import require
from rankrise.growth._growth import Growth
from rankrise.growth._model import plan_of

require("The callback of HF Trainer", "transformers")

from transformers import TrainerCallback  # noqa: E402 what is missing is said above, in one sentence

STATE = "growth.pt"


class GrowthCallback(TrainerCallback):
    """Grows the adapter that a `Trainer` trains: `Trainer(..., callbacks=[GrowthCallback(model)])`.

    The number of steps is taken from the trainer. The state of the growth is written into each of its checkpoints, and
    `trainer.train(resume_from_checkpoint=...)` goes on from there bit for bit, also in the middle of a window.
    """

    def __init__(self, model: nn.Module, **options: Any) -> None:
        """Keep the options until training begins.

        Args:
            model: What `growing_lora` returned.
            options: The arguments `events` and `seed` of `Growth`.

        Raises:
            ValueError: The model was not made by `growing_lora`.
        """
        super().__init__()
        plan_of(model)
        self.growth: Growth | None = None
        self._model, self._options = model, options

    def on_train_begin(self, args: Any, state: Any, control: Any, *, optimizer: Any = None, **_: Any) -> None:
        """Prepare the growth, from the checkpoint if the trainer resumed from one."""
        if args.fp16:
            raise ValueError("A growing adapter reads gradients, which fp16 rescales; train it in bf16 or float32.")
        self.growth = Growth(
            self._model,
            optimizer,
            total_steps=state.max_steps,
            accumulate=args.gradient_accumulation_steps,
            **self._options,
        )
        if state.global_step:
            self.growth.load_state_dict(_read(args, state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell the growth that the optimiser has taken a step."""
        assert self.growth is not None
        self.growth.step()

    def on_log(self, args: Any, state: Any, control: Any, *, logs: Any = None, **_: Any) -> None:
        """Add the number of parameters in use to what is logged; a `RankCallback` that was added later records it."""
        if self.growth is not None and "loss" in (logs or {}):
            logs["adapter_parameters"] = self.growth.parameters

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the state of the growth into the trainer's checkpoint."""
        assert self.growth is not None
        saved = self.growth.state_dict()  # called in all processes, because it adds up their sums
        if state.is_world_process_zero:
            place = _folder(args, state.global_step) / STATE
            temporary = place.with_suffix(".tmp")
            torch.save(saved, temporary)
            os.replace(temporary, place)


def _folder(args: Any, step: int) -> Path:
    return Path(args.output_dir) / f"checkpoint-{step}"


def _read(args: Any, step: int) -> dict[str, Any]:
    place = _folder(args, step) / STATE
    if not place.is_file():
        raise ValueError(
            f"The trainer resumes at step {step}, and the growth with it from {place}, which is not there. Resume from "
            "a checkpoint in `output_dir` that has this file."
        )
    found: dict[str, Any] = torch.load(place, map_location="cpu", weights_only=True)
    return found
