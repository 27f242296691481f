"""How far the theory of full matrices reaches: processor time and memory of the stages of a head as d grows.

    OMP_NUM_THREADS=1 PYTHONPATH=src:. python studies/matrix_sizes.py 20 --stages 6

A student head learns a full teacher head of its own size (`instances.head`). One line is printed after each stage of
the limit: its rescaled time, processor seconds since the start, gradients, Hessian products and the largest memory so
far. Then the flow at each α is run to just beyond the last of these stages, and compared with the predicted times.
docs/log/matrices.md has the numbers.
"""

import argparse
import math
import resource
import time

import torch
from tests.theory.matrix.instances import head, start

from rankrise import theory


def memory() -> float:
    """The largest memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    """Print a line for each stage, then one for each α."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dim", type=int)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", type=int, default=6)
    parser.add_argument("--rtol", type=float, default=1e-3)
    parser.add_argument("--log10-alpha", type=float, action="append", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    net = head(options.seed, options.dim, options.samples, options.tokens)
    began = time.process_time()

    def tell(at: float) -> None:
        print(f"T = {at:.6f}: {time.process_time() - began:.1f} s, {memory():.2f} GB", flush=True)

    stages = theory.matrix_stages(net, max_stages=options.stages, rtol=options.rtol, on_stage=tell)
    print(stages)
    print(f"{stages.num_gradients} gradients, {stages.num_hessian_products} Hessian products")
    for log10_alpha in options.log10_alpha:
        factors = start(net, options.seed)
        began = time.process_time()
        predicted = stages.predict(factors, log10_alpha=log10_alpha)
        seconds, began = time.process_time() - began, time.process_time()
        end = 1.01 * float(predicted.times[predicted.times.isfinite()].max())
        flow = theory.solve_matrix_flow(net, factors, log10_alpha=log10_alpha, t_end=end, times=[end])
        found = dict(zip(zip(flow.matrices, flow.ranks, strict=True), flow.stage_times.tolist(), strict=True))
        keys = zip(stages.matrices, stages.ranks, strict=True)
        print(f"1e{log10_alpha:g}: predicted in {seconds:.1f} s; flow {time.process_time() - began:.1f} s, "
              f"{flow.num_gradients} gradients, {flow.num_hessian_products} Hessian products, {flow.status.value}, "
              f"{memory():.2f} GB")  # fmt: skip
        for key, t, flags in zip(keys, predicted.times.tolist(), predicted.flags, strict=True):
            of_flow, why = found.get(key, math.nan), ", ".join(flag.value for flag in flags)
            print(f"  predicted {t:.6f} {why or 'not flagged'}, flow {of_flow:.6f}, apart {abs(t / of_flow - 1):.1e}")


if __name__ == "__main__":
    main()
