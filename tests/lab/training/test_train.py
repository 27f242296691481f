"""Every task with the real networks: it learns, and resumes bit for bit."""

import pytest
from tests.lab.training.tasks import BreaksAt, Interrupted, assert_same_outcome, outcome

from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.models import GPTConfig, ToyHeadConfig, ViTConfig, build_model
from rankrise.lab.training import TrainingConfig, train
from rankrise.store import load_run

TASKS = {
    "vit": (
        DataConfig("digits", num_train=320, num_test=50),
        ViTConfig(image_size=8, num_channels=1, num_layers=2, num_heads=2, head_dim=8, width=16, mlp_width=16),
    ),
    "gpt": (
        DataConfig("synthetic_text", num_train=320, num_test=16, context=16, num_classes=16),
        GPTConfig(vocab_size=16, context=16, num_layers=2, num_heads=2, head_dim=8, width=16, mlp_width=16),
    ),
    "toy head": (DataConfig("teacher", samples=320, tokens=4, dim=6), ToyHeadConfig(dim=6, init_scale=0.3)),
}
CONFIG = TrainingConfig(epochs=4, batch_size=32, learning_rate=1e-2, track_every=10, num_spectra=3)


@pytest.mark.parametrize("name", TASKS)
def test_learns_and_resumes(tmp_path, name):
    data_config, model_config = TASKS[name]
    data = load_dataset(data_config, root=None)
    whole = train(build_model(model_config), data, CONFIG, out=tmp_path / "whole", device="cpu")
    broken = BreaksAt(data, 17)
    with pytest.raises(Interrupted):
        train(build_model(model_config), broken, CONFIG, out=tmp_path / "cut", device="cpu", checkpoint_every=7)
    train(build_model(model_config), data, CONFIG, out=tmp_path / "cut", device="cpu", checkpoint_every=7)
    assert_same_outcome(outcome(tmp_path / "whole"), outcome(tmp_path / "cut"))
    losses = [row["value"] for row in load_run(tmp_path / "whole").to_pylist() if row["quantity"] == "train_loss"]
    assert losses[-1] < 0.95 * losses[0]
    assert (whole.test_accuracy is None) == (name == "toy head")
    assert (whole.train_accuracy is None) == (name != "vit")
