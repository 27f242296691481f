"""How a computation ended: a value, with what to do about it."""

import enum


class Status(enum.Enum):
    """How a flow, a run of Algorithm 1 or an optimiser ended; `remedy` says what to do when it is not what was wanted.

    >>> Status.FINISHED.value, Status.UNBOUNDED.remedy[:8]
    ('finished', 'Products')
    """

    FINISHED = "finished"
    MAX_STEPS = "max_steps"
    MAX_STAGES = "max_stages"
    T_END = "t_end"
    STALLED = "stalled"
    UNBOUNDED = "unbounded"
    DIVERGED = "diverged"
    SIGN_FLIP = "sign_flip"
    SADDLE = "stuck_at_saddle"

    def at(self, loss: float, stuck: tuple[int, ...], *, what: str = "coordinates") -> str:
        """Return the remedy, with the loss and the coordinates or products where a run is stuck."""
        return f"Stuck at a saddle of loss {loss:.4g}: {what} {stuck}. {self.remedy}" if stuck else self.remedy

    @property
    def remedy(self) -> str:
        """Return what happened and what to do, in a sentence or two."""
        return _REMEDIES[self]


_REMEDIES = {
    Status.FINISHED: "Nothing to do: the computation reached its end.",
    Status.MAX_STEPS: "The largest number of steps was reached. Increase `max_steps`, or loosen `rtol`.",
    Status.MAX_STAGES: "The largest number of stages was reached. Increase `max_stages` to see more.",
    Status.T_END: "The next stage lies after the time asked for. Increase `t_end` to see more.",
    Status.STALLED: "No step was short enough for the tolerance. Check that h is twice continuously differentiable, "
    "or loosen `rtol`.",
    Status.UNBOUNDED: "Products grow without bound and phase B has no limit, as with cross-entropy on separable data. "
    "Pass `l2` to the network: a penalty on q makes the minimum finite.",
    Status.SIGN_FLIP: "The last direction of a square product turned back, which float64 columns cannot follow: its "
    "time and later ones are not to be trusted. Use the limit, or start factors with exactly d columns in `predict`.",
    Status.SADDLE: "The loss can still fall, but the weights that `stuck` lists feel no gradient at products of zero "
    "and never start. Let h start elsewhere: pass h(x, q + q0) with a constant q0 at which the gradient is not zero.",
    Status.DIVERGED: "A step of the optimiser made a product larger than 1e100. Lower `learning_rate`.",
}
