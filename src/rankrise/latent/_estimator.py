"""How many dimensions data have: an autoencoder whose linear sub-network fills a code one direction after another."""

import inspect
import itertools
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from rankrise.latent._rank_path import LatentPath
from rankrise.latent._subnetwork import LinearSubnetwork

_READINGS = 100  # along a training
_MOST_READ = 2048  # samples of a reading
_GAIN = 0.5  # of every matrix of the sub-network at the start


class LatentRank:
    """The number of dimensions that an autoencoder with a linear sub-network needs, with the evidence for it.

    An encoder of two hidden layers (GELU), `depth` square linear layers, and a decoder like the encoder are trained by
    Adam under a one-cycle schedule on the squared error. The linear layers, which start small and can represent no more
    than one, make the code fill one direction after another; the directions of noise come last. The answer is a
    plateau and never a limit: read `verdict_`.

    It follows the manner of scikit-learn, which is not needed: the constructor stores, `fit` computes, what is fitted
    ends with an underscore.

    Attributes:
        rank_: How many directions of the code carry `energy` of its variance.
        gap_: The singular value of the last of them over the next one.
        verdict_: A `LatentVerdict`: "plateau", "still rising" or "no gap", and since when.
        path_: The singular values along training, a `LatentPath`.
        error_: Mean squared error of the reconstruction, as a share of the variance of the data.

    Args:
        depth: Layers of the sub-network; with 0 a plain autoencoder.
        code_dim: Size of the code, an upper bound on the answer.
        hidden: Width of the hidden layers.
        steps: Steps of training.
        learning_rate: Largest learning rate of the schedule.
        batch_size: Samples in a step.
        energy: Share of the variance of the code that the counted directions carry.
        seed: Of weights and batches.

    >>> draw = np.random.default_rng(0).standard_normal
    >>> plane = draw((200, 2)) @ draw((2, 6)) + 0.01 * draw((200, 6))
    >>> found = LatentRank(depth=2, code_dim=4, hidden=16, steps=300, learning_rate=1e-2).fit(plane)
    >>> found.rank_, found.verdict_.state, found.transform(plane).shape
    (2, 'plateau', (200, 2))
    """

    rank_: int

    def __init__(
        self,
        depth: int = 4,
        code_dim: int = 32,
        hidden: int = 64,
        steps: int = 1500,
        learning_rate: float = 2e-3,
        batch_size: int = 256,
        energy: float = 0.999,
        seed: int = 0,
    ) -> None:
        self.depth, self.code_dim, self.hidden, self.steps = depth, code_dim, hidden, steps
        self.learning_rate, self.batch_size, self.energy, self.seed = learning_rate, batch_size, energy, seed

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor by name, as scikit-learn asks for them."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor.

        Raises:
            ValueError: A name is unknown.
        """
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"A parameter must be one of {', '.join(known)}; got {name!r}.")
            setattr(self, name, value)
        return self

    def fit(self, X: ArrayLike | Tensor, y: object = None) -> Self:
        """Train the autoencoder on data (n, d); `y` is not used.

        Raises:
            ValueError: The data are no finite matrix of at least two different rows, or a parameter is out of range.
        """
        self._check()
        data = _matrix(X)
        self._mean = data.mean(0)
        centred = data - self._mean
        self._scale = centred.norm() / centred.numel() ** 0.5
        if not self._scale > 0:
            raise ValueError("`X` must have rows that differ; all its rows are the same.")
        x = (centred / self._scale).float()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            widths = (x.shape[1], self.hidden, self.hidden, self.code_dim)
            linear = LinearSubnetwork(self.code_dim, self.depth, gain=_GAIN, seed=self.seed)
            self._encoder, self._decoder = nn.Sequential(*_layers(widths), linear), _layers(widths[::-1])
        self.path_ = self._train(x)
        self.verdict_ = self.path_.verdict(self.energy)
        self.rank_, self.gap_ = self.verdict_.rank, self.verdict_.gap
        self.error_ = float(self.path_.losses[-1])
        with torch.no_grad():
            code = self._encoder(_some(x)).double()
            self._code_mean = code.mean(0)
            self._axes = torch.linalg.svd(code - self._code_mean, full_matrices=False).Vh[: self.rank_]
        return self

    def transform(self, X: ArrayLike | Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The code of data along its `rank_` principal directions, (n, rank_).

        Raises:
            ValueError: Nothing was fitted, or the data have another number of columns.
        """
        if not hasattr(self, "_axes"):
            raise ValueError("`transform` must come after `fit`; nothing was fitted.")
        data = _matrix(X)
        if data.shape[1] != len(self._mean):
            raise ValueError(f"`X` must have {len(self._mean)} columns, as in `fit`; got {data.shape[1]}.")
        with torch.no_grad():
            codes = [
                self._encoder(((x - self._mean) / self._scale).float()).double() for x in torch.split(data, _MOST_READ)
            ]
        found: np.ndarray[Any, np.dtype[np.float64]] = ((torch.cat(codes) - self._code_mean) @ self._axes.mT).numpy()
        return found

    def fit_transform(self, X: ArrayLike | Tensor, y: object = None) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Fit, and return the code of the same data."""
        return self.fit(X, y).transform(X)

    def __repr__(self) -> str:
        """The call that makes it."""
        return f"LatentRank({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"

    def _check(self) -> None:
        least = {"depth": 0, "code_dim": 1, "hidden": 1, "steps": 1, "batch_size": 1}
        for name, low in least.items():
            if not isinstance(getattr(self, name), int) or getattr(self, name) < low:
                raise ValueError(f"`{name}` must be an integer of at least {low}; got {getattr(self, name)!r}.")
        if not self.learning_rate > 0 or not 0 < self.energy < 1:
            raise ValueError(
                f"`learning_rate` must be positive and 0 < `energy` < 1; got {self.learning_rate} and {self.energy}."
            )

    def _train(self, x: Tensor) -> LatentPath:
        optimiser = torch.optim.Adam([*self._encoder.parameters(), *self._decoder.parameters()])
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, self.learning_rate, total_steps=self.steps + 1)
        generator = torch.Generator().manual_seed(self.seed)
        size, some = min(self.batch_size, len(x)), _some(x)
        readings: list[tuple[int, float, float, Tensor]] = []
        order, time = torch.empty(0, dtype=torch.int64), 0.0
        for step in range(self.steps + 1):
            if step % max(self.steps // _READINGS, 1) == 0 or step == self.steps:
                readings.append((step, time, *self._read(some)))
            if step == self.steps:
                break
            if len(order) < size:
                order = torch.randperm(len(x), generator=generator)
            batch, order = x[order[:size]], order[size:]
            time += float(schedule.get_last_lr()[0])
            optimiser.zero_grad()
            (self._decoder(self._encoder(batch)) - batch).square().mean().backward()
            optimiser.step()
            schedule.step()
        steps, times, losses, spectra = zip(*readings, strict=True)
        return LatentPath(torch.tensor(steps), torch.tensor(times), torch.tensor(losses), torch.stack(spectra))

    @torch.no_grad()
    def _read(self, x: Tensor) -> tuple[float, Tensor]:
        code = self._encoder(x)
        loss = float((self._decoder(code) - x).square().mean())
        wide = code.double()
        squares = torch.linalg.eigvalsh(torch.cov(wide.mT, correction=0).reshape(self.code_dim, self.code_dim))
        return loss, squares.flip(0).clamp_min(0).sqrt()


def _some(x: Tensor) -> Tensor:
    """At most `_MOST_READ` samples, spread over all."""
    return x[:: -(-len(x) // _MOST_READ)]


def _layers(widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.GELU()]
    return nn.Sequential(*layers[:-1])


def _matrix(data: ArrayLike | Tensor) -> Tensor:
    matrix = data.detach().cpu() if isinstance(data, Tensor) else torch.from_numpy(np.array(data, dtype=np.float64))
    if matrix.ndim != 2 or min(matrix.shape, default=0) < 1 or not matrix.double().isfinite().all():
        raise ValueError(f"`X` must be a matrix (n, d) of finite numbers; got the shape {tuple(matrix.shape)}.")
    return matrix.double()
