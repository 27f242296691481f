"""Claims about heads that collapse in hot training, and about what σReparam does to them. Beyond the paper.

Bounds were set on seeds 0, 1 and 2 at scale small and committed before seeds 3, 4 and 5, which judge, were run.
"""

import functools

from rankrise.lab.claims._claim import Finding, Predicate, predicate
from rankrise.lab.claims._single_networks import final_ranks
from rankrise.runs import Array, RunData, read_together

_PILOT = "the bound, on seeds 0, 1 and 2 at scale small, which do not judge"
_COLLAPSED = 0.1  # share of log n below which a head counts as collapsed
_claim = functools.partial(
    predicate,
    "gauges",
    about="attention entropy",
    circuit="kq",
    layers="every layer",
    reference="beyond the paper",
    set_after=_PILOT,
)


def shares(run: RunData) -> tuple[Array, Array, str]:
    """Steps, the entropy of every head as a share of log n, (S, heads), and both extremes in words."""
    steps, (share, logits) = read_together(run, "attention_entropy_share", "max_logit", circuit="kq")
    collapsed = int((share[-1] < _COLLAPSED).sum())
    words = f"{collapsed} of {share.shape[1]} heads below 0.1 at the end, lowest {share.min():.4f}, "
    return steps, share, f"{words}largest logit {logits.max():.0f}."


def lowest_share(run: RunData) -> Finding:
    """The lowest share of any head at any step."""
    _, share, words = shares(run)
    return Finding(float(share.min()), words)


def step_of_collapse(run: RunData) -> Finding:
    """The first step at which a head has less than a tenth of the entropy that it could have."""
    steps, share, words = shares(run)
    below = steps[share.min(1) < _COLLAPSED]
    return Finding(float(below[0]) if len(below) else float("inf"), words)


def least_above_floor(run: RunData) -> Finding:
    """The least difference of the entropy of a head from its floor, in nats."""
    _, (entropy, floor) = read_together(run, "attention_entropy", "entropy_floor", circuit="kq")
    return Finding(float((entropy - floor).min()), f"At most {(entropy - floor).max():.2f} nats above.")


def accuracy(run: RunData) -> Finding:
    """Test accuracy at the end."""
    return Finding(float(run.scalar("test_accuracy")[-1]), shares(run)[2])


def accuracy_gained(changed: RunData, plain: RunData) -> Finding:
    """Test accuracy at the end minus that of the other network."""
    found = [float(run.scalar("test_accuracy")[-1]) for run in (changed, plain)]
    for run in (changed, plain):
        final_ranks(run, "kq")  # refuses a run that is too short
    return Finding(found[0] - found[1], f"{found[0]:.3f} against {found[1]:.3f}.")


_HOT = "vit-digits-hot"
_NAMES = {
    f"{_HOT}-sigma": "under σReparam",
    f"{_HOT}-sigma-qkv": "with σReparam of queries, keys and values",
    f"{_HOT}-spectral": "under PyTorch's spectral norm",
}
_LOWEST = "lowest entropy of a head over log n, over steps, layers and heads"
_ACCURACY = "test accuracy at the end"

PREDICATES: tuple[Predicate, ...] = (
    *(
        _claim(
            "collapses",
            f"a head collapses at thirty times the learning rate{words}",
            of=name,
            aggregate=_LOWEST,
            measure=lowest_share,
            must_be=("≤", 0.05),
            of_every_seed=True,
        )
        for name, words in ((_HOT, ""), (f"{_HOT}-warmup", ", with a warm-up too"))
    ),
    *(
        _claim(
            "does-not-collapse",
            f"no head collapses at thirty times the learning rate {words}",
            of=name,
            aggregate=_LOWEST,
            measure=lowest_share,
            must_be=("≥", bound),
            of_every_seed=True,
        )
        for (name, words), bound in zip(_NAMES.items(), (0.02, 0.1, 0.1), strict=True)
    ),
    _claim(
        "collapse-is-early",
        "heads collapse within 60 steps",
        of=_HOT,
        aggregate="first step at which a head has less than a tenth of log n",
        measure=step_of_collapse,
        must_be=("≤", 60),
        of_every_seed=True,
    ),
    *(
        _claim(
            "stays-above-floor",
            "the entropy of a head is never below the floor that its logits allow",
            of=name,
            aggregate="least difference of entropy and floor in nats, over steps, layers and heads",
            measure=least_above_floor,
            must_be=("≥", -1e-4),
            of_every_seed=True,
        )
        for name in (_HOT, f"{_HOT}-sigma")
    ),
    _claim(
        "sigma-trains-better",
        "at thirty times the learning rate digits are learned better under σReparam of all weights",
        of=f"{_HOT}-sigma",
        circuit="accuracy",
        layers="",
        aggregate=f"{_ACCURACY}, minus that without",
        needs=(f"{_HOT}-sigma", _HOT),
        measure=accuracy_gained,
        must_be=("≥", 0.1),
    ),
    _claim(
        "sigma-trains-better",
        "at thirty times the learning rate digits are learned better under σReparam of queries, keys and values",
        of=f"{_HOT}-sigma-qkv",
        circuit="accuracy",
        layers="",
        aggregate=f"{_ACCURACY}, minus that without",
        needs=(f"{_HOT}-sigma-qkv", _HOT),
        measure=accuracy_gained,
        must_be=("≥", 0.1),
        in_words="at thirty times its learning rate a ViT on digits gains {value:.0%} of test accuracy by σReparam of "
        "queries, keys and values",
    ),
    _claim(
        "learns",
        "with a warm-up digits are learned although heads collapse: collapse is not sufficient for failure",
        of=f"{_HOT}-warmup",
        circuit="accuracy",
        layers="",
        aggregate=_ACCURACY,
        measure=accuracy,
        must_be=("≥", 0.3),
        of_every_seed=True,
    ),
    _claim(
        "fails",
        "under PyTorch's spectral norm digits are not learned although no head collapses: collapse is not necessary "
        "for failure",
        of=f"{_HOT}-spectral",
        circuit="accuracy",
        layers="",
        aggregate=_ACCURACY,
        measure=accuracy,
        must_be=("≤", 0.5),
    ),
    _claim(
        "sigma-trains-better",
        "without LayerNorm and warm-up digits are learned at least as well under σReparam",
        of="vit-digits-bare-sigma",
        circuit="accuracy",
        layers="",
        aggregate=f"{_ACCURACY}, minus that without",
        needs=("vit-digits-bare-sigma", "vit-digits-bare"),
        measure=accuracy_gained,
        must_be=("≥", 0),
        set_after="",
    ),
)
