"""`ClassifierProbe`: numbers of the last layer that announce a slingshot before the loss spikes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.heads import HeadMap, named_weights, read_weight
from rankrise.tracking._measurement import Measurement
from rankrise.tracking._schedule import Schedule
from rankrise.tracking.probes._aside import Clock, bare, outputs_of, refuse_sharded

_NAMES = ("classifier", "head", "lm_head", "fc", "proj_out", "score", "embed_out")


class ClassifierProbe:
    """Norms of the last layer, and how far the softmax of the last training batch has rounded to 1.

    Numbers of the model as a whole:

    - `last_norm`, `last_class_mean_norm`: Frobenius norm of the last layer W (classes, d), and of its mean over classes
    - `rest_norm`: norm of all other weights
    - `absorbed`: share of the last training batch whose largest softmax rounds to 1 in the dtype of the logits. The
      gradient of such a sample is exactly 0 at the right class
    - `imbalance`: `Σ |Σ_c g_c|` over `Σ Σ_c |g_c|`, summed over the samples, for the gradients g at the logits if the
      largest logit is that of the right class; 0 in exact arithmetic

    `last_norm` with the training loss is what `rankrise.signals.detect_slingshots` asks for. Once the data are fitted,
    an `absorbed` above a tenth announces slingshots; `rankrise.zero_sum_cross_entropy` prevents them.

    >>> import tempfile
    >>> import rankrise as rr
    >>> model = nn.Sequential(nn.Linear(4, 3))
    >>> options = {"every": 1, "quantities": (), "probes": [ClassifierProbe("0")]}
    >>> with rr.RankTracker(model, out=tempfile.mkdtemp(), **options) as tracker:
    ...     _ = model(torch.randn(5, 4))
    ...     tracker.step(1)
    >>> sorted(set(rr.load_run(tracker.out)["quantity"].to_pylist()))
    ['absorbed', 'imbalance', 'last_class_mean_norm', 'last_norm', 'rest_norm']
    """

    def __init__(self, module: str | None = None, *, every: int | Schedule | None = None) -> None:
        """Say which layer is the last.

        Args:
            module: The name of the layer in the model. By default it is the last linear layer that has one of the names
                classifier, head, lm_head, fc, proj_out, score or embed_out.
            every: When to read, among the steps at which the tracker measures ranks; at all of them by default.
        """
        self._wanted = module
        self._is_due = Clock(every)
        self._logits: Tensor | None = None
        self._handle: torch.utils.hooks.RemovableHandle | None = None

    def attach(self, model: nn.Module, head_map: HeadMap | None) -> None:
        """Find the last layer and listen to the logits of the model.

        Raises:
            ValueError: There is no such layer, or the weights are sharded.
        """
        refuse_sharded(model, "ClassifierProbe")
        self._network = bare(model)
        self._module = _last_layer(self._network, self._wanted)
        self._handle = self._network.get_submodule(self._module).register_forward_hook(self._keep)

    def read(self, step: int) -> Sequence[Measurement]:
        """Measure the present weights, and the logits of the last training batch."""
        if not self._is_due(step):
            return []
        name = f"{self._module}.weight"
        last = read_weight(self._network, name)
        own = self._network.get_submodule(self._module)
        numbers = {
            "last_norm": last.double().norm(),
            "last_class_mean_norm": _by_class(own, last).double().mean(0).norm(),
            "rest_norm": torch.stack(
                [w.detach().double().norm() for n, w in named_weights(self._network) if n != name and w is not last]
                or [last.new_zeros((), dtype=torch.float64)]
            ).norm(),
        }
        if self._logits is not None:
            numbers |= rounding_of(self._logits)
        return [Measurement(key, value) for key, value in numbers.items()]

    def detach(self) -> None:
        """Stop listening to the model."""
        if self._handle is not None:
            self._handle.remove()
        self._logits = None

    def _keep(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._network.training:
            self._logits = outputs_of(output).detach()


def rounding_of(logits: Tensor) -> dict[str, Tensor]:
    """Return the share of rows (…, classes) whose softmax rounds to 1, and how far rounded gradients are from sum 0.

    >>> {key: round(value.item(), 3) for key, value in rounding_of(torch.tensor([[0.0, 1.0], [0.0, 40.0]])).items()}
    {'absorbed': 0.5, 'imbalance': 0.0}
    """
    rows = logits.reshape(-1, logits.shape[-1])
    log_p = rows.log_softmax(-1)
    largest = rows.argmax(-1, keepdim=True)
    gradient = log_p.exp()
    gradient.scatter_add_(-1, largest, torch.full_like(gradient[:, :1], -1))
    wide = gradient.double()
    absolute = wide.abs().sum()
    return {
        "absorbed": (log_p.gather(-1, largest) == 0).double().mean(),
        "imbalance": torch.where(absolute > 0, wide.sum(-1).abs().sum() / absolute, 0.0),
    }


def _by_class(module: nn.Module, weight: Tensor) -> Tensor:
    return weight.mT if type(module).__name__.endswith("Conv1D") else weight


def _last_layer(model: nn.Module, wanted: str | None) -> str:
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if wanted is not None:
        if not hasattr(modules.get(wanted), "weight"):
            raise ValueError(f"`module` must be a layer of the model that has a weight; got {wanted!r}.")
        return wanted
    found = [name for name, m in modules.items() if name.rpartition(".")[2] in _NAMES and isinstance(m, nn.Linear)]
    if not found:
        raise ValueError(
            f"ClassifierProbe must know the last layer; no linear layer is called one of {', '.join(_NAMES)}. "
            "Pass its name."
        )
    return str(found[-1])
