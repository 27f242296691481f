"""The parts of a step against the textbook: float64, one batch, plain Adam; PyTorch's schedulers; sums written out."""

import copy
import dataclasses
import math

import pytest
import torch
from tests.lab.training.tasks import RECIPE, Wrapped, tiny_data, tiny_model
from torch import nn
from torch.nn.functional import cross_entropy

from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.models import GPTConfig, ToyHeadConfig, ViTConfig, build_model
from rankrise.lab.training import Processes, TrainingConfig, train
from rankrise.lab.training._step import (
    EveryAndLast,
    Readback,
    build_evaluation,
    build_optimiser,
    build_step,
    learning_rate,
    mean_loss,
    num_correct,
    optimiser_tensors,
    restore_optimiser,
    spectra_steps,
)

CPU = torch.device("cpu")


def run_steps(config, num=3, *, model=None, optimiser=None, compile=False):
    model = tiny_model() if model is None else model
    optimiser = build_optimiser(model, config, CPU) if optimiser is None else optimiser
    step = build_step(model, optimiser, config, task="classify", device=CPU, processes=Processes(), compile=compile)
    batches = tiny_data().train_batches(batch_size=16, seed=0, epoch=0)
    return model, optimiser, [step(next(batches), 1e-3 * (n + 1)) for n in range(num)]


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_textbook(kind):
    config = dataclasses.replace(
        RECIPE, optimiser=kind, weight_decay=0.1, clip_norm=0.5, momentum=0.9 if kind == "sgd" else 0.0
    )
    model, _, metrics = run_steps(config)
    oracle = tiny_model().double()
    make = {
        "adam": lambda p: torch.optim.Adam(p, 1.0, weight_decay=0.1, foreach=False),
        "adamw": lambda p: torch.optim.AdamW(p, 1.0, weight_decay=0.1, foreach=False),
        "sgd": lambda p: torch.optim.SGD(p, 1.0, momentum=0.9, weight_decay=0.1, foreach=False),
    }
    optimiser = make[kind](oracle.parameters())
    batches = tiny_data().train_batches(batch_size=16, seed=0, epoch=0)
    for n in range(3):
        images, labels = next(batches)
        optimiser.param_groups[0]["lr"] = 1e-3 * (n + 1)
        optimiser.zero_grad()
        logits = oracle(images.double())
        loss = cross_entropy(logits, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(oracle.parameters(), 0.5)
        optimiser.step()
        assert metrics[n][0] == pytest.approx(loss.item(), rel=1e-4)
        assert metrics[n][1] == (logits.argmax(1) == labels).sum()
    for name, weight in model.named_parameters():
        if not name.endswith("in_proj_bias"):  # the gradient of the keys' bias is zero but for rounding
            torch.testing.assert_close(weight.double(), oracle.get_parameter(name), rtol=1e-3, atol=2e-5)


def test_pieces_of_a_batch_add_up():
    config = dataclasses.replace(RECIPE, optimiser="sgd")
    whole, _, metrics = run_steps(config)
    pieces, _, metrics_of_pieces = run_steps(dataclasses.replace(config, accumulate=4))
    torch.testing.assert_close(torch.stack(metrics), torch.stack(metrics_of_pieces))
    for a, b in zip(whole.parameters(), pieces.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_bf16_keeps_weights_and_optimiser_in_float32():
    model, optimiser, metrics = run_steps(dataclasses.replace(RECIPE, precision="bf16"))
    exact = run_steps(RECIPE)[2]
    tensors = [*model.parameters(), *optimiser_tensors(optimiser, model).values(), *metrics]
    assert {t.dtype for t in tensors} == {torch.float32}
    assert metrics[0][0] != exact[0][0]
    assert metrics[0][0] == pytest.approx(exact[0][0].item(), rel=2e-2)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_optimiser_state_round_trip(kind):
    config = dataclasses.replace(RECIPE, optimiser=kind, momentum=0.9 if kind == "sgd" else 0.0)
    model, optimiser, _ = run_steps(config)
    tensors = {k: t.clone() for k, t in optimiser_tensors(optimiser, model).items()}
    kinds = {name.partition("/")[0] for name in tensors}
    assert kinds == ({"momentum_buffer"} if kind == "sgd" else {"exp_avg", "exp_avg_sq", "step"})
    fresh = build_optimiser(model, config, CPU)
    restore_optimiser(fresh, model, tensors)
    for name, tensor in optimiser_tensors(fresh, model).items():
        assert torch.equal(tensor, tensors[name])
    twin = copy.deepcopy(model)
    twins = build_optimiser(twin, config, CPU)
    restore_optimiser(twins, twin, tensors)
    run_steps(config, 2, model=model, optimiser=optimiser)
    run_steps(config, 2, model=twin, optimiser=twins)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


def test_compiled_once_for_all_rates_and_models_of_one_shape(monkeypatch):
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: compile(f, backend="eager", **options))
    torch._dynamo.reset()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for seed in range(3):
        compiled, plain = tiny_model(seed), tiny_model(seed)
        metrics = run_steps(RECIPE, model=compiled, compile=True)[2]
        expected = run_steps(RECIPE, model=plain)[2]
        torch.testing.assert_close(torch.stack(metrics), torch.stack(expected))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1
    torch._dynamo.reset()


def test_state_of_another_model_is_refused():
    model = tiny_model()
    with pytest.raises(ValueError, match=r"'exp_avg/nobody' must belong to a parameter of the model"):
        restore_optimiser(build_optimiser(model, RECIPE, CPU), model, {"exp_avg/nobody": torch.zeros(1)})


def test_losses():
    logits, tokens = (
        torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)),
        torch.tensor([[0, 1, 2], [3, 4, 0]]),
    )
    expected = -logits.double().log_softmax(-1).gather(-1, tokens[..., None]).mean()
    assert mean_loss("next_token", logits, tokens) == pytest.approx(expected.item(), rel=1e-6)
    assert num_correct(logits, tokens) == (logits.argmax(-1) == tokens).sum()
    x, y = torch.randn(2, 4, 3, 2, generator=torch.Generator().manual_seed(1))
    expected = sum(0.5 * (a - b).square().sum().item() for a, b in zip(x, y, strict=True)) / 4
    assert mean_loss("regress", x, y) == pytest.approx(expected, rel=1e-6)


# Schedules


def test_cosine_is_pytorchs():
    config = TrainingConfig(epochs=7, learning_rate=0.3)
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 7 * 5)
    for step in range(7 * 5):
        assert learning_rate(config, step, steps_per_epoch=5) == pytest.approx(scheduler.get_last_lr()[0])
        optimiser.step()
        scheduler.step()


def test_warm_up_is_linear_then_the_rate_is_at_its_highest():
    config = TrainingConfig(epochs=4, learning_rate=1.0, warmup_epochs=0.5, schedule="constant")
    rates = [learning_rate(config, step, steps_per_epoch=8) for step in range(32)]
    assert rates == [0.25, 0.5, 0.75, *[1.0] * 29]


@pytest.mark.parametrize("num", [1, 2, 3, 20, 101])
@pytest.mark.parametrize("last", [1, 7, 48_500])
def test_spectra_steps(num, last):
    steps = spectra_steps(num, last).steps
    assert last in steps
    assert min(steps) >= 0
    assert max(steps) == last
    assert len(steps) <= num + 1


def test_no_spectra():
    assert spectra_steps(0, 10).steps == frozenset()


def test_the_last_step_is_measured():
    assert [step for step in range(12) if EveryAndLast(4, 10)(step)] == [0, 4, 8, 10]


# Scores: a last short batch counts by its rows, and dropout is off

TASKS = {  # each with 40 test samples: two batches of 16 and one of 8
    "classify": (
        DataConfig("digits", num_train=48, num_test=40),
        ViTConfig(image_size=8, num_channels=1, num_layers=1, num_heads=2, head_dim=4, width=8, mlp_width=8),
    ),
    "next_token": (
        DataConfig("synthetic_text", num_train=48, num_test=40, context=8, num_classes=8),
        GPTConfig(vocab_size=8, context=8, num_layers=1, num_heads=2, head_dim=4, width=8, mlp_width=8),
    ),
    "regress": (
        DataConfig("teacher", samples=48, num_test=40, tokens=3, dim=6),
        ToyHeadConfig(dim=6, head_dim=6, init_scale=0.3),
    ),
}
CONFIG = TrainingConfig(epochs=2, batch_size=16, learning_rate=1e-2)


class Dropped(nn.Module):
    """A network behind dropout, which must be off when it is tested."""

    def __init__(self, network):
        super().__init__()
        self.network, self.drop = network, nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.network(x))


def make(task):
    data, model = TASKS[task]
    return Dropped(build_model(model)), load_dataset(data, root=None)


def by_hand(model, data):
    """(mean loss, share correct) over the test set in one piece, in float64."""
    (batch,) = data.test_batches(batch_size=40)
    model.eval()
    with torch.no_grad():
        outputs = model(batch.inputs).double()
    if data.task == "regress":
        return float((outputs - batch.targets).square().sum() / 2 / 40), None
    outputs, targets = outputs.flatten(0, -2), batch.targets.flatten()
    return float(cross_entropy(outputs, targets)), float((outputs.argmax(-1) == targets).double().mean())


@pytest.mark.parametrize("task", TASKS)
def test_test_scores(tmp_path, task):
    model, data = make(task)
    result = train(model, data, CONFIG, out=tmp_path, device="cpu")
    assert model.training
    loss, accuracy = by_hand(model, data)
    assert result.test_loss == pytest.approx(loss, rel=1e-5)
    assert result.test_accuracy == (None if accuracy is None else pytest.approx(accuracy))


def test_train_accuracy(tmp_path):
    class Remembered(Dropped):
        def forward(self, x):
            outputs = self.network(x)
            if self.training:
                seen.append(outputs.detach().argmax(-1))
            return outputs

    class Told(Wrapped):
        def train_batches(self, **options):
            for batch in self._data.train_batches(**options):
                told.append(batch.targets)
                yield batch

    seen, told = [], []
    data, model = TASKS["classify"]
    config = TrainingConfig(epochs=2, batch_size=16, learning_rate=1e-2, accumulate=2)
    result = train(
        Remembered(build_model(model)), Told(load_dataset(data, root=None)), config, out=tmp_path, device="cpu"
    )
    right = (torch.cat(seen)[-48:] == torch.cat(told)[-48:]).double().mean()
    assert 0 < right < 1
    assert result.train_accuracy == pytest.approx(float(right))


def test_processes_add_up_what_they_tested():
    """Two processes, played one after the other: each has its share of the sums, the second gets both."""
    shares = []

    class Two(Processes):
        def add_up(self, totals):
            shares.append(totals)
            return sum(shares)

    model, data = make("next_token")
    for rank in (0, 1):
        scores = build_evaluation(model, data, CONFIG, device=torch.device("cpu"), processes=Two(rank, 2))()
    loss, accuracy = by_hand(model, data)
    assert float(scores["test_loss"]) == pytest.approx(loss, rel=1e-5)
    assert float(scores["test_accuracy"]) == pytest.approx(accuracy)


# Losses come back late but complete


def reader(window):
    readback = Readback(torch.device("cpu"), 4)
    readback._window = window  # as on a GPU
    return readback


def test_on_the_cpu_everything_is_known_at_once():
    readback = reader(1)
    readback.add(1, torch.tensor([0.5, 3.0]))
    assert (readback.loss, readback.accuracy, readback.diverged_at) == (0.5, 0.75, None)
    readback.add(2, torch.tensor([math.inf, 3.0]))
    assert readback.diverged_at == 2


def test_on_a_gpu_a_window_late():
    readback = reader(3)
    for step in range(1, 6):
        readback.add(step, torch.tensor([float(step) if step != 2 else math.nan, 0.0]))
    assert math.isnan(readback.loss)
    assert readback.diverged_at is None
    readback.add(6, torch.tensor([6.0, 0.0]))  # the first three have come
    assert (readback.loss, readback.diverged_at) == (3.0, 2)
    readback.add(7, torch.tensor([math.nan, 0.0]))
    readback.settle()
    assert math.isnan(readback.loss)
    assert readback.diverged_at == 2  # the first
    readback.settle()
