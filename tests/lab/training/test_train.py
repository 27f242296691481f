"""Every task with the real networks learns, and resumes bit for bit; an observer is told everything."""

import errno
import functools
from dataclasses import replace

import pytest
import torch
from tests.lab.training.tasks import BreaksAt, Interrupted, assert_same_outcome, outcome, train_tiny
from torch.nn.utils import parametrize

from rankrise.gauges import fold_sigma
from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.models import GPTConfig, ToyHeadConfig, ViTConfig, build_model
from rankrise.lab.training import TrainingConfig, train
from rankrise.store import load_initial, load_run
from rankrise.tracking import Measurement, RankTracker, RunDirectoryError

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


@pytest.mark.parametrize(("reparam", "count"), [("sigma_attention", 2), ("spectral_norm", 10)])
def test_other_parametrisations_train_and_resume(tmp_path, reparam, count):
    data_config, model_config = TASKS["vit"]
    data, config = load_dataset(data_config, root=None), replace(CONFIG, reparam=reparam)
    model, options = build_model(model_config), {"device": "cpu", "checkpoint_every": 7}
    train(model, data, config, out=tmp_path / "whole", **options)
    assert sum(parametrize.is_parametrized(module) for module in model.modules()) == count
    state = torch.random.get_rng_state()
    with pytest.raises(Interrupted):
        train(build_model(model_config), BreaksAt(data, 17), config, out=tmp_path / "cut", **options)
    train(build_model(model_config), data, config, out=tmp_path / "cut", **options)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert_same_outcome(outcome(tmp_path / "whole"), outcome(tmp_path / "cut"))


def test_sigma_reparam_trains_resumes_and_is_tracked_in_effect(tmp_path):
    data_config, model_config = TASKS["vit"]
    data = load_dataset(data_config, root=None)
    config = replace(CONFIG, reparam="sigma")
    model = build_model(model_config)
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    train(model, data, config, out=tmp_path / "whole", device="cpu")
    with pytest.raises(Interrupted):
        train(
            build_model(model_config),
            BreaksAt(data, 17),
            config,
            out=tmp_path / "cut",
            device="cpu",
            checkpoint_every=7,
        )
    train(build_model(model_config), data, config, out=tmp_path / "cut", device="cpu", checkpoint_every=7)
    assert_same_outcome(outcome(tmp_path / "whole"), outcome(tmp_path / "cut"))
    again = train(build_model(model_config), data, config, out=tmp_path / "cut", device="cpu")
    assert again.status == "finished"
    initial = load_initial(tmp_path / "whole")
    assert initial.keys() == {f"blocks.{layer}.attn.{name}.weight" for layer in (0, 1) for name in ("qkv", "proj")}
    for name, weight in initial.items():
        torch.testing.assert_close(weight, start[name], atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        trained = fold_sigma(model).blocks[1].attn.qkv.weight
    table = load_run(tmp_path / "whole").to_pylist()
    change = torch.linalg.svdvals((trained - initial["blocks.1.attn.qkv.weight"]).detach()[:16].double())
    found = [r["value"] for r in table if (r["quantity"], r["circuit"], r["layer"]) == ("spectrum", "q", 1)][-16:]
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), change, atol=1e-5, rtol=1e-4)


class Told:
    """An observer that notes what it is told, and passes it on to a tracker."""

    def __init__(self, *arguments, **options):
        self.options, self.told = options, []
        self._tracker = RankTracker(*arguments, **options)

    def __getattr__(self, name):
        self.told.append(name)
        return getattr(self._tracker, name)


def test_an_observer_is_passed_in(tmp_path):
    opened = []

    def observe(*arguments, **options):
        opened.append(Told(*arguments, **options))
        return opened[-1]

    assert train_tiny(tmp_path, observe=observe, checkpoint_every=4).status == "finished"
    (told,) = opened
    assert told.options["needs_folder"]
    assert (told.options["resume"], told.options["config"]["training"]["epochs"]) == (None, 3)
    assert told.told.count("step") == 16
    assert told.told.count("flush") == 4
    assert told.told[-1] == "close"


def test_probes_come_with_the_tracker(tmp_path):
    class Counts:
        num_passes = 0

        def attach(self, model, head_map):
            self.handle = model.register_forward_hook(self.count)

        def count(self, *arguments):
            self.num_passes += 1

        def read(self, step):
            return [Measurement("passes", torch.tensor(float(self.num_passes)))]

        def detach(self):
            self.handle.remove()

    train_tiny(tmp_path, observe=functools.partial(RankTracker, probes=[Counts()]))
    rows = [row for row in load_run(tmp_path).to_pylist() if row["quantity"] == "passes"]
    assert [row["step"] for row in rows] == [*range(0, 15, 2), 15]
    assert [row["value"] for row in rows] == sorted(row["value"] for row in rows)


def test_an_observer_that_refuses_is_not_swallowed(tmp_path):
    def observe(model, out, **options):
        raise RunDirectoryError(out, "the disk is full. Make room.", errno.ENOSPC)

    with pytest.raises(RunDirectoryError, match="the disk is full") as caught:
        train_tiny(tmp_path / "run", observe=observe)
    assert (caught.value.folder, caught.value.errno) == (tmp_path / "run", errno.ENOSPC)
    assert not (tmp_path / "run").exists()
