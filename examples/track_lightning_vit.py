"""Track a small vision transformer in Lightning, on random images; needs `pip install 'rankrise[lightning]'`.

    python examples/track_lightning_vit.py

The run stays in `runs/vit`: `rankrise plot training_curves runs/vit` draws it. Loggers of the trainer get six numbers
for each layer as well.
"""

import lightning.pytorch as pl
import torch
from torch import nn

import rankrise as rr
from rankrise.tracking.integrations.lightning import RankCallback


class ViT(pl.LightningModule):
    """Patches of 4 × 4, two layers of four heads."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(48, 32)
        layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """Mean over the patches, then a linear classifier."""
        patches, labels = batch
        return nn.functional.cross_entropy(self.head(self.encoder(self.embed(patches)).mean(1)), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


pl.seed_everything(0, verbose=False)
images = torch.utils.data.TensorDataset(torch.randn(256, 64, 48), torch.randint(10, (256,)))
trainer = pl.Trainer(
    max_steps=40,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[RankCallback("runs/vit", every=10, exist="overwrite")],
)
trainer.fit(ViT(), torch.utils.data.DataLoader(images, batch_size=16, shuffle=True))

run = rr.open_run("runs/vit")
print(run)
for circuit in ("kq", "vo"):
    ranks = run.curve("stable_rank", circuit=circuit)
    for step, mean in zip(ranks.steps, ranks.mean(), strict=True):
        print(f"step {step:3.0f}  {circuit}  mean stable rank {mean:.2f}")
