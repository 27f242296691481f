"""A tiny image transformer and tiny data, so that a run takes a fraction of a second."""

import torch
from torch import nn

from rankrise.lab.data import DataConfig, Dataset, load_dataset
from rankrise.lab.training import TrainingConfig, train


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


class Interrupted(Exception):
    """Raised in the middle of training by `BreaksAt`."""


class Wrapped(Dataset):
    """Data with the same batches, to change how they come."""

    def __init__(self, data):
        self._data = data
        for name in ("task", "num_train", "num_test", "input_shape", "num_classes"):
            setattr(self, name, getattr(data, name))

    def to(self, device):
        return self

    def _train(self, *arguments):
        return self._data._train(*arguments)

    def _test(self, spans):
        return self._data._test(spans)


class BreaksAt(Wrapped):
    """Data whose batch number `n` (of this process) is never given: training dies there, as by a crash."""

    def __init__(self, data, n):
        super().__init__(data)
        self._left = n

    def train_batches(self, **options):
        for batch in self._data.train_batches(**options):
            if self._left == 0:
                raise Interrupted
            self._left -= 1
            yield batch


def outcome(folder):
    """Everything a run came to: its table, directions, and last checkpoint."""
    from rankrise.store import find_checkpoint, load_directions, load_run

    checkpoint, skipped = find_checkpoint(folder)
    assert not skipped
    return load_run(folder), load_directions(folder), checkpoint


def assert_same_outcome(first, second):
    """Bit for bit."""
    from tests.tracking.models import assert_same

    assert_same(first[0], second[0])
    assert first[1].keys() == second[1].keys()
    for step, kept in first[1].items():
        _assert_same_tensors(kept, second[1][step])
    _assert_same_tensors(first[2].model, second[2].model)
    _assert_same_tensors(first[2].optimiser, second[2].optimiser)
    assert first[2].state == second[2].state


def _assert_same_tensors(first, second):
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
