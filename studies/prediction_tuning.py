"""Training for the prediction study: one loop for whole networks and for adapters, which PEFT makes.

The methods differ in their ranks alone: the same loop, order of data, schedule, and scale 1 (alpha is the rank).
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from studies.prediction_spec import Method
from torch import Tensor, nn

from rankrise.checkpoints import Advice, ModuleSpectrum, advise
from rankrise.checkpoints.lora import lora_arguments
from rankrise.lab.models import GPTConfig, build_model
from rankrise.lab.training import (
    Processes,
    TrainingConfig,
    autocast,
    build_evaluation,
    build_optimiser,
    learning_rate,
    matmul_precision,
    mean_loss,
    set_rate,
)

if TYPE_CHECKING:
    from rankrise.lab.data import Dataset


class WithLoss(nn.Module):
    """A network that gives its loss, as PEFT expects: AdaLoRA adds its penalty to it.

    Autocast ends before the penalty, which is in float32.
    """

    def __init__(self, network: nn.Module, config: TrainingConfig, device: torch.device) -> None:
        super().__init__()
        self.network = network
        self._precision, self._device = config.precision, device

    def forward(self, inputs: Tensor, targets: Tensor) -> SimpleNamespace:
        """Tokens and next tokens (B, T) to `.loss`."""
        with autocast(self._precision, self._device):
            return SimpleNamespace(loss=mean_loss("next_token", self.network(inputs), targets))


def recipe(rate: float, *, batch_size: int, precision: Any, seed: int) -> TrainingConfig:
    """AdamW without decay, gradients clipped at 1, warm-up over a twentieth of the steps, half a cosine to zero."""
    return TrainingConfig(
        epochs=1,  # of as many steps as the loop is told
        batch_size=batch_size,
        optimiser="adamw",
        learning_rate=rate,
        betas=(0.9, 0.95),
        warmup_epochs=0.05,
        clip_norm=1.0,
        precision=precision,
        seed=seed,
    )


def fit(
    model: nn.Module,
    dataset: "Dataset",
    config: TrainingConfig,
    num_steps: int,
    *,
    device: torch.device,
    after_step: Callable[[int], None],
) -> None:
    """Train what requires a gradient.

    Args:
        model: A `WithLoss`, or PEFT's model of one; on the device.
        dataset: The data, on the device; it is passed over as often as needed, each time in another order.
        config: The recipe.
        num_steps: Number of steps of the optimiser.
        device: Where the model is trained.
        after_step: Is told how many steps are done, while their last gradients are still there.
    """
    optimiser = build_optimiser(model, config, device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    per_epoch = dataset.num_batches(config.batch_size)
    model.train()
    with matmul_precision(config.precision, device):
        for step in range(num_steps):
            if step % per_epoch == 0:
                epoch = step // per_epoch
                batches = dataset.train_batches(batch_size=config.batch_size, seed=config.seed, epoch=epoch)
            batch = next(batches)
            model(batch.inputs, batch.targets).loss.backward()
            nn.utils.clip_grad_norm_(trained, 1.0 if config.clip_norm is None else config.clip_norm)
            set_rate(optimiser, learning_rate(config, step, steps_per_epoch=num_steps))
            optimiser.step()
            after_step(step + 1)
            optimiser.zero_grad(set_to_none=True)


def held_out_loss(network: nn.Module, dataset: "Dataset", config: TrainingConfig, device: torch.device) -> float:
    """Mean cross-entropy over the tokens of the test set, in nats."""
    evaluate = build_evaluation(network, dataset, config, device=device, processes=Processes())
    return float(evaluate()["test_loss"])


def adapted_modules(network: nn.Module) -> dict[str, nn.Linear]:
    """The matrices that adapters are for: all linear modules of the blocks."""
    return {name: module for name, module in network.named_modules() if isinstance(module, nn.Linear)}


def network_from(config: GPTConfig, weights: Mapping[str, Tensor]) -> nn.Module:
    """The network with a copy of these weights, on the CPU."""
    with torch.device("meta"):  # no weights are drawn that nobody uses
        network = build_model(config)
    network.load_state_dict({name: weight.clone() for name, weight in weights.items()}, assign=True)
    return network


@torch.no_grad()
def advised_ranks(network: nn.Module, base: Mapping[str, Tensor], rank: int) -> Advice:
    """Ranks for what the network learned over `base`, with at most the parameters of `rank` everywhere."""
    spectra = []
    for name, module in adapted_modules(network).items():
        before = base[f"{name}.weight"].to(module.weight.device, torch.float64)
        change = module.weight.double() - before
        small = change if module.out_features <= module.in_features else change.mT
        sigma = torch.linalg.eigvalsh(small @ small.mT).flip(0).clamp_min(0).sqrt()  # float64: to 1e-8 of the largest
        shape = (module.out_features, module.in_features)
        squared = float(change.square().sum())
        spectra.append(ModuleSpectrum(name, shape, tuple(sigma.tolist()), squared, float(before.norm())))
    return advise(spectra, budget=rank * sum(spectrum.cost for spectrum in spectra))


def adapter_config(method: Method, network: nn.Module, *, rank: int, advice: Mapping[str, int], num_steps: int) -> Any:
    """PEFT's configuration of a method; scale 1.

    AdaLoRA begins at 1.5 times the rank, prunes from a tenth of the training to seven tenths, every 10 steps or oftener
    where there are few, and has PEFT's other defaults.
    """
    import peft

    names = list(adapted_modules(network))
    if method == "adalora":
        first = round(1.5 * rank)
        return peft.AdaLoraConfig(
            target_r=rank,
            init_r=first,
            lora_alpha=first,
            tinit=num_steps // 10,
            tfinal=3 * num_steps // 10,
            deltaT=max(1, min(10, num_steps // 20)),
            total_step=num_steps,
            target_modules=names,
        )
    ranks = advice if method == "advised" else dict.fromkeys(names, rank)
    return peft.LoraConfig(**lora_arguments(ranks, others=names))


def add_adapter(model: WithLoss, config: Any, seed: int) -> Any:
    """PEFT's model around the network, which is changed in place; the global random state is left as it was."""
    import peft

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return peft.get_peft_model(model, config)


def direction_costs(network: nn.Module) -> dict[str, int]:
    """Parameters of one direction, rows + columns, of every module that adapters are for; before PEFT wraps them."""
    return {name: module.out_features + module.in_features for name, module in adapted_modules(network).items()}


def num_parameters(ranks: Mapping[str, int], costs: Mapping[str, int]) -> int:
    """`Σ r_i c_i` of an adapter as it is used; AdaLoRA's diagonal is merged into a factor."""
    return sum(rank * costs[name] for name, rank in ranks.items())


def module_ranks(adapted: Any) -> dict[str, int]:
    """Rank of every module of the network; AdaLoRA's pruned directions do not count."""
    found = {}
    for name, parameter in adapted.named_parameters():
        for mark in (".lora_E.default", ".lora_A.default.weight"):
            if name.endswith(mark):
                module = name.removesuffix(mark).rpartition("network.")[2]
                found[module] = int((parameter != 0).sum()) if "lora_E" in mark else parameter.shape[0]
    return found
