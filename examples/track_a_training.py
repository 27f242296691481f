"""Watch the rank rise: a small transformer learns to reverse a sequence, tracked in a plain loop.

    python examples/track_a_training.py

Prints, for a few steps, the loss and the mean stable rank of what its heads have learned. The run directory stays in
`runs/reverse`: `rankrise show runs/reverse` tells more, `rankrise plot training_curves runs/reverse` draws it.
"""

import shutil

import torch
from torch import nn

import rankrise as rr

torch.manual_seed(0)
tokens, length, width = 16, 8, 32
layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True, norm_first=True)
model = nn.ModuleDict(
    {
        "embed": nn.Embedding(tokens, width),
        "encoder": nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False),
        "head": nn.Linear(width, tokens),
    }
)
position = 0.5 * torch.randn(length, width)
with torch.no_grad():  # small weights: the regime of the paper
    for name, weight in model.named_parameters():
        if "self_attn" in name:
            weight.mul_(0.1)
optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)

shutil.rmtree("runs/reverse", ignore_errors=True)
with rr.RankTracker(model, out="runs/reverse", every=5, spectra=50) as tracker:
    for step in range(1, 301):
        x = torch.randint(tokens, (64, length))
        logits = model["head"](model["encoder"](model["embed"](x) + position))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), x.flip(1).flatten())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        tracker.step(step, loss=loss)

run = rr.open_run("runs/reverse")
print(run)
print("step   loss   stable rank of Δ(W_K W_Qᵀ), of Δ(W_V W_Oᵀ): mean over heads")
loss, kq, vo = run.curve("loss"), run.curve("stable_rank", circuit="kq"), run.curve("stable_rank", circuit="vo")
for step, kq_rank, vo_rank in list(zip(kq.steps, kq.mean(), vo.mean(), strict=True))[5::6]:
    print(f"{step:4.0f} {loss.values[loss.steps == step][0]:6.3f} {kq_rank:13.2f} {vo_rank:20.2f}")
