"""`KernelProbe`: the rank of the empirical kernel while the model trains, which may rise like the ranks of weights."""

import os
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from rankrise.heads import HeadMap
from rankrise.kernels import JacobianOperator, kernel_measures
from rankrise.tracking._measurement import Measurement
from rankrise.tracking._schedule import Schedule
from rankrise.tracking.probes._aside import Clock, Inputs, aside, bare, refuse_sharded


class KernelProbe:
    """Effective rank, stable rank, drift and target alignment of the centred empirical kernel on a fixed batch.

    The kernel is that of `rankrise.kernels.JacobianOperator` with `rows="sum"`: the Gram matrix of the gradients of the
    sum of a sample's outputs. Numbers of the model as a whole, under the circuit `ntk`, see
    `rankrise.kernels.KernelMeasures`: `kernel_effective_rank`, `kernel_stable_rank`, `kernel_trace`, `kernel_drift` and
    `kernel_cosine` against the kernel that the model had when the tracker was built, and with `targets`
    `kernel_alignment`.

    >>> import tempfile
    >>> import torch
    >>> import rankrise as rr
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    >>> options = {"every": 1, "quantities": (), "probes": [KernelProbe(torch.randn(6, 4))]}
    >>> with rr.RankTracker(model, out=tempfile.mkdtemp(), **options) as tracker:
    ...     tracker.step(0)
    >>> rr.open_run(tracker.out).curve("kernel_drift", circuit="ntk").values.tolist()
    [0.0]
    """

    def __init__(
        self,
        inputs: Inputs,
        *,
        targets: Tensor | None = None,
        every: int | Schedule | None = None,
        start: str | os.PathLike[str] | None = None,
        chunk: int = 64,
    ) -> None:
        """Say what to read.

        Args:
            inputs: What the model is called with: a tensor, a mapping of keywords, or a sequence of arguments. A
                hundred samples are enough; samples that the model is not trained on are best.
            targets: The classes of the samples, (N,), or their targets, (N, d).
            every: When to read, among the steps at which the tracker measures ranks; at all of them by default. A
                reading takes as long as some training steps.
            start: A file for the kernel at the start. It is written if it is not there, and read if it is, so that a
                resumed run goes on comparing with its own start.
            chunk: Number of samples in a chunk; the gradients of two chunks are in memory at a time.
        """
        self._inputs, self._targets, self._is_due, self._chunk = inputs, targets, Clock(every), chunk
        self._path = None if start is None else Path(start)

    def attach(self, model: nn.Module, head_map: HeadMap | None) -> None:
        """Compute the kernel that the model has now.

        Raises:
            ValueError: The weights are sharded, or the file `start` holds a kernel of another batch.
        """
        refuse_sharded(model, "KernelProbe")
        self._network = bare(model)
        if self._path is not None and self._path.exists():
            self._start = _loaded(self._path)
            with aside(self._network):
                count = self._operator().num_samples
            if self._start.shape != (count, count):
                raise ValueError(
                    f"The kernel in {self._path} must be that of {count} samples, as `inputs` has; it is not."
                )
            return
        self._start = self._kernel()
        if self._path is not None:
            from safetensors.torch import save_file

            self._path.parent.mkdir(parents=True, exist_ok=True)
            save_file({"kernel": self._start.cpu().contiguous()}, self._path)

    def read(self, step: int) -> Sequence[Measurement]:
        """Compute the kernel and measure it."""
        if not self._is_due(step):
            return []
        found = vars(kernel_measures(self._kernel(), targets=self._targets, reference=self._start))
        if self._targets is None:
            found.pop("alignment")
        return [Measurement(f"kernel_{name}", value, circuit="ntk") for name, value in found.items()]

    def detach(self) -> None:
        """Forget the kernel."""
        del self._start

    def _kernel(self) -> Tensor:
        with aside(self._network):
            return self._operator().gram()

    def _operator(self) -> JacobianOperator:
        return JacobianOperator(self._network, self._inputs, chunk=self._chunk)


def _loaded(path: Path) -> Tensor:
    from safetensors.torch import load_file

    held = load_file(path)
    if list(held) != ["kernel"]:
        raise ValueError(f"The file {path} must hold the kernel of a KernelProbe; it holds something else.")
    return held["kernel"]
