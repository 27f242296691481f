"""Track a small vision transformer in Lightning, on random images; needs `pip install 'rankrise[lightning]'`.

python examples/track_lightning_vit.py
"""

import shutil

import lightning.pytorch as pl
import pyarrow.compute as pc
import torch
from torch import nn

import rankrise as rr
from rankrise.tracking.integrations import lightning_callback


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
shutil.rmtree("runs/vit", ignore_errors=True)
trainer = pl.Trainer(
    max_steps=40,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[lightning_callback("runs/vit", every=10)],
)
trainer.fit(ViT(), torch.utils.data.DataLoader(images, batch_size=16, shuffle=True))

table = rr.load_run("runs/vit")
ranks = table.filter((pc.field("quantity") == "stable_rank") & (pc.field("head") >= 0))
for row in ranks.group_by(["step", "circuit"]).aggregate([("value", "mean")]).to_pylist():
    print(f"step {row['step']:3d}  {row['circuit']}  mean stable rank {row['value_mean']:.2f}")
