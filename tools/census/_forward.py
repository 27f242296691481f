"""What a model's forward does: every product with a known weight and every softmax, in the order of the calls.

The recorder sees the operations that torch runs, whatever module or function asked for them. It can also take out of
the forward what a product of two weights leaves out (rotations, norms of queries and keys, gates, caps of scores), one
kind at a time, so that the census learns which of them a layer has.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
KINDS = ("rotation", "norm", "gate", "cap", "bias", "position", "convolution")
_TAKEN_OUT = (("norm", "norm"), ("conv", "convolution"))  # part of a class name, kind
_ROTARY_BUFFER = re.compile(
    r"(^|\.)((?P<both>embed_positions(\.weight)?)|(?P<sin>sin(?!k)\w*)|cos\w*|freqs_cis?)$"
)  # tables of rotations
_POSITION = re.compile(
    r"rel(?!u)|pos(?!t)|distance_embed|layout_|r_kernel|seg_embed|r_[wr]_bias|bias_[uv]$", re.IGNORECASE
)


@dataclass(frozen=True)
class Product:
    """`x @ weight`, in rows."""

    storage: int  # address of the weight's storage
    offset: int  # of the part of the weight that was used, in elements
    x: Tensor  # (rows, in)
    y: Tensor  # (rows, out)


@dataclass(frozen=True)
class Softmax:
    """A softmax over the last dimension."""

    scores: Tensor
    probabilities: Tensor
    of_product: bool  # whether as many scores came out of a batched product before, as those of queries and keys do


@dataclass
class Recorder(TorchDispatchMode):
    """Record products with the weights at `addresses` and softmaxes; leave out `without` what a name of KINDS says."""

    addresses: frozenset[int] = frozenset()
    without: frozenset[str] = frozenset(KINDS)
    events: list[Product | Softmax] = field(default_factory=list)
    inside: int = 0  # depth of attention modules that are running
    outputs: frozenset[int] = frozenset()  # addresses of the weights W_O among them
    between: bool = False  # whether the last product was with W_Q, W_K or W_V
    sizes: set[int] = field(default_factory=set)  # numbers of entries that batched products gave
    met: set[str] = field(default_factory=set)  # the kinds of operations of which some were removed

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket
        if "rotation" in self.without and name in (aten.cos, aten.sin, aten.polar):
            self.met.add("rotation")
            if name is aten.polar:
                return torch.complex(args[0], torch.zeros_like(args[0]))
            return torch.ones_like(args[0]) if name is aten.cos else torch.zeros_like(args[0])
        if self.inside and "gate" in self.without and name in (aten.sigmoid, aten.softplus):
            self.met.add("gate")
            return torch.ones_like(args[0])
        if self.inside and "cap" in self.without and name is aten.tanh:
            self.met.add("cap")
            return args[0].clone()
        out = func(*args, **kwargs)
        if name in (aten.bmm, aten.baddbmm):
            self.sizes.add(out.numel())
        if name in (aten.mm, aten.bmm):
            self._product(args[0], args[1], out)
        elif name in (aten.addmm, aten.baddbmm):
            self._product(args[1], args[2], out)
        elif name in (aten._softmax, aten._safe_softmax) and args[1] in (-1, args[0].ndim - 1):
            of_product = args[0].numel() in self.sizes
            self.events.append(Softmax(args[0].detach().clone(), out.detach().clone(), of_product))
        elif name is aten.convolution and args[1].shape[2:].numel() == 1 and args[8] == 1:
            self._convolution(args[0], args[1], out)
        return out

    def _product(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        if (storage := b.untyped_storage().data_ptr()) in self.addresses:
            x, y = a, out
        elif (storage := a.untyped_storage().data_ptr()) in self.addresses:
            x, y, b = b.mT, out.mT, a
        else:
            return
        x, y = (t.detach().reshape(-1, t.shape[-1]).clone() for t in (x, y))
        x.nan_to_num_(0.0)  # a token without a key, in a layer before; no other token attends to it
        self.events.append(Product(storage, b.storage_offset(), x, y))
        self.between = storage not in self.outputs

    def _convolution(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        if (storage := weight.untyped_storage().data_ptr()) in self.addresses:
            x, y = (t.detach().movedim(1, -1).reshape(-1, t.shape[1]).clone() for t in (x, out))
            self.events.append(Product(storage, weight.storage_offset(), x, y))
            self.between = storage not in self.outputs


@contextlib.contextmanager
def recording(
    model: nn.Module,
    attention: Sequence[str],
    addresses: frozenset[int],
    outputs: frozenset[int],
    without: frozenset[str],
) -> Iterator[Recorder]:
    """Record what happens inside, with everything of the kinds `without` taken out of the attention modules.

    Args:
        model: The whole model.
        attention: Paths of the attention modules.
        addresses: Storage addresses of the weights to watch.
        outputs: Those of the weights W_O.
        without: Names of KINDS.
    """
    recorder = Recorder(addresses, without, outputs=outputs)
    handles = []
    for path in attention:
        module = model.get_submodule(path)
        handles.append(module.register_forward_pre_hook(lambda *_: _deeper(recorder, 1)))
        handles.append(module.register_forward_hook(lambda *_: _deeper(recorder, -1), always_call=True))
        owners = {id(m) for m in module.modules() for p in m.parameters(recurse=False) if _address(p) in addresses}
        for name, child in module.named_modules():
            kind = type(child).__name__.lower()
            for word, taken in _TAKEN_OUT:
                if name and id(child) not in owners and word in kind and taken in without:
                    handles.append(child.register_forward_hook(partial(_identity, recorder, taken)))
    saved: dict[str, Tensor] = {}
    for name, p in (*model.named_buffers(), *model.named_parameters()):
        zeroed = _kind_of_table(name, p)
        if zeroed in without and zeroed is not None:
            recorder.met.add(zeroed)
            saved[name] = p
    values = {name: p.detach().clone() for name, p in saved.items()}
    normalize = nn.functional.normalize
    torch.backends.mha.set_fastpath_enabled(False)  # its single operation shows neither scores nor products
    if "norm" in without:
        nn.functional.normalize = lambda x, *args, **kwargs: recorder.met.add("norm") or x
    try:
        with torch.no_grad():
            for name, p in saved.items():
                p.zero_()
                if match := _ROTARY_BUFFER.search(name):
                    p[..., p.shape[-1] // 2 if match["both"] else 0 :] = 0 if match["sin"] else 1
            with sdpa_kernel(SDPBackend.MATH), recorder:
                yield recorder
    finally:
        nn.functional.normalize = normalize
        with torch.no_grad():
            for name, p in saved.items():
                p.copy_(values[name])
        for handle in handles:
            handle.remove()


def _kind_of_table(name: str, p: Tensor) -> str | None:
    """Return the kind that a parameter or buffer alone makes up, or None."""
    if _ROTARY_BUFFER.search(name):
        return "rotation"
    if not isinstance(p, nn.Parameter):
        return None
    if p.ndim == 1 and "bias" in name.rpartition(".")[2]:
        return "bias"
    return "position" if "conv" not in name and _POSITION.search(name) else None


def _deeper(recorder: Recorder, by: int) -> None:
    recorder.inside += by


def _identity(recorder: Recorder, kind: str, module: nn.Module, args: Any, out: Any) -> Any:
    """Hand on what came in, between the projections and W_O only: norms of other places are not the product's."""
    if not (recorder.between and args and isinstance(out, Tensor) and out.shape == args[0].shape):
        return out
    recorder.met.add(kind)
    return args[0]


def _address(p: Tensor) -> int:
    return p.untyped_storage().data_ptr()


def randomise(model: nn.Module) -> None:
    """Give every matrix and bias random entries of the size that keeps a signal's size, also past activations.

    Gains of norms and other vectors are moved away from what they start with, so that no factor is hidden by being 1.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not p.is_floating_point():
                continue
            if p.ndim > 1:
                fan_in = p.shape[1:].numel()
                gain = 1.7 if p.ndim == 4 else 1.0  # long chains of convolutions have no norm that restores the size
                p.copy_(torch.randn(p.shape, generator=generator) * gain * max(fan_in, 4) ** -0.5)
            elif name.endswith("bias") or "bias_" in name:
                p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
            elif p.ndim == 1:
                p.add_(torch.randn(p.shape, generator=generator) * 0.2)
