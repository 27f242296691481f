"""Watch an attention head learn one product at a time, and Algorithm 1 call every stage in advance.

    python examples/stages_of_a_head.py [figure.png]

A head with 8 diagonal weights learns from a teacher, from initial scales α = 1e-2 down to 10^-1000000. In time rescaled
by log(1/α) the loss curves converge to the staircase that Algorithm 1 computes without any training.
"""

import sys

import torch

from rankrise import theory

SCALES = [-2, -4, -8, -32, -1000000]

task = theory.teacher_task(samples=200, tokens=10, dim=4, seed=0)
net = theory.attention_head(task.x, task.y)
u0, v0 = theory.gaussian_start(net.num_weights, seed=0)
stages = theory.incremental_stages(net)
t_end = 1.15 * float(stages.times[-1])
flows = {scale: theory.solve_flow(net, u0, v0, log10_alpha=scale, t_end=t_end) for scale in SCALES}

print("stage     limit  " + "".join(f"α = 1e{scale}".rjust(16) for scale in SCALES))
for k, (i, time) in enumerate(zip(stages.coordinates, stages.times.tolist(), strict=True)):
    measured = [theory.activation_times(flow)[i] for flow in flows.values()]
    print(f"{k + 1:5d}  {time:8.5f}  " + "".join(f"{t:16.5f}" for t in measured))
print("gradients        " + "".join(f"{flow.num_gradients:16d}" for flow in flows.values()))

if len(sys.argv) > 1:
    import matplotlib.pyplot as plt

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 5.6), sharex=True, layout="constrained")
    colours = plt.get_cmap("viridis_r")(torch.linspace(0.12, 0.95, len(SCALES)).numpy())
    times = torch.linspace(0, t_end, 2000, dtype=torch.float64)
    for colour, (scale, flow) in zip(colours, flows.items(), strict=True):
        label = rf"gradient flow, $\alpha = 10^{{{scale}}}$"
        top.plot(flow.times, flow.losses, color=colour, lw=1.6, label=label)
    edges = [0.0, *stages.times.tolist(), t_end]
    top.stairs(
        stages.losses,
        edges,
        color="#e4572e",
        lw=1.3,
        ls=(0, (4, 3)),
        baseline=None,
        zorder=5,
        label="Algorithm 1, α → 0",
    )
    top.set(ylabel="loss", ylim=(0, None))
    top.legend(frameon=False, ncols=2)
    products = flows[-32].at(times)
    nudges = {6: 3, 4: -5}  # labels that would touch
    for i, name in enumerate([f"$a_{j}$" for j in range(1, 5)] + [f"$b_{j}$" for j in range(1, 5)]):
        colour = "#1f77b4" if i < 4 else "#7b3294"
        bottom.plot(times, products[:, i], lw=1.6, color=colour)
        end = (t_end, float(products[-1, i]))
        bottom.annotate(name, end, xytext=(4, -3 + nudges.get(i, 0)), textcoords="offset points", color=colour)
    for axis in (top, bottom):
        for time in stages.times.tolist():
            axis.axvline(time, color="0.85", lw=0.8, zorder=0)
        axis.spines[["top", "right"]].set_visible(False)
    bottom.set(xlabel=r"rescaled time  $t\,/\,\log(1/\alpha)$", ylabel=r"products $u_i v_i$ at $\alpha = 10^{-32}$")
    bottom.set_xlim(0, t_end)
    figure.savefig(sys.argv[1], dpi=150)
    print(f"wrote {sys.argv[1]}", file=sys.stderr)
