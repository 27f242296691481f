"""The numbers behind the verdicts on the committed results, again: plain lines of pyarrow, numpy and scipy.

Nothing of rankrise is used, so that a mistake there is not made twice; only which quantity a claim reads is the same.
"""

import json
from functools import cache

import numpy as np
import pyarrow.parquet as pq
from scipy import stats

FAMILY = tuple(f"vit-cifar10-scale-{factor}" for factor in ("1", "0.3", "0.1", "0.03"))
OTHER_DATA = ("vit-cifar100", "vit-tiny-imagenet")
VARIANTS = tuple(f"vit-cifar10-{name}" for name in ("relu", "sgd", "random-labels", "wide", "ceng501"))
FLOWS = tuple(f"toy-flow-1e-{power}" for power in (2, 4, 8, 16, 32))
LIKE_THE_TOY = ("toy-flow-1e-8", "toy-gd", "toy-sgd", "toy-adam", "toy-relu", "toy-cross-entropy")
OF_THE_WORST_SEED = {
    *(f"{name}@toy-stages" for name in ("one-joins-per-stage", "nothing-leaves", "unique-winner", "strict-minimum")),
    "nothing-leaves@toy-flow-1e-32",
    *(f"{name}@toy-full-stages" for name in ("strict-minimum", "generic")),
}
FULL_FLOWS = tuple(f"toy-full-flow-1e-{power}" for power in (8, 32, 256))


@cache
def spec_of(folder):
    return json.loads((folder / "spec.json").read_text())["config"]["spec"]


def by_seed(folders):
    return sorted(folders, key=lambda folder: spec_of(folder)["seed"])


@cache
def table(folder):
    found = pq.read_table(folder / "metrics.parquet")
    return {name: found[name].to_numpy() for name in found.column_names}


def rows_of(folder, quantity, circuit=None, columns=("step", "layer", "head", "index", "value")):
    """Columns of the rows of a quantity, in the order of those columns."""
    t = table(folder)
    chosen = (t["quantity"] == quantity) & (circuit is None or t["circuit"] == circuit)
    found = [t[name][chosen] for name in columns]
    order = np.lexsort(found[::-1])
    return [column[order] for column in found]


def scalar(folder, name):
    return rows_of(folder, name)[-1]


def both(folder, quantity):
    """Of a theory run, (steps, 2d): first kq, then vo."""
    steps = len(np.unique(rows_of(folder, quantity)[0]))
    return np.concatenate([rows_of(folder, quantity, c)[-1].reshape(steps, -1) for c in ("kq", "vo")], axis=1)


def rank_curves(folder, circuit):
    """Steps after the start, and means over heads, (steps, layers)."""
    steps, layers, _, _, values = rows_of(folder, "stable_rank", circuit)
    shape = (len(np.unique(steps)), len(np.unique(layers)), -1)
    steps, means = np.unique(steps), values.reshape(shape).mean(-1)
    return steps[steps > 0], means[steps > 0]


def final_ranks(folder, circuit):
    return rank_curves(folder, circuit)[1][-1]


def initial_ranks(folder, circuit):
    _, layers, heads, _, values = rows_of(folder, "initial_spectrum", circuit)
    sigma = values.reshape(len(np.unique(layers)), len(np.unique(heads)), -1)
    return ((sigma**2).sum(-1) / sigma.max(-1) ** 2).mean(-1)


@cache
def random_rank(width, head_dim):
    """Mean stable rank of a product of Gaussian factors; its spectrum is that of a product of their R."""
    random, found = np.random.default_rng(0), []
    for _ in range(200):
        a, b = (np.linalg.qr(random.standard_normal((width, head_dim)), mode="r") for _ in range(2))
        sigma = np.linalg.svd(a @ b.T, compute_uv=False)
        found.append((sigma**2).sum() / sigma[0] ** 2)
    return np.mean(found)


def of_networks(found):
    """Claims by id: the number of each seed, and the bound."""
    wanted = {}
    for name in ("vit-cifar10", *FAMILY, "vit-cifar10-augmented", "gpt2-wikitext2", *OTHER_DATA, *VARIANTS):
        model = spec_of(found[name][0])["model"]
        width = model.get("width") or model["dim"]
        chance = random_rank(width, model.get("head_dim") or width // model["num_heads"])
        for circuit in ("kq", "vo"):
            curves = [rank_curves(folder, circuit) for folder in by_seed(found[name])]
            ends = [ranks[-1] for _, ranks in curves]
            starts = [initial_ranks(folder, circuit) for folder in by_seed(found[name])]
            low = [(end / start).max() for end, start in zip(ends, starts, strict=True)]
            early = [ranks[steps <= max(0.05 * steps[-1], steps[0])].mean(0) for steps, ranks in curves]
            rise = [(end / start).min() for end, start in zip(ends, early, strict=True)]
            steady = [min(stats.spearmanr(steps, layer).statistic for layer in ranks.T) for steps, ranks in curves]
            wanted[f"lower-than-init-{circuit}@{name}"] = low, "≤ 0.5"
            wanted[f"lower-than-random-{circuit}@{name}"] = [end.max() / chance for end in ends], "≤ 0.5"
            wanted[f"rises-{circuit}@{name}"] = rise, "> 1"
            wanted[f"rises-steadily-{circuit}@{name}"] = steady, "≥ 0.5"
    for name in ("vit-cifar10", "vit-cifar10-scale-1", "gpt2-wikitext2", *OTHER_DATA, "vit-cifar10-ceng501"):
        kq, vo = ([final_ranks(folder, circuit) for folder in by_seed(found[name])] for circuit in ("kq", "vo"))
        wanted[f"vo-above-kq@{name}"] = [(b / a).min() for a, b in zip(kq, vo, strict=True)], "> 1"
        if name == "vit-cifar10-ceng501":
            continue  # the depth of four layers is no claim
        for circuit, ends in (("kq", kq), ("vo", vo)):
            order = [stats.spearmanr(np.arange(len(end)), end).statistic for end in ends]
            wanted[f"deeper-is-higher-{circuit}@{name}"] = order, "≥ 0.5"
    for circuit in ("kq", "vo"):
        many, few = (final_ranks(found[name][0], circuit).mean() for name in ("vit-cifar100", "vit-cifar10"))
        wanted[f"more-classes-higher-{circuit}@vit-cifar100"] = [many / few], "> 1"
    for circuit in ("kq", "vo"):  # (seeds, scales, layers), from the largest scale to the smallest
        ranks = np.array([[final_ranks(folder, circuit) for folder in by_seed(found[name])] for name in FAMILY])
        ranks = ranks.swapaxes(0, 1)
        ratios, shares = (ranks[:, 0] / ranks[:, -1]).min(-1), (ranks[:, 1:] < ranks[:, :-1]).mean((1, 2))
        wanted[f"smallest-scale-is-lower-{circuit}@vit-cifar10-scale"] = ratios, "> 1"
        wanted[f"each-smaller-scale-is-lower-{circuit}@vit-cifar10-scale"] = shares, "≥ 0.9"
    first, last = (
        np.array([scalar(folder, "test_accuracy")[-1] for folder in by_seed(found[name])])
        for name in (FAMILY[0], FAMILY[-1])
    )
    wanted["small-scale-hurts@vit-cifar10-scale"] = first - last, "≥ 0.01"
    return wanted


def active_from(folder):
    """When each coordinate becomes active, (2d,); inf for never."""
    d = spec_of(folder)["task"]["dim"]
    times = np.full((2, d), np.inf)
    for n, circuit in enumerate(("kq", "vo")):
        _, _, _, index, values = rows_of(folder, "activation_time", circuit)
        times[n, index] = values
    return times.ravel()


def share_at_half(times, losses, active):
    """Of those that become active, the share that is when the loss is half way down."""
    half = times[losses <= (losses[0] + losses[-1]) / 2][0]
    return np.mean(active[np.isfinite(active)] <= half)


def at_half(folder):
    return share_at_half(scalar(folder, "time"), scalar(folder, "loss"), active_from(folder))


def at_half_of_matrices(folder):
    times, sigma = scalar(folder, "time"), both(folder, "spectrum")
    above = sigma > 0.01 * sigma[-1].max()
    first = np.array([times[column][0] if column.any() else np.inf for column in above.T])
    return share_at_half(times, scalar(folder, "loss"), first)


def time_of_drops(folder):
    """The fewest of 2000 parts of the time that hold 90% of the fall."""
    times = scalar(folder, "time")
    losses = np.interp(np.linspace(times[0], times[-1], 2001), times, scalar(folder, "loss"))
    falls = sorted(np.maximum(-np.diff(losses), 0), reverse=True)
    return next(n for n in range(2001) if sum(falls[:n]) >= 0.9 * sum(falls)) / 2000


def num_stages(folder):
    times, losses = scalar(folder, "time"), np.minimum.accumulate(scalar(folder, "loss"))
    ever = sorted(t for t in active_from(folder) if t < np.inf)
    counted = []
    for part in (losses[0] - np.interp(ever, times, losses)) / (losses[0] - losses[-1]):
        if not counted or part >= counted[-1] + 0.05:
            counted.append(part)
    return len(counted)


def from_limit(stages, flow):
    """|loss − loss of the limit| over the limit's fall, at 4001 times."""
    times, at, levels = scalar(flow, "time"), scalar(stages, "time"), scalar(stages, "loss")
    grid = np.linspace(0, times[-1], 4001)
    limit = np.array([levels[at <= t][-1] for t in grid])
    return np.abs(np.interp(grid, times, scalar(flow, "loss")) - limit) / (levels[0] - levels[-1])


def stage_times(stages, flows):
    """T_k, and t_k in each flow, of coordinates that become active in the limit or in a flow; at the latest the end."""
    end = min(scalar(flow, "time")[-1] for flow in flows)
    limit = np.full(2 * spec_of(stages)["task"]["dim"], end)
    for i, t in zip(scalar(stages, "joined").astype(int), scalar(stages, "time")[1:], strict=True):
        limit[i] = min(limit[i], t)
    times = np.minimum([active_from(flow) for flow in flows], end)
    ever = (limit < end) | (times < end).any(0)
    return limit[ever], times[:, ever]


def order(stages, *flows):
    limit, times = stage_times(stages, flows)
    lengths = [-spec_of(flow)["log10_alpha"] for flow in flows]
    return -stats.linregress(np.log(lengths), np.log(np.abs(times - limit).mean(1))).slope


def worst_time(stages, flow):
    limit, times = stage_times(stages, [flow])
    return (np.abs(times[0] - limit) / limit).max()


def against_flow(run, flow):
    end = min(scalar(run, "time")[-1], scalar(flow, "time")[-1])
    a, b = (np.minimum(active_from(folder), end) for folder in (run, flow))
    return np.abs(a / b - 1)[(a < end) | (b < end)].max()


def paths(folder):
    """Of each perturbation that moved a product by a tenth of the noise, times, distances, and the largest product."""
    times = dict(zip(*rows_of(folder, "time", columns=("step", "value")), strict=True))
    heads = rows_of(folder, "product")[2]
    for head in np.unique(heads):
        sizes = []
        for quantity in ("product", "product_perturbed"):
            found = [rows_of(folder, quantity, circuit) for circuit in ("kq", "vo")]
            steps = np.unique(found[0][0][found[0][2] == head])
            sizes.append(np.hstack([f[-1][f[2] == head].reshape(len(steps), -1) for f in found]))
        gaps = np.abs(sizes[1] - sizes[0]).max(1)
        if gaps[0] >= 0.1 * spec_of(folder)["noise"]:
            yield np.array([times[step] for step in steps]), gaps, np.abs(sizes[0][-1]).max()


def returned(times, gaps):
    """The least distance kept for a tenth of the time."""
    even = np.interp(np.linspace(times[0], times[-1], 101), times, gaps)
    return min(even[n : n + 11].max() for n in range(91))


def later(times, gaps):
    return np.median(np.interp(np.linspace((times[0] + times[-1]) / 2, times[-1], 101), times, gaps))


def of_the_toy(found):
    """Claims by id: the number of each seed, and the bound."""
    runs = {name: by_seed(folders) for name, folders in found.items() if name.startswith("toy-")}
    limits, flows, last = runs["toy-stages"], [runs[name] for name in FLOWS], FLOWS[-1]
    active = [both(folder, "product") != 0 for folder in limits]
    above = [np.abs(both(folder, "product")) > spec_of(folder)["threshold"] for folder in runs[last]]
    away = [
        [(from_limit(stages, flow) > 0.05).mean() for stages, flow in zip(limits, flows[n], strict=True)]
        for n in (0, -1)
    ]
    pushed, followed = ([list(paths(folder)) for folder in runs[f"toy-robustness-4.{n}"]] for n in (3, 4))
    losses = [scalar(folder, "loss") for folder in runs["toy-ceng501"]]
    wanted = {
        "one-joins-per-stage@toy-stages": ([(a[1:] & ~a[:-1]).sum(1).max() for a in active], "≤ 1"),
        "nothing-leaves@toy-stages": ([(a[:-1] & ~a[1:]).sum() for a in active], "≤ 0"),
        f"nothing-leaves@{last}": ([(a[:-1] & ~a[1:]).any(0).sum() for a in above], "≤ 0"),
        "unique-winner@toy-stages": ([scalar(folder, "gap").min() for folder in limits], "> 0"),
        "strict-minimum@toy-stages": ([scalar(folder, "curvature").min() for folder in limits], "> 0"),
        f"follows-the-limit@{last}": (
            [from_limit(*pair).mean() for pair in zip(limits, flows[-1], strict=True)],
            "≤ 0.05",
        ),
        "transitions-vanish@toy-flow": (np.divide(away[1], away[0]), "≤ 0.5"),
        "stage-times-converge@toy-flow": ([order(*group) for group in zip(limits, *flows[1:], strict=True)], "≥ 0.5"),
        f"stage-times-near@{last}": ([worst_time(*pair) for pair in zip(limits, flows[-1], strict=True)], "≤ 0.1"),
        "one-after-another@toy-matrix-flow": (
            [at_half_of_matrices(folder) for folder in runs["toy-matrix-flow"]],
            "≤ 0.75",
        ),
        "returns@toy-robustness-4.3": ([max(returned(t, g) / g[0] for t, g, _ in seed) for seed in pushed], "≤ 0.1"),
        "stays-returned@toy-robustness-4.3": ([max(g[-1] / g[0] for _, g, _ in seed) for seed in pushed], "≤ 0.1"),
        "same-end@toy-robustness-4.4": ([max(later(t, g) / q for t, g, q in seed) for seed in followed], "≤ 0.05"),
        "learns@toy-ceng501": ([1 - loss[-1] / loss[0] for loss in losses], "≥ 0.1"),
    }
    for name in (FLOWS[0], last):
        wanted[f"plateaus@{name}"] = [time_of_drops(folder) for folder in runs[name]], "≤ 0.2"
    for name in (FLOWS[0], last, *LIKE_THE_TOY):
        wanted[f"one-after-another@{name}"] = [at_half(folder) for folder in runs[name]], "≤ 0.75"
    for name in LIKE_THE_TOY:
        wanted[f"stages@{name}"] = [num_stages(folder) for folder in runs[name]], "≥ 2"
    for name in ("toy-gd", "toy-sgd", "toy-adam"):
        pairs = zip(runs[name], runs["toy-flow-1e-8"], strict=True)
        wanted[f"times-as-in-the-flow@{name}"] = [against_flow(*pair) for pair in pairs], "≤ 0.05"
    return wanted


def passes(folder):
    """When each singular value of both products first passes 1e-3, by a straight line between logarithms."""
    times, sigma = scalar(folder, "time"), both(folder, "spectrum")
    found = np.full(sigma.shape[1], np.inf)
    for i, path in enumerate(np.log(np.maximum(sigma, 1e-300)).T):
        for n in range(1, len(path)):
            if path[n] > np.log(1e-3):
                found[i] = np.interp(np.log(1e-3), path[n - 1 : n + 1], times[n - 1 : n + 1])
                break
    return found


def from_prediction(stages, flow):
    """The k-th stage of a product is predicted for its k-th singular value."""
    place = spec_of(stages)["log10_alphas"].index(spec_of(flow)["log10_alpha"])
    _, _, alphas, _, predicted = rows_of(stages, "predicted_time")
    predicted, of = predicted[alphas == place], scalar(stages, "product")
    passed = passes(flow).reshape(2, -1)
    measured = [passed[int(of[k]), np.sum(of[:k] == of[k])] for k in range(len(of))]
    return np.abs(measured - predicted).max() / predicted.max()


def passes_against_flow(run, flow):
    end = min(scalar(run, "time")[-1], scalar(flow, "time")[-1])
    a, b = (np.minimum(passes(folder), end) for folder in (run, flow))
    return np.abs(a / b - 1)[(a < end) | (b < end)].max()


def of_adam(folder):
    """Shares of coordinates that are active at half of the fall of the loss, by (β₂, ε, α)."""
    spec, t = spec_of(folder), table(folder)
    shape = [len(spec[name]) for name in ("beta2s", "epsilons", "log10_alphas")]
    found = np.zeros(shape)
    for beta2, epsilon, alpha in np.ndindex(*shape):
        case = beta2 * shape[1] + epsilon
        mine = (t["quantity"] == "loss_of_case") & (t["head"] == case) & (t["index"] == alpha)
        order = np.argsort(t["step"][mine])
        starts = (t["quantity"] == "active_from") & (t["head"] == case)
        active = t["value"][starts][np.argsort(t["index"][starts])].reshape(shape[2], -1)[alpha]
        path = t["value"][mine][order]
        found[beta2, epsilon, alpha] = share_at_half(t["step"][mine][order], path, np.where(active < 0, np.inf, active))
    return found


def of_full_heads(found):
    """Claims by id: the number of each seed, and the bound."""
    limits, *flows = (by_seed(found[name]) for name in ("toy-full-stages", *FULL_FLOWS))
    away = [
        [(from_limit(stages, flow) > 0.05).mean() for stages, flow in zip(limits, flows[n], strict=True)]
        for n in (0, -1)
    ]
    adam = [of_adam(folder) for folder in by_seed(found["toy-adam-phases"])]
    wanted = {
        "strict-minimum@toy-full-stages": ([scalar(folder, "curvature").min() for folder in limits], "> 0"),
        "generic@toy-full-stages": ([scalar(folder, "smallest_minor").min() for folder in limits], "≥ 0.001"),
        f"follows-the-limit@{FULL_FLOWS[-1]}": (
            [from_limit(*pair).mean() for pair in zip(limits, flows[-1], strict=True)],
            "≤ 0.02",
        ),
        "transitions-vanish@toy-full-flow": (np.divide(away[1], away[0]), "≤ 0.5"),
        "no-stages@toy-adam-phases": ([shares[:, 0].min() for shares in adam], "≥ 0.8"),
        "stages-return@toy-adam-phases": ([shares[:, -1, -1].max() for shares in adam], "≤ 0.75"),
    }
    for name, group, bound in zip(FULL_FLOWS, flows, ("≤ 0.05", "≤ 0.01", "≤ 0.01"), strict=True):
        pairs = zip(limits, group, strict=True)
        wanted[f"times-as-predicted@{name}"] = [from_prediction(*pair) for pair in pairs], bound
    for name in (FULL_FLOWS[0], "toy-full-gd", "toy-full-sgd", "toy-full-adam"):
        wanted[f"one-after-another@{name}"] = [at_half_of_matrices(folder) for folder in by_seed(found[name])], "≤ 0.75"
    for name in ("toy-full-gd", "toy-full-sgd", "toy-full-adam"):
        pairs = zip(by_seed(found[name]), flows[0], strict=True)
        wanted[f"times-as-in-the-flow@{name}"] = [passes_against_flow(*pair) for pair in pairs], "≤ 0.15"
    return wanted
