"""How low is the rank of what a head learned? Fit one attention circuit to a low-rank target and read its change.

    python examples/rank_of_a_change.py

Keys and queries of one head (d = 64, head dimension 16) start at their usual random size and are trained, by plain
gradient descent on ½‖K Qᵀ − K0 Q0ᵀ − T‖², to change their product by a target T of rank 3. The weights are full rank
throughout; the change takes up one direction after another.
"""

import torch

import rankrise as rr

generator = torch.Generator().manual_seed(0)
d, r = 64, 16
k0, q0 = (0.02 * torch.randn(d, r, generator=generator) for _ in range(2))
u, v = (torch.linalg.qr(torch.randn(d, 3, generator=generator)).Q for _ in range(2))
target = u * torch.tensor([3.0, 2.0, 1.0]) @ v.T

k, q = k0.clone(), q0.clone()
null = rr.stable_rank(rr.linalg.gaussian_spectra(d, d, inner=2 * r)).mean()
print(f"stable rank of the weights at the start {rr.stable_rank(rr.product_spectrum(k0, q0)):.1f},")
print(f"of a random change of the same shape {null:.1f}; of the change learned:")
print("step   stable rank (bracket)        five leading singular values")
for step in range(401):
    if step % 50 == 0:
        rank = rr.delta_stable_rank(k, q, k0, q0)
        sigma = rr.delta_spectrum(k, q, k0, q0)[:5]
        values = "  ".join(f"{s:.3f}" for s in sigma.tolist())
        print(f"{step:4d}   {rank.value:5.2f} [{rank.lower:.2f}, {rank.upper:.2f}]".ljust(36) + values)
    residual = k @ q.T - k0 @ q0.T - target
    k, q = k - 0.02 * residual @ q, q - 0.02 * residual.T @ k
