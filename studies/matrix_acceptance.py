"""The acceptance list of full matrices on seeds that nobody had run: bounds first, then a line for each item.

    OMP_NUM_THREADS=1 PYTHONPATH=src:. python studies/matrix_acceptance.py [A1 A2 A3 A6 FLAGS]

Bounds and seeds were committed before the first run. A4 and A5 compare with frozen references, which tests do. Every
line ends in pass or FAIL; docs/log/matrices.md has the table.
"""

import math
import sys

import numpy as np
import torch
from tests.theory.matrix.instances import anisotropic_sensing, as_numbers, head, sensing, start

from rankrise import theory

SENSING = (411, 412, 413)
HEADS = ((411, 3, 48, 5, 4), (412, 3, 48, 5, 4), (413, 3, 48, 5, 4), (411, 4, 64, 5, 5), (412, 4, 64, 5, 5))
LARGER_HEADS = ((411, 5, 64, 5, 4), (411, 6, 64, 5, 4))  # seed, d, samples, tokens, stages
NUMBERS = (411, 412, 413, 414, 415)
STRETCHED = {2: range(400, 420), 3: range(400, 412)}
STEPS = 3000
LIMIT, RATIO = 0.02, (3.8, 4.2)  # A1: |T - limit| at 1e-256, and 1e-64 over 1e-256
SMALL, LARGE = 1e-5, 1e-2  # A2: error of a prediction at 1e-256, and of unflagged ones at 1e-16
EQUAL = 1e-9  # A3
RULES = 0.1  # A6: both other rules err by more, where they differ from ours by more
GROWTH, HEAD_GROWTH = 1.3, 2.0  # A7: gradients at 1e-1000 over those at 1e-64
UNFLAGGED = 1e-4  # FLAGS: error of an unflagged prediction at 1e-64


def say(item: str, what: str, passed: bool) -> None:
    """Print a line."""
    print(f"{item}  {what}  {'pass' if passed else 'FAIL'}", flush=True)


def flow_of(net: theory.MatrixNetwork, seed: int, log10_alpha: float, end: float) -> theory.MatrixFlow:
    """Follow the flow to a rescaled time."""
    return theory.solve_matrix_flow(
        net, start(net, seed), log10_alpha=log10_alpha, t_end=end, times=[end], max_steps=STEPS
    )


def times_of(flow: theory.MatrixFlow, stages: theory.MatrixStages) -> torch.Tensor:
    """The flow's time of each stage of the limit; NaN where the flow has not reached it."""
    found = dict(zip(zip(flow.matrices, flow.ranks, strict=True), flow.stage_times.tolist(), strict=True))
    keys = zip(stages.matrices, stages.ranks, strict=True)
    return torch.tensor([found.get(key, math.nan) for key in keys], dtype=torch.float64)


def converges() -> None:
    """A1 and A7 on sensing: times tend to the limit as 1/log(1/α), and cost does not grow."""
    for seed in SENSING:
        net = sensing(seed)
        stages = theory.matrix_stages(net, t_end=6.0)
        end = 1.05 * float(stages.times[-1])
        flows = {log10_alpha: flow_of(net, seed, log10_alpha, end) for log10_alpha in (-64, -256, -1000)}
        far, near = (times_of(flows[log10_alpha], stages) - stages.times for log10_alpha in (-64, -256))
        worst, ratios = float((near.abs() / stages.times).max()), far / near
        what = f"sensing 4 x 4, seed {seed}, {len(stages.times)} stages: |T - limit| at 1e-256 {worst:.2%}, ratio "
        what += f"{float(ratios.min()):.2f} to {float(ratios.max()):.2f}"
        say("A1", what, worst <= LIMIT and RATIO[0] <= float(ratios.min()) <= float(ratios.max()) <= RATIO[1])
        growth = flows[-1000].num_gradients / flows[-64].num_gradients
        say("A7", f"sensing 4 x 4, seed {seed}: gradients at 1e-1000 over 1e-64 {growth:.2f}", growth <= GROWTH)


def heads() -> None:
    """A2 and A7 on heads: order, and predictions against flows."""
    for seed, d, samples, tokens, count in (*HEADS, *LARGER_HEADS):
        net = head(seed, d, samples, tokens)
        stages = theory.matrix_stages(net, max_stages=count, rtol=1e-5)
        name = f"head d = {d}, seed {seed}, {len(stages.times)} stages"
        gradients = {}
        for log10_alpha in (-16, -64, -256, -1000):
            predicted = stages.predict(start(net, seed), log10_alpha=log10_alpha)
            flow = flow_of(net, seed, log10_alpha, 1.02 * float(predicted.times[predicted.times.isfinite()].max()))
            gradients[log10_alpha] = flow.num_gradients
            times = times_of(flow, stages)
            errors = (predicted.times / times - 1).abs()
            # Stages may change places where the winner's lead over the stage after it is below c / log(1/α), c = 5.
            gaps = torch.diff(stages.times) / stages.times[1:]
            clear = gaps > 5.0 / (-log10_alpha * math.log(10.0))
            ordered = bool((torch.diff(times)[clear] > 0).all()) and not bool(times.isnan().any())
            flags = torch.tensor(predicted.flagged)
            plain, flagged = errors[~flags], errors[flags]
            what = f"{name}, 1e{log10_alpha}: order {'right' if ordered else 'WRONG'}, {int((~flags).sum())} unflagged "
            what += f"to {float(plain.max()) if len(plain) else 0:.1e}, {int(flags.sum())} flagged to "
            what += f"{float(flagged.max()) if len(flagged) else 0:.1e}, {flow.status.value}"
            bound = LARGE if log10_alpha == -16 else SMALL if log10_alpha <= -256 else math.inf
            within = bool((plain <= bound).all()) and (log10_alpha > -256 or bool((errors <= bound).all()))
            say("A2", what, ordered and within)
        growth = gradients[-1000] / gradients[-64]
        say("A7", f"{name}: gradients at 1e-1000 over 1e-64 {growth:.2f}", growth <= HEAD_GROWTH)


def numbers() -> None:
    """A3: products of 1 x 1 give back the diagonal algorithm, coordinates that leave and return included."""
    for seed in NUMBERS:
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((6, 4)) @ (np.eye(4) + 1.5 * rng.standard_normal((4, 4)))
        net = theory.linear(x, 3 * rng.standard_normal(6))
        diagonal = theory.incremental_stages(net)
        full = theory.matrix_stages(as_numbers(net), max_stages=len(diagonal.times))
        same = full.matrices == tuple(diagonal.coordinates)
        error = float((full.times / diagonal.times - 1).abs().max()) if same else math.inf
        left = sum(len(certificate.left) for certificate in diagonal.certificates)
        what = f"1 x 1, seed {seed}: {len(diagonal.times)} stages, {left} leave, times differ by {error:.1e}"
        say("A3", what, same and error <= EQUAL)


def rules() -> None:
    """A6: two tempting rules for the exponents fail where they differ from ours."""
    for seed in SENSING:
        net = sensing(seed)
        stages = theory.matrix_stages(net, t_end=6.0)
        times = times_of(flow_of(net, seed, -1000, 1.05 * float(stages.times[-1])), stages)
        errors = []
        for rule in (lambda s: np.full_like(s, s.max()), np.zeros_like):
            s, t, found = np.zeros(len(stages.spectra[0][0])), 0.0, []
            for spectra in stages.spectra[: len(stages.times)]:
                sigma = spectra[0].numpy()
                s = rule(s)
                wait = (1 - s[0]) / sigma[0]
                t, s = t + wait, (s + sigma * wait)[1:]
                found.append(t)
            errors.append(float(np.abs(np.array(found) / times.numpy() - 1).max()))
        ours = float((stages.times / times - 1).abs().max())
        what = f"sensing 4 x 4, seed {seed}, against 1e-1000: ours {ours:.2%}, "
        what += f"max {errors[0]:.0%}, restart {errors[1]:.0%}"
        say("A6", what, ours < RULES / 10 and min(errors) > RULES)


def flags() -> None:
    """Unflagged predictions of few, stretched measurements against the flow."""
    for d, seeds in STRETCHED.items():
        for seed in seeds:
            net = anisotropic_sensing(seed, d, {2: 6, 3: 14}[d])
            stages = theory.matrix_stages(net, t_end=8.0)
            name = f"stretched {d} x {d}, seed {seed}"
            if stages.status not in (theory.Status.FINISHED, theory.Status.T_END) or len(stages.times) < 2:
                say("FLAGS", f"{name}: {len(stages.times)} stages, {stages.status.value}: nothing to compare", True)
                continue
            predicted = stages.predict(start(net, seed), log10_alpha=-64)
            known = predicted.times[predicted.times.isfinite()]
            flow = flow_of(net, seed, -64, min(8.2, 1.02 * float(known.max())))
            errors = (predicted.times / times_of(flow, stages) - 1).abs()
            marked = torch.tensor(predicted.flagged)
            plain, other = (part[part.isfinite()] for part in (errors[~marked], errors[marked]))
            what = f"{name}: {len(plain)} unflagged to {float(plain.max()) if len(plain) else 0:.1e}, {len(other)} "
            what += f"flagged to {float(other.max()) if len(other) else 0:.1e}, {flow.status.value}"
            say("FLAGS", what, bool((plain <= UNFLAGGED).all()))


ITEMS = {"A1": converges, "A2": heads, "A3": numbers, "A6": rules, "FLAGS": flags}


def main() -> None:
    """Run the items that are named, or all."""
    torch.set_num_threads(1)
    for item in sys.argv[1:] or ITEMS:
        ITEMS[item]()


if __name__ == "__main__":
    main()
