"""Do the leading directions, the features and the gauge of the kernel keep what they promise? Bounds first.

    OMP_NUM_THREADS=1 python studies/kernels_acceptance.py --seeds 10 11 12

An MLP 64-64-64-10 on scikit-learn's digits (8,970 weights, 1,200 images to train on), trained for 30 epochs of Adam at
1e-3, and a ViT of two layers and width 64 as in `kernel_rank.py`. The bounds below were written before these seeds were
run; the table is in docs/log/kernels.md. What needs no training (Gram, products, closed form) is in tests/kernels.
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from rankrise.kernels import FisherFeatures, JacobianOperator, kernel_measures, top_directions
from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.models import ViTConfig, build_model

MOST_VALUE_ERROR = 1e-4  # of the k/2 largest singular values, relative, by Krylov of 4 blocks of k + 8
MOST_ENERGY_LOST = 1e-3  # of the trace, against the k best directions
LEAST_GROWTH = 2.0  # of effective rank and of alignment over 400 steps of the ViT
MOST_ACCURACY_LOST = 0.01  # of a ridge probe on 8 features (lse) against the network itself


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and classes to train on, and to test on."""
    held = load_digits()
    x, y = torch.from_numpy(held.data).float() / 16, torch.from_numpy(held.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order[:1200]], y[order[:1200]], x[order[1200:]], y[order[1200:]]


def mlp(x: Tensor, y: Tensor, seed: int) -> nn.Module:
    """A trained network."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(30):
        for batch in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
    return model.eval()


def directions(model: nn.Module, x: Tensor, seed: int) -> None:
    """Krylov against the eigenvalues of the exact Gram matrix."""
    for rows in ("outputs", "fisher"):
        operator = JacobianOperator(model, x, rows=rows, chunk=len(x))
        squares = operator.column_squares() / operator.shape[0]
        if rows == "fisher":
            operator = operator.scaled((squares + 1e-8 * squares.max()).rsqrt())
        kernel = operator.gram()
        kernel = kernel - kernel.mean(0)
        kernel = kernel - kernel.mean(1, keepdim=True)
        exact = torch.linalg.eigvalsh(kernel).flip(0)
        for k in (16, 64):
            begin = time.process_time()
            found = top_directions(operator, k, method="krylov", seed=seed)
            seconds = time.process_time() - begin
            best = exact[: k // 2].sqrt()
            error = float(((found.values[: k // 2] - best) / best).abs().max())
            lost = float(exact[:k].sum() / exact.sum()) - found.energy
            good = error <= MOST_VALUE_ERROR and lost <= MOST_ENERGY_LOST
            print(
                f"directions, {rows}, {operator.shape[0]} rows, k={k}, seed {seed}: values {error:.1e}, energy "
                f"{found.energy:.4f}, lost {lost:.1e}, {seconds:.1f} s: {good}",
                flush=True,
            )


def features(model: nn.Module, data: tuple[Tensor, Tensor, Tensor, Tensor], seed: int) -> None:
    """A linear probe on the features, against the network itself and other features of as many numbers."""
    x, y, x_test, y_test = data
    with torch.no_grad():
        net = float((model(x_test).argmax(1) == y_test).float().mean())

    def probe(train: Tensor, test: Tensor) -> float:
        scaler = StandardScaler().fit(train.numpy())
        classifier = RidgeClassifier(alpha=1.0).fit(scaler.transform(train.numpy()), y.numpy())
        return float(classifier.score(scaler.transform(test.numpy()), y_test.numpy()))

    with torch.no_grad():
        hidden = probe(model[:4](x), model[:4](x_test))
    found = {}
    for k in (8, 64):
        own = FisherFeatures(k, rows="lse", seed=seed, chunk=200).fit(model, x)
        found[k] = probe(own.transform(x), own.transform(x_test))
    good = found[8] >= net - MOST_ACCURACY_LOST
    print(
        f"features, seed {seed}: network {net:.3f}, pixels {probe(x, x_test):.3f}, hidden layer {hidden:.3f}, lse k=8 "
        f"{found[8]:.3f}, k=64 {found[64]:.3f}: {good}",
        flush=True,
    )


def gauge(seed: int) -> None:
    """The kernel of a ViT before and after 400 steps."""
    data = load_dataset(DataConfig("digits"), root=None)
    sizes = {"width": 64, "num_layers": 2, "num_heads": 4, "head_dim": 16, "mlp_width": 128}
    model = build_model(ViTConfig(image_size=8, num_channels=1, patch_size=2, **sizes), seed=seed)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
    images, labels = next(iter(data.test_batches(batch_size=96)))

    def measure() -> tuple[float, float]:
        found = kernel_measures(JacobianOperator(model.eval(), images).gram(), targets=labels)
        model.train()
        return float(found.effective_rank), float(found.alignment)

    before, step = measure(), 0
    for epoch in range(100):
        for inputs, targets in data.train_batches(batch_size=64, seed=seed, epoch=epoch):
            if step < 400:
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimiser.step()
                step += 1
        if step >= 400:
            break
    after = measure()
    good = all(b >= LEAST_GROWTH * a for a, b in zip(before, after, strict=True))
    print(
        f"gauge, seed {seed}: effective rank {before[0]:.1f} to {after[0]:.1f}, alignment {before[1]:.2f} to "
        f"{after[1]:.2f}: {good}",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12])
    parts = digits()
    for seed in parser.parse_args().seeds:
        network = mlp(parts[0], parts[1], seed)
        directions(network, parts[2][:100], seed)
        features(network, parts, seed)
        gauge(seed)
