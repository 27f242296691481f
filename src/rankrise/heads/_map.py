"""What a resolver returns: the attention layers of a model, each with its four views."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from rankrise.heads._views import Get, WeightView

CIRCUITS: Mapping[str, tuple[str, str]] = MappingProxyType({"kq": ("k", "q"), "vo": ("v", "o")})


@dataclass(frozen=True)
class AttentionLayer:
    """One attention layer: where its W_Q, W_K, W_V, W_O are, and what their products leave out.

    >>> from rankrise.heads import resolve
    >>> attention = torch.nn.MultiheadAttention(embed_dim=6, num_heads=2)
    >>> layer = resolve(attention).layers[0]
    >>> key, query = layer.factors("kq", attention.get_parameter)
    >>> key.shape
    torch.Size([2, 6, 3])
    """

    index: int  # from 0
    name: str  # path of the module that holds the weights, without wrappers
    views: tuple[WeightView, ...]  # of q, k, v, o
    notes: tuple[str, ...] = ()  # in which way a product is not the whole bilinear form

    @property
    def roles(self) -> Mapping[str, WeightView]:
        """The view of each of "q", "k", "v", "o"."""
        return {view.role: view for view in self.views}

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return self.roles["q"].num_heads

    @property
    def head_dim(self) -> int:
        """Dimension r of a head's queries and keys."""
        return self.roles["q"].head_dim

    def parameters(self) -> tuple[str, ...]:
        """Names of all tensors this layer is read from, each once."""
        return tuple(dict.fromkeys(name for view in self.views for name in view.parameters))

    def factors(self, circuit: str, get: Get) -> tuple[Tensor, Tensor]:
        """The two factors of a circuit, (heads, d, r) each, in one dtype: "kq" is `K Qᵀ`, "vo" is `V Oᵀ`.

        `K Qᵀ` is the matrix of the score `x_key (K Qᵀ) x_query`, before its scale; `V Oᵀ` maps what is attended to, as
        a row, to what the head writes.

        Args:
            circuit: "kq" or "vo".
            get: From a parameter's name to its whole tensor: `module.get_parameter`, or `state_dict.__getitem__`.

        Raises:
            ValueError: Unknown circuit, or a tensor of another shape than was resolved.
        """
        if circuit not in CIRCUITS:
            raise ValueError(f"`circuit` must be one of {', '.join(CIRCUITS)}; got {circuit!r}.")
        left, right = (self.roles[role].read(get) for role in CIRCUITS[circuit])
        dtype = torch.promote_types(left.dtype, right.dtype)
        return left.to(dtype), right.to(dtype)


@dataclass(frozen=True)
class HeadMap:
    """All attention layers of a model, in the natural order of their names: digits compare as numbers.

    >>> from rankrise.heads import resolve
    >>> model = torch.nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=4)
    >>> head_map = resolve(model)
    >>> [(layer.index, layer.name, layer.num_heads) for layer in head_map.layers]
    [(0, 'self_attn', 2)]
    >>> head_map.scheme
    'nn.MultiheadAttention'
    """

    layers: tuple[AttentionLayer, ...]
    scheme: str  # the layouts that were met, by name
    notes: tuple[str, ...] = ()  # about the whole, then those of the layers, each once

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[AttentionLayer]:
        return iter(self.layers)

    def parameters(self) -> tuple[str, ...]:
        """Names of all tensors that are read, each once, layer by layer."""
        return tuple(dict.fromkeys(name for layer in self.layers for name in layer.parameters()))

    def snapshot(self, source: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A copy of every tensor that is read, by name: it does not follow training, as a view would.

        >>> from rankrise.heads import resolve
        >>> attention = torch.nn.MultiheadAttention(4, 2)
        >>> start = resolve(attention).snapshot(attention)
        >>> with torch.no_grad():
        ...     _ = attention.in_proj_weight.add_(1.0)
        >>> bool((attention.in_proj_weight - start["in_proj_weight"]).min() > 0.9)
        True
        """
        get = getter(source)
        return {name: get(name).detach().clone() for name in self.parameters()}


def getter(source: nn.Module | Mapping[str, Tensor]) -> Get:
    """From a parameter's name to its tensor, live."""
    return source.get_parameter if isinstance(source, nn.Module) else source.__getitem__
