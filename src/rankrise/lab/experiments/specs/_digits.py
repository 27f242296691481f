"""A vision transformer on scikit-learn's digits: embedded data, two cores."""

from rankrise.lab.data import DataConfig
from rankrise.lab.experiments._experiment import Experiment
from rankrise.lab.experiments.kinds import TrainingSpec
from rankrise.lab.experiments.specs._varied import varied
from rankrise.lab.models import ViTConfig
from rankrise.lab.training import TrainingConfig

_VIT = ViTConfig(
    image_size=8, patch_size=2, num_channels=1, num_layers=4, num_heads=4, head_dim=32, width=64, mlp_width=64
)

SMALL = TrainingSpec(
    data=DataConfig("digits"),
    model=_VIT,
    training=TrainingConfig(
        epochs=25, batch_size=64, learning_rate=1e-3, warmup_epochs=2, track_every=20, num_spectra=20, evaluate_every=5
    ),
)
SMOKE = varied(
    SMALL,
    data={"num_train": 64, "num_test": 32},
    model={"num_layers": 2, "num_heads": 2, "head_dim": 8, "width": 16, "mlp_width": 16},
    training={"epochs": 2, "batch_size": 16, "warmup_epochs": 0.5, "track_every": 2, "num_spectra": 4},
)
PAPER = TrainingSpec(  # the paper's network and recipe on this data
    data=SMALL.data,
    model=ViTConfig(image_size=8, patch_size=2, num_channels=1),
    training=TrainingConfig(
        epochs=500, batch_size=512, learning_rate=1e-4, warmup_epochs=15, precision="bf16", track_every=10
    ),
)

EXPERIMENTS = (
    Experiment(
        name="vit-digits",
        title="A small ViT on scikit-learn's digits: no download, no GPU",
        shows="the stable rank of the change of both circuits, far below that of the weights at the start",
        smoke=SMOKE,
        small=SMALL,
        paper=PAPER,
    ),
)
