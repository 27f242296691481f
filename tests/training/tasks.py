"""A tiny image transformer and tiny data, so that a run takes a fraction of a second."""

import torch
from torch import nn

from rankrise.data import DataConfig, load_dataset
from rankrise.training import TrainingConfig, train


class TinyModel(nn.Module):
    """(B, 1, 8, 8) to ten logits: four patches, two layers of two heads."""

    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Linear(16, width)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(width, 10)

    def forward(self, images):
        patches = images.unfold(2, 4, 4).unfold(3, 4, 4).flatten(4).flatten(1, 3)
        return self.classifier(self.encoder(self.embed(patches)).mean(1))


def tiny_model(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TinyModel()


def tiny_data(**options):
    return load_dataset(DataConfig("digits", num_train=80, num_test=50, **options), root=None)


RECIPE = TrainingConfig(
    epochs=3, batch_size=16, learning_rate=3e-3, warmup_epochs=0.5, track_every=2, num_spectra=4
)  # 3 × 5 steps


def train_tiny(out, config=RECIPE, *, model=None, data=None, **options):
    model = tiny_model() if model is None else model
    return train(model, tiny_data() if data is None else data, config, out=out, device="cpu", **options)
