"""Models beside their linearisations under gradient flow: how far apart they end, and which bound κ gives."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rankrise.lab.experiments.kinds._kind import Spec
from rankrise.lab.experiments.kinds._theory_kind import Recording, TheoryKind, Tick, check_at_least

if TYPE_CHECKING:
    from rankrise.theory import LazyModel

_CURVES = (
    "alpha",
    "time",
    "kappa",
    "initial_loss",
    "lipschitz",
    "error",
    "bound",
    "loss",
    "linearisation_error",
)  # the numbers that the table has for every case


@dataclass(frozen=True, kw_only=True)
class LazySpec(Spec):
    """A model α h(w) and its linearisation under the same gradient flow on the square loss (`theory.lazy_flow`).

    Every combination of the tuples is a case.

    Args:
        network: "tight", the scalar model of `theory.tight_model`, or "tanh", a network with one hidden layer that
            learns random signs, centred so that its outputs begin at 0.
        kappas: κ of the tight model, from which α follows.
        alphas: α of the tanh network.
        ends: Times T at which the two are compared.
        lipschitz: L of the tight model.
        initial_losses: R₀ of the tight model.
        samples: Samples of the tanh network.
        dim: Inputs of the tanh network.
        width: Hidden units of the tanh network.
        seed: Seed of the tanh network and its data; the tight model has nothing random.

    Raises:
        ValueError: A number is out of its range, or a tuple that the network needs is empty.
    """

    network: Literal["tight", "tanh"]
    ends: tuple[float, ...]
    kappas: tuple[float, ...] = ()
    alphas: tuple[float, ...] = ()
    lipschitz: tuple[float, ...] = (1.0,)
    initial_losses: tuple[float, ...] = (1.0,)
    samples: int = 8
    dim: int = 3
    width: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = "kappas" if self.network == "tight" else "alphas"
        for name in (needed, "ends", "lipschitz", "initial_losses"):
            values = getattr(self, name)
            if not values or not all(0 < value < math.inf for value in values):
                raise ValueError(f"`{name}` must hold positive numbers; got {values!r}. Pass one or more.")
        for name in ("samples", "dim", "width"):
            check_at_least(name, getattr(self, name), 1)


class LazyKind(TheoryKind[LazySpec]):
    """Solved by `theory.lazy_flow`."""

    name = "lazy"
    title = "a model beside its linearisation, under gradient flow"
    spec = LazySpec

    def record(self, spec: LazySpec, tick: Tick) -> Recording:
        """Save a row for every case."""
        from rankrise.lab.experiments.kinds._toy_parts import curve_rows
        from rankrise.theory import Status

        cases = _tight_cases(spec) if spec.network == "tight" else _tanh_cases(spec, tick)
        curves = {name: [case[name] for case in cases] for name in _CURVES}
        return Recording([curve_rows(curves)], Status.FINISHED)

    def data_name(self, spec: LazySpec) -> str:
        """The targets: random signs, or the one number of the scalar model."""
        return "one target" if spec.network == "tight" else "random signs"

    def in_words(self, record: Mapping[str, Any]) -> str:
        """Which network it is."""
        if record.get("network") == "tight":
            return "the scalar model h(w) = w/√T + L w²/2"
        return f"a tanh network of width {record.get('width')} on {record.get('samples')} random signs"

    def num_numbers(self, spec: LazySpec) -> int:
        """The Jacobian at a point, and a row for every case."""
        return spec.samples * spec.width * (spec.dim + 1) + len(_CURVES) * _num_cases(spec)

    def guess_seconds(self, spec: LazySpec, *, on_gpu: bool) -> float:
        """One second, and more for every case."""
        return 1 + _num_cases(spec) * (0.05 if spec.network == "tight" else 1e-3 * spec.width)


def _num_cases(spec: LazySpec) -> int:
    sizes = (spec.kappas, spec.lipschitz, spec.initial_losses) if spec.network == "tight" else (spec.alphas,)
    return math.prod(map(len, (spec.ends, *sizes)))


def _tight_cases(spec: LazySpec) -> list[dict[str, float]]:
    from rankrise.theory import tight_model

    cases = []
    for kappa, end, lipschitz, loss in itertools.product(spec.kappas, spec.ends, spec.lipschitz, spec.initial_losses):
        alpha = end * lipschitz * math.sqrt(loss) / kappa
        cases += _cases(tight_model(end, lipschitz, loss), alpha, (end,), lipschitz)
    return cases


def _tanh_cases(spec: LazySpec, tick: Tick) -> list[dict[str, float]]:
    model = tanh_model(spec)
    cases = []
    for done, alpha in enumerate(spec.alphas):
        cases += _cases(model, alpha, spec.ends)
        tick((done + 1) / len(spec.alphas))
    return cases


def _cases(
    model: "LazyModel", alpha: float, ends: tuple[float, ...], lipschitz: float | None = None
) -> list[dict[str, float]]:
    """Return one row for every time in `ends`; L is measured along the path up to that time unless it is known."""
    from rankrise.gauges import laziness, linearise
    from rankrise.theory import kappa, lazy_flow, linearisation_bound

    flow = lazy_flow(model.h, model.start, model.targets, alpha=alpha, times=sorted(ends))
    initial_loss = float(0.5 * (alpha * model.h(model.start) - model.targets).square().sum())
    start = linearise(lambda weights: model.h(weights["w"]), {"w": model.start})
    rows = []
    for place, end in enumerate(sorted(ends)):
        path = flow.weights[: place + 1]
        own = path_lipschitz(model, path) if lipschitz is None else lipschitz
        at = kappa(alpha, end, lipschitz=own, initial_loss=initial_loss)
        now = laziness(lambda weights: model.h(weights["w"]), {"w": path[-1]}, start)
        row = (
            alpha,
            end,
            at,
            initial_loss,
            own,
            float(flow.errors[place]),
            linearisation_bound(at, initial_loss),
            float(flow.losses[place]),
            float(now.linearisation_error),
        )
        rows.append(dict(zip(_CURVES, row, strict=True)))
    return rows


def tanh_model(spec: LazySpec) -> "LazyModel":
    """`h(w) = (V tanh(W x / √d)) / √width`, minus its value at the start, with random signs as targets."""
    import torch

    from rankrise.theory import LazyModel

    generator = torch.Generator().manual_seed(spec.seed)
    x = torch.randn(spec.samples, spec.dim, generator=generator, dtype=torch.float64)
    start = torch.randn(spec.width * (spec.dim + 1), generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 2, (spec.samples,), generator=generator).double() * 2 - 1

    def h(w: torch.Tensor) -> torch.Tensor:
        first, second = w[: -spec.width].view(spec.width, spec.dim), w[-spec.width :]
        out: torch.Tensor = torch.tanh(x @ first.T / spec.dim**0.5) @ second / spec.width**0.5
        return out

    at_start = h(start)
    return LazyModel(lambda w: h(w) - at_start, start, targets)


def path_lipschitz(model: "LazyModel", path: Any) -> float:
    """The largest change of the Jacobian over the distance, between any two points of a path that begins at w₀.

    This number is at most the L of the bound, which holds on a whole ball, so that the bound with this number is the
    stricter one.
    """
    import torch

    points = [model.start, *path]
    jacobians = [torch.func.jacrev(model.h)(w) for w in points]
    pairs = itertools.combinations(range(len(points)), 2)
    return max(
        float(torch.linalg.matrix_norm(jacobians[a] - jacobians[b], 2) / (points[a] - points[b]).norm())
        for a, b in pairs
    )
