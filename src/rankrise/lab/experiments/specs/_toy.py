"""The paper's toy with full matrices: one head learns from a teacher, by plain gradient descent from small weights."""

from rankrise.lab.data import DataConfig
from rankrise.lab.experiments._experiment import Experiment
from rankrise.lab.experiments.kinds import TrainingSpec
from rankrise.lab.experiments.specs._varied import varied
from rankrise.lab.models import ToyHeadConfig
from rankrise.lab.training import TrainingConfig

SMALL = TrainingSpec(
    data=DataConfig("teacher", samples=200, tokens=10, dim=10, num_test=100),
    model=ToyHeadConfig(dim=10, head_dim=10, init_scale=1e-3),
    training=TrainingConfig(
        epochs=3000,
        batch_size=200,  # all samples: every step is one of gradient descent
        optimiser="sgd",
        learning_rate=0.01,
        schedule="constant",
        track_every=10,
        num_spectra=100,
        evaluate_every=200,
    ),
)
SMOKE = varied(
    SMALL,
    data={"samples": 50, "dim": 4, "num_test": 20},
    model={"dim": 4, "head_dim": 4},
    training={"epochs": 60, "batch_size": 50, "num_spectra": 5, "evaluate_every": 20},
)
PAPER = varied(  # 1000 samples of 10 tokens of dimension 50
    SMALL,
    data={"samples": 1000, "dim": 50, "num_test": 200},
    model={"dim": 50, "head_dim": 50},
    training={"epochs": 20_000, "batch_size": 1000, "track_every": 50},
)

EXPERIMENTS = (
    Experiment(
        name="toy-matrix-head",
        title="A head with full matrices on the teacher task, by descent",
        shows="singular values of both products are learned one after another",
        smoke=SMOKE,
        small=SMALL,
        paper=PAPER,
    ),
)
