"""Grids that have a name."""

from rankrise.lab.sweep._grid import Grid

GRIDS: dict[str, Grid] = {
    "digits-scales": Grid(
        ("vit-digits",),
        {"model.init_scale": (1.0, 0.3, 0.1)},
        num_seeds=5,
        title="The ViT on digits from three initial scales, five seeds each",
    ),
    "toy-alphas": Grid(
        ("toy-flow-1e-8",),
        {"log10_alpha": (-2.0, -4.0, -8.0, -16.0, -32.0, -64.0)},
        num_seeds=5,
        scale="smoke",
        title="The gradient flow of the toy at six α, five seeds each",
    ),
    "ten-thousand-heads": Grid(
        ("toy-ensemble",),
        num_seeds=100,
        title="Algorithm 1 on 10,000 heads of eight weights, a hundred in each run",
    ),
}
