"""A model from its sizes and a seed."""

from typing import TYPE_CHECKING

from rankrise.lab.models._configs import MODELS, ModelConfig

if TYPE_CHECKING:
    from torch import nn


def build_model(config: ModelConfig, *, seed: int = 0) -> "nn.Module":
    """Make a model on the CPU in float32; the same weights for the same `config` and `seed`.

    The global random state is left as it was.

    Args:
        config: Sizes of the model; the type of `config` says which model.
        seed: Seed of the initial weights.

    Raises:
        ValueError: `config` is no configuration of a model, or the model does not fit in memory.

    >>> from rankrise.lab.models import ViTConfig
    >>> model = build_model(ViTConfig(num_layers=1), seed=1)
    >>> sum(weight.numel() for weight in model.parameters())
    2690058
    """
    import torch

    if type(config) not in MODELS.values():
        names = ", ".join(kind.__name__ for kind in MODELS.values())
        raise ValueError(f"`config` must be one of {names}; got {type(config).__name__}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = config.module()
        except (RuntimeError, MemoryError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"The model must fit in memory; it does not ({reason}). Choose smaller sizes.") from error
    return model
