"""Sizes of the networks: frozen values that load no PyTorch, so that experiments can be listed without it.

A configuration also says what its data must be like (`sizes`), what a sample costs (`flops`), and how to build its
network (`module`). To add a network, write a configuration here, a line in `MODELS`, and the module in
`_transformers.py` or a file of its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, get_args

from rankrise._arguments import as_count, check_choice

if TYPE_CHECKING:
    from torch import nn

Activation = Literal["gelu", "relu"]
Norm = Literal["pre", "post", "none"]


class Size(NamedTuple):
    """One thing that a network and its data must agree on.

    `what` names it in the words of the spec. `wanted` is the value of the network and `given` that of the data. With
    `may_spare` the network also takes data with a smaller value.
    """

    what: str
    wanted: object
    given: object
    may_spare: bool = False

    @property
    def fits(self) -> bool:
        """Whether the network can take the data in this respect."""
        if self.may_spare and isinstance(self.wanted, int) and isinstance(self.given, int):
            return self.given <= self.wanted
        return self.given == self.wanted


class ModelConfig(Protocol):
    """What every configuration of a network offers; it is a frozen dataclass of JSON values."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def sizes(self, *, task: str, shape: Sequence[int], num_classes: int | None) -> list[Size]:
        """Return what must agree with data of this task, with samples of this shape and this number of classes."""

    def flops(self, *, tokens: int | None = None) -> float:
        """Return the floating-point operations of a training step per sample: 6 for each weight and token.

        Args:
            tokens: Number of tokens of a sample, for a network that takes any number.
        """

    @property
    def num_weights(self) -> int:
        """Return the number of weights, but for norms and biases."""

    def module(self) -> "nn.Module":
        """Build the network, with weights drawn from PyTorch's global random state."""


@dataclass(frozen=True)
class ViTConfig:
    """Sizes of a `ViT`; the defaults are the paper's network for CIFAR, 15.8 million weights.

    Args:
        image_size: Pixels on a side.
        patch_size: Pixels on a side of a patch; divides `image_size`.
        num_channels: Number C of colour channels.
        num_classes: Number of outputs.
        num_layers: Number of blocks.
        num_heads: H.
        head_dim: r; H r need not be the width.
        width: d, the dimension of a token.
        mlp_width: Width of the hidden layer of a block.
        activation: "gelu" or "relu".
        init_scale: Factor on the initial weights and biases of attention, MLP and classifier. Norms, patch embedding,
            class token and positions keep their usual scale.
        norm: Where a block normalises. "pre": before attention and MLP, as in the paper. "post": after the result of
            each has been added. "none": nowhere, so that there is no norm before the classifier either.

    >>> ViTConfig(num_classes=100).num_tokens
    65
    """

    image_size: int = 32
    patch_size: int = 4
    num_channels: int = 3
    num_classes: int = 10
    num_layers: int = 6
    num_heads: int = 8
    head_dim: int = 128
    width: int = 512
    mlp_width: int = 512
    activation: Activation = "gelu"
    init_scale: float = 1.0
    norm: Norm = field(default="pre", metadata={"omit_default": True})

    def __post_init__(self) -> None:
        _check_counts(self, "activation", "init_scale", "norm")
        _check_activation(self.activation)
        check_choice("norm", self.norm, get_args(Norm))
        _check_scale(self.init_scale)
        if self.image_size % self.patch_size:
            raise ValueError(
                f"`patch_size` must divide `image_size`; got {self.patch_size} and {self.image_size}. "
                "Crop or resize the images, or choose another patch."
            )

    @property
    def num_tokens(self) -> int:
        """Return the number T of tokens: the patches and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1

    def sizes(self, *, task: str, shape: Sequence[int], num_classes: int | None) -> list[Size]:
        """Require images of this size, and at most this many classes."""
        image = (self.num_channels, self.image_size, self.image_size)
        return [
            Size("task", "classify", task),
            Size("image", image, tuple(shape)),
            Size("num_classes", self.num_classes, num_classes, may_spare=True),
        ]

    def flops(self, *, tokens: int | None = None) -> float:
        """Count the blocks; the number of tokens follows from the size of the image."""
        return 6.0 * _block_weights(self) * self.num_tokens

    @property
    def num_weights(self) -> int:
        """Return the number of weights in the blocks, of the patches, the positions and the classifier."""
        outside = self.num_channels * self.patch_size**2 + self.num_tokens + self.num_classes
        return _block_weights(self) + self.width * outside

    def module(self) -> "nn.Module":
        """Build a `ViT`."""
        from rankrise.lab.models._transformers import ViT

        return ViT(self)


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a `GPT`; the defaults are GPT-2 small, 124 million weights.

    Args:
        vocab_size: Size V of the vocabulary.
        context: Largest number of tokens in a sequence.
        num_layers: Number of blocks.
        num_heads: H.
        head_dim: r; H r need not be the width.
        width: d, the dimension of a token.
        mlp_width: Width of the hidden layer of a block.
        activation: "gelu" (in the tanh form of GPT-2) or "relu".
        init_scale: Factor on the initial weights and biases of attention and MLP. Norms, positions and the token
            embedding, which is also the output layer, keep their usual scale.

    >>> GPTConfig(num_layers=6, num_heads=6, width=384, mlp_width=1536).head_dim
    64
    """

    vocab_size: int = 50257
    context: int = 1024
    num_layers: int = 12
    num_heads: int = 12
    head_dim: int = 64
    width: int = 768
    mlp_width: int = 3072
    activation: Activation = "gelu"
    init_scale: float = 1.0

    def __post_init__(self) -> None:
        _check_counts(self, "activation", "init_scale")
        _check_activation(self.activation)
        _check_scale(self.init_scale)

    def sizes(self, *, task: str, shape: Sequence[int], num_classes: int | None) -> list[Size]:
        """Require sequences and a vocabulary of at most these sizes."""
        return [
            Size("task", "next_token", task),
            Size("context", self.context, shape[-1], may_spare=True),
            Size("vocab_size", self.vocab_size, num_classes, may_spare=True),
        ]

    def flops(self, *, tokens: int | None = None) -> float:
        """Count the blocks and the output layer, at full context."""
        return 6.0 * (_block_weights(self) + self.vocab_size * self.width) * self.context

    @property
    def num_weights(self) -> int:
        """Return the number of weights in the blocks, of the tokens and the positions."""
        return _block_weights(self) + self.width * (self.vocab_size + self.context)

    def module(self) -> "nn.Module":
        """Build a `GPT`."""
        from rankrise.lab.models._transformers import GPT

        return GPT(self)


@dataclass(frozen=True)
class ToyHeadConfig:
    """Sizes of a `ToyHead`.

    Args:
        dim: Dimension d of a token.
        head_dim: Dimension r of the head.
        init_scale: Scale α: initial weights are standard normal numbers times α / √d.
    """

    dim: int = 10
    head_dim: int = 10
    init_scale: float = 0.01

    def __post_init__(self) -> None:
        _check_counts(self, "init_scale")
        _check_scale(self.init_scale)

    def sizes(self, *, task: str, shape: Sequence[int], num_classes: int | None) -> list[Size]:
        """Require tokens of this dimension."""
        return [Size("task", "regress", task), Size("dim", self.dim, shape[-1])]

    def flops(self, *, tokens: int | None = None) -> float:
        """Count the four matrices; a sample has 10 tokens by default."""
        return 24.0 * self.dim**2 * (tokens or 10)

    @property
    def num_weights(self) -> int:
        """Return the number of weights in the four matrices."""
        return 4 * self.dim * self.head_dim

    def module(self) -> "nn.Module":
        """Build a `ToyHead`."""
        from rankrise.lab.models._transformers import ToyHead

        return ToyHead(self)


def _block_weights(config: "ViTConfig | GPTConfig") -> int:
    """Return the number of weights in attention and MLP of all blocks."""
    attention, mlp = 4 * config.num_heads * config.head_dim, 2 * config.mlp_width
    return config.num_layers * config.width * (attention + mlp)


def _check_counts(config: Any, *others: str) -> None:
    """Refuse a field that is not a positive integer; fields named in `others` are not checked."""
    for name, value in vars(config).items():
        if name not in others:
            object.__setattr__(config, name, as_count(value, name, least=1))


def _check_activation(name: str) -> None:
    """Refuse an unknown activation."""
    if name not in ("gelu", "relu"):
        raise ValueError(f"`activation` must be 'gelu' or 'relu'; got {name!r}.")


def _check_scale(scale: float) -> None:
    """Refuse a scale that is not a positive number."""
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
        raise ValueError(f"`init_scale` must be a positive number; got {scale!r}. 1 leaves the weights as they are.")


VIT_B16 = ViTConfig(
    image_size=224, patch_size=16, num_classes=1000, num_layers=12, num_heads=12, head_dim=64, width=768, mlp_width=3072
)  # the paper's network for ImageNet
MODELS: dict[str, type[ModelConfig]] = {"vit": ViTConfig, "gpt": GPTConfig, "toy_head": ToyHeadConfig}


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
