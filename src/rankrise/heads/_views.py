"""What `resolve` returns: the attention layers of a model, each with four recipes made of names and numbers.

Symbols:
    W_K, W_Q, W_V, W_O    (d, r) for every head: `x W_K` is a key, and a head writes `(p x) W_V W_Oᵀ` for attention p
    stored                nn.Linear keeps (out, in); HF Conv1D and plain `x @ w` keep (in, out)
    offset, stride        head h has the rows (or columns) `offset + h * stride + [0, r)` of the stored matrix
    group, group_stride   if heads lie in groups of `group`, that of head h starts `h // group * group_stride` further
                          on, and `h % group` takes the place of h
    D                     (d, rank): the projection to the latent that W reads in latent attention
    A, B, scale           low-rank adapter: the weight in effect is `base + scale * B A`
    g, C                  gain of the norm before attention, and the centring `I − 11ᵀ/d` of a LayerNorm

These four numbers hold every known order of fused weights: blocks q|k|v have stride r and offsets of whole blocks,
weights interleaved per head have stride 3r and offsets 0, r, 2r, and weights interleaved per group of query heads have
stride r inside groups that are (H / G + 2) r apart.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from rankrise.heads._parametrised import read_weight

Get = Callable[[str], Tensor]


@dataclass(frozen=True)
class LowRankUpdate:
    """A LoRA pair on top of a stored weight: `scale * B A`, transposed where the weight is stored (in, out).

    >>> get = {"a": torch.ones(1, 3), "b": torch.ones(2, 1)}.__getitem__
    >>> LowRankUpdate("a", "b", scale=0.5)(get).tolist()
    [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]
    """

    a: str  # parameter holding A, (rank, in)
    b: str  # parameter holding B, (out, rank)
    scale: float
    transposed: bool = False

    def __call__(self, get: Get) -> Tensor:
        """Return the update in float64, shaped like the stored weight."""
        update = self.scale * (wide(get(self.b)) @ wide(get(self.a)))
        return update.mT if self.transposed else update


@dataclass(frozen=True)
class NormGain:
    """What the norm before attention does to a weight W that reads it, apart from dividing by the token's size.

    The norm hands on `g ⊙ C x / size(x)`, with C = I − 11ᵀ/d for LayerNorm and C = I for RMSNorm. The weight that acts
    on the residual stream itself is therefore `C diag(g) W`; the division and the norm's bias are left out.

    >>> fold = NormGain("ln.weight", centred=True)
    >>> fold(torch.eye(2)[None], torch.tensor([2.0, 4.0])).tolist()
    [[[1.0, -2.0], [-1.0, 2.0]]]
    """

    parameter: str  # the gain g, (d,)
    centred: bool  # True for LayerNorm, False for RMSNorm
    offset: float = 0.0  # Gemma stores g − 1

    def __call__(self, weight: Tensor, gain: Tensor) -> Tensor:
        """Return `C diag(g) W` in float64, for weights (..., d, r)."""
        if gain.shape != weight.shape[-2:-1]:
            raise ValueError(
                f"The gain {self.parameter!r} must have one entry for each of the {weight.shape[-2]} inputs "
                f"of the weight it is folded into; got shape {tuple(gain.shape)}."
            )
        scaled = (wide(gain) + self.offset)[:, None] * wide(weight)
        return scaled - scaled.mean(dim=-2, keepdim=True) if self.centred else scaled


@dataclass(frozen=True)
class LatentInput:
    """The projection D to a latent, which stands between a layer's input and the weight W that a view cuts.

    Latent attention computes a key as `norm(x D) W`. The effective weight is `D W`, (d, r) for every head; the norm of
    the latent is left out of it.

    >>> down = LatentInput("down.weight", rank=1)
    >>> down({"down.weight": torch.tensor([[2.0, 3.0], [9.0, 9.0]])}.__getitem__, torch.ones(4, 1, 5)).shape
    torch.Size([4, 2, 5])
    """

    parameter: str  # the stored weight, (rank or more, d): rows beyond the rank make the rotated key
    rank: int
    adapters: tuple[LowRankUpdate, ...] = ()

    def __call__(self, get: Get, heads: Tensor) -> Tensor:
        """Return `D W` in float64, for the heads (heads, rank, r) of W."""
        down = wide(get(self.parameter)) + sum(update(get) for update in self.adapters)
        return down[: self.rank].mT @ wide(heads)


@dataclass(frozen=True)
class WeightView:
    """The recipe for W_Q, W_K, W_V or W_O of all heads of one layer.

    A recipe holds names and numbers only, so the same object reads a live module, saved initial weights, a state dict
    on disk or a gathered shard. Where grouped or multi-query attention stores fewer key and value heads than query
    heads, `view(tensor)` and `view.read(get)` repeat each one for its query heads; `view.matrix(get)` does not.

    >>> view = WeightView("attn.weight", "k", shape=(12, 2), axis=0, stored_heads=2, head_dim=2, offset=4, stride=2)
    >>> tensor = torch.arange(24.0).reshape(12, 2)  # nn.Linear(2, 12): q | k | v of two heads
    >>> view(tensor).shape  # (heads, d, r)
    torch.Size([2, 2, 2])
    >>> torch.equal(view(tensor)[1], tensor[6:8].T)
    True
    """

    parameter: str  # the stored weight, named as in `named_parameters()` or the state dict
    role: str
    shape: tuple[int, int]  # shape of the stored weight
    axis: int  # dimension of the stored weight along which the heads lie
    stored_heads: int
    head_dim: int
    offset: int
    stride: int
    repeats: int = 1  # query heads for each stored head
    adapters: tuple[LowRankUpdate, ...] = ()
    norm: NormGain | None = None  # folded into what `read` and `matrix` return
    group: int | None = None  # heads in a group; None: all of them
    group_stride: int | None = None
    down: LatentInput | None = None  # multiplied onto what `read` and `matrix` return

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return self.stored_heads * self.repeats

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all tensors that `read` asks for."""
        updates = (*self.adapters, *(self.down.adapters if self.down else ()))
        adapters = tuple(name for update in updates for name in (update.a, update.b))
        others = (part.parameter for part in (self.down, self.norm) if part is not None)
        return (self.parameter, *adapters, *others)

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return (heads, d, r) of a stored weight, without adapters, latent and norm. It may share memory: clone it.

        Args:
            tensor: The whole weight, on any device, meta included.

        Raises:
            ValueError: If the shape is not the one that was resolved.
        """
        return self._for_query_heads(self._cut(tensor))

    def read(self, get: Get) -> Tensor:
        """Return the weight in effect, (heads, d, r): base plus adapters, with the norm folded in if asked for.

        Without adapters, latent and norm these are the stored numbers in their dtype. With them the result is float64,
        so that a small change since initialisation keeps its digits.

        Args:
            get: Takes a parameter's name, and returns its whole tensor.
        """
        return self._for_query_heads(self._effective_heads(get))

    def matrix(self, get: Get) -> Tensor:
        """Return the whole matrix (d, stored_heads * r), heads side by side and each stored head once."""
        return self._effective_heads(get).movedim(0, 1).flatten(1)

    def _effective_heads(self, get: Get) -> Tensor:
        tensor = get(self.parameter).detach()
        if self.adapters:
            tensor = wide(tensor) + sum(update(get) for update in self.adapters)
        heads = self._cut(tensor)
        if self.down is not None:
            heads = self.down(get, heads)
        return self.norm(heads, get(self.norm.parameter).detach()) if self.norm else heads

    def _for_query_heads(self, heads: Tensor) -> Tensor:
        return heads.repeat_interleave(self.repeats, dim=0) if self.repeats > 1 else heads

    def _cut(self, tensor: Tensor) -> Tensor:
        if tensor.shape != self.shape:
            raise ValueError(
                f"{self.parameter!r} must have the shape {self.shape} that was resolved; got {tuple(tensor.shape)}. "
                "Resolve again if the module has changed; gather the weight first if it is sharded."
            )
        group = self.group or self.stored_heads
        jump = self.group_stride or group * self.stride
        length = (group - 1) * self.stride + self.head_dim
        whole = (self.stored_heads // group - 1) * jump + length
        groups = tensor.detach().narrow(self.axis, self.offset, whole).unfold(self.axis, length, jump)
        heads = groups.movedim(self.axis, 0).unfold(-1, self.head_dim, self.stride)  # (groups, d, group, r)
        return heads.movedim(2, 1).flatten(0, 1)  # (stored_heads, d, r)


def wide(tensor: Tensor) -> Tensor:
    """Return the tensor in float64, on the CPU if its device has no float64."""
    tensor = tensor.detach()
    return tensor.to("cpu" if tensor.device.type == "mps" else tensor.device, torch.float64)


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

    index: int  # counted from 0
    name: str  # path of the module that holds the weights, without wrappers
    views: tuple[WeightView, ...]  # the views of q, k, v, o
    notes: tuple[str, ...] = ()  # what the products leave out of the whole bilinear form
    doubt: str | None = None  # where the number of heads is from, if not from the config that the path names

    @property
    def roles(self) -> Mapping[str, WeightView]:
        """Return the view of each of "q", "k", "v", "o"."""
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
        """Return the two factors of a circuit, (heads, d, r) each, in one dtype: "kq" is `K Qᵀ`, "vo" is `V Oᵀ`.

        `K Qᵀ` is the matrix of the score `x_key (K Qᵀ) x_query`, before its scale; `V Oᵀ` maps the attended
        token, a row vector, to what the head writes.

        Args:
            circuit: "kq" or "vo".
            get: Takes a parameter's name, and returns its whole tensor: `module.get_parameter` or
                `state_dict.__getitem__`.

        Raises:
            ValueError: If the circuit is unknown, or a tensor has another shape than was resolved.
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
    scheme: str  # names of the layouts that matched
    notes: tuple[str, ...] = ()  # notes on the whole model, then those of the layers, each once

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
    """Return the function from a weight's name to its live tensor; a parametrised weight is computed."""
    return functools.partial(read_weight, source) if isinstance(source, nn.Module) else source.__getitem__
