"""The step against the textbook: float64, one batch, plain Adam."""

import copy
import dataclasses

import pytest
import torch
from tests.lab.training.tasks import RECIPE, tiny_data, tiny_model

from rankrise.lab.training._losses import mean_loss, num_correct
from rankrise.lab.training._optimiser import build_optimiser, optimiser_tensors, restore_optimiser
from rankrise.lab.training._processes import Processes
from rankrise.lab.training._step import build_step

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
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(oracle.parameters(), 0.5)
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
