"""How far the outputs of two networks are apart on given inputs.

Symbols:
    f, f_0, f_r   outputs of the tuned model; with every change cut to rank 0; to rank r
    D(r)          E‖f_r − f‖² / E‖f_0 − f‖²
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Inputs = Mapping[str, Tensor] | Tensor
Forward = Callable[[nn.Module, Any], Tensor]


def logits_of(model: nn.Module, batch: Any) -> Tensor:
    """Call a model with a tensor, or with named tensors, and return its logits, or else its only output."""
    batch = {n: t for n, t in batch.items() if n != "labels"} if isinstance(batch, Mapping) else batch
    found = model(**batch) if isinstance(batch, Mapping) else model(batch)
    if isinstance(found, Tensor):
        return found
    output: Tensor = found.logits if hasattr(found, "logits") else found[0]
    return output


@dataclass(frozen=True)
class Distance:
    """Outputs of a network against those of the tuned model."""

    squared: float  # mean over inputs (and positions) of the squared difference of the outputs
    agreement: float  # share of the inputs (and positions) whose largest output is the same one
    loss: float | None  # cross-entropy, where labels are known


class Judge:
    """The outputs of the tuned model on some inputs, which other networks are compared with."""

    def __init__(self, tuned: nn.Module, inputs: Inputs, *, forward: Forward = logits_of, batch_size: int = 32) -> None:
        """Keep the outputs of the tuned model.

        Args:
            tuned: The model whose function counts.
            inputs: A tensor, or named tensors, with the inputs along the first dimension. `labels` are not handed to
                the model: the loss is measured against them, and the label −100 marks what the loss leaves out. With
                an `attention_mask` only the positions that it keeps count.
            forward: Takes a model and a batch, and returns outputs (inputs, classes) or (inputs, positions, classes).
            batch_size: Number of inputs that are run at a time.

        Raises:
            ValueError: There are no inputs, or their numbers differ.
        """
        tensors = inputs if isinstance(inputs, Mapping) else {"": inputs}
        sizes = {len(tensor) for tensor in tensors.values()}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"`inputs` must have one number of rows, at least 1; got {sorted(sizes)}.")
        self.num_inputs = sizes.pop()
        self._inputs, self._forward, self._batch_size = inputs, forward, batch_size
        was_training = tuned.training
        with torch.no_grad():
            self._goal = [self._outputs(tuned.eval(), batch) for batch in self._batches()]
        tuned.train(was_training)

    def distance(self, model: nn.Module) -> Distance:
        """Compare a network with the tuned model."""
        squared, same, count, loss, num_labels = 0.0, 0, 0, 0.0, 0
        with torch.no_grad():
            for batch, goal in zip(self._batches(), self._goal, strict=True):
                found = self._outputs(model, batch)
                squared += float((found - goal).double().square().sum())
                same += int((found.argmax(-1) == goal.argmax(-1)).sum())
                count += len(goal)
                labels = self._labels(batch)
                if labels is not None and len(labels) == len(found):
                    wanted = labels != -100
                    loss += float(nn.functional.cross_entropy(found[wanted].double(), labels[wanted], reduction="sum"))
                    num_labels += int(wanted.sum())
        return Distance(squared / count, same / count, loss / num_labels if num_labels else None)

    def _batches(self) -> Iterator[Any]:
        for begin in range(0, self.num_inputs, self._batch_size):
            rows = slice(begin, begin + self._batch_size)
            is_named = isinstance(self._inputs, Mapping)
            yield {name: t[rows] for name, t in self._inputs.items()} if is_named else self._inputs[rows]  # type: ignore[union-attr, index]

    def _outputs(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the outputs as rows, one for each input or for each position that counts."""
        found = self._forward(model, batch)
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        if mask is not None and found.ndim == 3 and mask.shape == found.shape[:2]:
            return found[mask.bool()]
        return found.reshape(-1, found.shape[-1])

    def _labels(self, batch: Any) -> Tensor | None:
        if not isinstance(batch, Mapping) or "labels" not in batch:
            return None
        labels: Tensor = batch["labels"]
        mask = batch.get("attention_mask")
        if mask is not None and mask.shape == labels.shape:
            return labels[mask.bool()]
        return labels.reshape(-1)
