"""The singular values of a code along training, and what they allow to say about its rank."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rankrise.linalg import energy_rank

State = Literal["plateau", "still rising", "no gap"]
_LEAST_GAP = 10.0  # between the last direction that counts and the next
_LONGEST_RISE = 0.5  # share of the training time after which a rank that changes has not come to rest
_FLOOR = 1e-12  # of the first singular value


@dataclass(frozen=True)
class LatentVerdict:
    """What a path says about the rank of a code. The number alone says little, so it comes with its evidence.

    Attributes:
        rank: Directions that carry the energy at the end.
        gap: σ_rank / σ_{rank+1} at the end; NaN if the code has no further dimension.
        state: "plateau": the rank has not changed in the second half of the training time, and the gap is at least 10.
            "still rising": it has changed there, so that a longer training may find more. "no gap": it has come to
            rest, but the next direction is not much weaker, so that the rank depends on where one cuts.
        settled_at: The step since which the rank has been what it is.
    """

    rank: int
    gap: float
    state: State
    settled_at: int

    def __str__(self) -> str:
        """A sentence."""
        why = {
            "plateau": f"a plateau since step {self.settled_at}",
            "still rising": f"still rising: it last changed at step {self.settled_at}; train longer",
            "no gap": "no gap, so that this number depends on where one cuts",
        }[self.state]
        count = f"{self.rank} direction{'' if self.rank == 1 else 's'}"
        return f"{count}, {why} (σ_{self.rank} / σ_{self.rank + 1} = {self.gap:.3g})"


@dataclass(frozen=True)
class LatentPath:
    """How a code filled its dimensions.

    Attributes:
        steps: Steps of training, (T,).
        times: Training time at these steps, the sum of the learning rates of all steps before, (T,). A schedule that
            ends at zero stops every growth; time stops with it.
        losses: The loss at these steps, (T,).
        spectra: Singular values of the code (standard deviations along its principal directions), largest first,
            (T, k).
    """

    steps: Tensor
    times: Tensor
    losses: Tensor
    spectra: Tensor

    def ranks(self, energy: float = 0.999) -> Tensor:
        """The number of directions that carry a share of the variance of the code, at every step, (T,)."""
        return energy_rank(self.spectra, energy)

    def verdict(self, energy: float = 0.999) -> LatentVerdict:
        """Read the path: which rank, how clear the gap behind it, and whether the rank has come to rest.

        A rank has come to rest if it has not changed in the second half of the training time. Modes are learned at
        times inverse to their strength, so a plateau of this length says that the next direction is weaker than half of
        the last one; it never says that there is none.

        >>> import torch
        >>> spectra = torch.tensor([[1.0, 0.001], [1.0, 0.001], [1.0, 0.5]])
        >>> path = LatentPath(torch.arange(3), torch.arange(3), torch.zeros(3), spectra)
        >>> path.verdict().state
        'still rising'
        """
        ranks = self.ranks(energy)
        rank, last = int(ranks[-1]), self.spectra[-1]
        changed = (ranks != ranks[-1]).nonzero()
        settled = int(changed[-1]) + 1 if len(changed) else 0
        has_next = rank < len(last)
        gap = float(last[rank - 1] / last[rank].clamp_min(_FLOOR * last[0])) if has_next else float("nan")
        state: State
        if self.times[settled] > _LONGEST_RISE * self.times[-1]:
            state = "still rising"
        else:
            state = "plateau" if gap >= _LEAST_GAP else "no gap"
        return LatentVerdict(rank, gap, state, int(self.steps[settled]))
