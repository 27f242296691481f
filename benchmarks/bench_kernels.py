"""The leading 64 directions of a Jacobian: our two ways, dense `torch.func.jacrev`, and curvlinops with SciPy's `svds`.

    pip install curvlinops-for-pytorch==3.0.1
    OMP_NUM_THREADS=1 python benchmarks/bench_kernels.py --out benchmarks/results

Process CPU time, and the peak of memory above what the process held before, each in a process forked for it. The ViT
(64 images of 8 × 8, all 10 outputs, 640 rows) is done in full by all. Of the GPT-2-shaped model of transformers (256
samples of 64 tokens, the sum of all outputs, 256 rows) the Gram matrix is done in full, and of the others one product
with V and one with Vᵀ is timed, beside the number of products that they would need.
"""

import argparse
import json
import multiprocessing
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from curvlinops import JacobianLinearOperator, TransposedJacobianLinearOperator
from scipy.sparse.linalg import LinearOperator, svds
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import GPT2Config, GPT2LMHeadModel

from rankrise.kernels import JacobianOperator, top_directions
from rankrise.lab.models import ViTConfig, build_model
from rankrise.store import environment

COMMAND = re.sub(r" --out \S+", "", " ".join(["python", f"benchmarks/{Path(__file__).name}", *sys.argv[1:]]))
K = 64
PRODUCTS = {"krylov": 4 * (K + 8), "curvlinops and svds": 2 * K + 1}  # with V and with Vᵀ each; of svds the least


class SumOfOutputs(nn.Module):
    """A language model as the one number of a sample that the kernel is of."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """The sum over the root of the number of outputs, (n, 1)."""
        flat = self.model(tokens).logits.flatten(1)
        return flat.sum(1, keepdim=True) / flat.shape[1] ** 0.5


def vit() -> tuple[nn.Module, Tensor]:
    """A ViT of two layers and width 64, and noise for images."""
    sizes = {"width": 64, "num_layers": 2, "num_heads": 4, "head_dim": 16, "mlp_width": 128}
    model = build_model(ViTConfig(image_size=8, num_channels=1, patch_size=2, **sizes), seed=0)
    return model.eval(), torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def gpt() -> tuple[nn.Module, Tensor]:
    """A GPT-2 of two layers and width 64, and random tokens."""
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 64, "vocab_size": 512}
    model = GPT2LMHeadModel(GPT2Config(**sizes, attn_implementation="eager"))
    return SumOfOutputs(model).eval(), torch.randint(512, (256, 64), generator=torch.Generator().manual_seed(0))


def dense(model: nn.Module, x: Tensor) -> Tensor:
    """Singular values of V by torch.func.jacrev, 16 rows at a time."""
    weights = {n: p.detach() for n, p in model.named_parameters()}
    jacobian = torch.func.jacrev(lambda w: torch.func.functional_call(model, w, (x,)).flatten(), chunk_size=16)(weights)
    v = torch.cat([part.flatten(1) for part in jacobian.values()], dim=1)
    return torch.linalg.svdvals(v @ v.mT).sqrt()[:K]


def curvlinops_operators(model: nn.Module, x: Tensor) -> list[object]:
    """V and Vᵀ of curvlinops, on the whole batch."""
    data, params = [(x, torch.zeros(len(x)))], [p for p in model.parameters() if p.requires_grad]
    kinds = (JacobianLinearOperator, TransposedJacobianLinearOperator)
    return [kind(model, params, data, check_deterministic=False) for kind in kinds]


def by_svds(model: nn.Module, x: Tensor) -> Tensor:
    """Singular values by SciPy's Lanczos on the operators of curvlinops."""
    forward, backward = (operator.to_scipy() for operator in curvlinops_operators(model, x))
    both = LinearOperator(forward.shape, matvec=forward.matvec, rmatvec=backward.matvec, dtype="float32")
    return torch.tensor(sorted(svds(both, k=K, return_singular_vectors=False, rng=0), reverse=True))


def ours(model: nn.Module, x: Tensor, method: str) -> Tensor:
    """Singular values, and the directions with them."""
    return top_directions(JacobianOperator(model, x, rows="outputs"), K, method=method, centre=False).values


def products(model: nn.Module, x: Tensor, of: str) -> None:
    """One product with V and one with Vᵀ."""
    if of == "ours":
        operator = JacobianOperator(model, x, rows="outputs")
        operator.matmul(operator.rmatmul(torch.ones(operator.shape[0], 1)))
    else:
        forward, backward = curvlinops_operators(model, x)
        forward @ (backward @ torch.ones(backward.shape[1]))


def measured(work: Callable[[], Tensor | None]) -> dict[str, object]:
    """Do the work in a forked process: CPU seconds, megabytes above the start, and the values that it found."""
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)

    def run() -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is forgotten
        before, begin = _megabytes("VmRSS"), time.process_time()
        found = work()
        seconds = time.process_time() - begin
        there.send((seconds, _megabytes("VmHWM") - before, None if found is None else found.double().tolist()))

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    if not here.poll():
        raise RuntimeError("The measurement failed; its error is printed above.")
    seconds, megabytes, values = here.recv()
    return {"cpu_seconds": round(seconds, 2), "megabytes": round(megabytes), "values": values}


def _megabytes(name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1e3


def main() -> dict[str, object]:
    """Measure everything."""
    torch.set_num_threads(1)
    record: dict[str, object] = {}
    with sdpa_kernel(SDPBackend.MATH):
        model, x = vit()
        torch.func.jvp(lambda y: y * 2, (torch.ones(1),), (torch.ones(1),))  # loads what torch loads at its first use
        ways: dict[str, Callable[[], Tensor]] = {
            "dense": lambda: dense(model, x),
            "gram": lambda: ours(model, x, "gram"),
            "krylov": lambda: ours(model, x, "krylov"),
            "curvlinops and svds": lambda: by_svds(model, x),
        }
        found = {}
        for name, way in ways.items():
            found[name] = measured(way)
            print("ViT", name, found[name]["cpu_seconds"], "s", found[name]["megabytes"], "MB", flush=True)
        exact = torch.tensor(found["dense"].pop("values"))
        for name in list(found)[1:]:
            error = ((torch.tensor(found[name].pop("values")) - exact) / exact).abs()
            found[name] |= {"error_of_32": float(error[: K // 2].max()), "error_of_64": float(error.max())}
            print("ViT", name, "relative errors", found[name]["error_of_32"], found[name]["error_of_64"], flush=True)
        record["vit"] = {"weights": sum(p.numel() for p in model.parameters()), "rows": 640, "ways": found}
        model, x = gpt()
        found = {"gram": measured(lambda: ours(model, x, "gram"))}
        found["gram"].pop("values")
        for name, of in (("krylov", "ours"), ("curvlinops and svds", "curvlinops")):
            one = measured(lambda of=of: products(model, x, of))
            one.pop("values")
            needed = PRODUCTS[name]
            found[name] = {"one_product": one, "products": needed, "cpu_seconds_projected": needed * one["cpu_seconds"]}
        print("GPT", json.dumps(found), flush=True)
        record["gpt"] = {"weights": sum(p.numel() for p in model.parameters()), "rows": 256, "ways": found}
    return record


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    text = json.dumps({"command": COMMAND, "environment": environment(), **main()}, indent=1)
    print(text)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "kernels.json").write_text(f"{text}\n")
