"""Rows of the table and users' own: patterns, choices, messages."""

import pytest
import torch
from tests.heads.oracles import SeparateAttention
from torch import nn

from rankrise.heads import Layout, resolve

PATTERNS = ("b.{layer}.q", "b.{layer}.k", "b.{layer}.v", "b.{layer}.o")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"q": "b.0.q"}, r"`q` must be a name with `\{layer\}` in it once; got 'b\.0\.q'"),
        ({"k": "{layer}.{layer}"}, "`k` must be a name"),
        ({"v": None}, "`v` must be a name"),
        ({"norm": "ln.weight"}, "`norm` must be a name"),
        ({"order": "thirds"}, "`order` must be one of 'blocks', 'heads', 'groups'; got 'thirds'"),
        ({"stored": "transposed"}, "`stored` must be one of None, 'out_in', 'in_out'"),
        ({"norm_kind": "batch"}, "`norm_kind` must be one of"),
        ({"o": "b.{layer}.q"}, "`o` must be a weight of its own"),
        ({"num_heads": 0}, "`num_heads` must be a positive integer; got 0"),
        ({"slices": 0}, "`slices` must be a positive integer; got 0"),
        ({"sequence": "qkk"}, "`sequence` must have q, k and v in it, each once; got 'qkk'"),
        ({"kv_down": "down.weight"}, "`kv_down` must be a name"),
    ],
)
def test_bad_layouts(options, message):
    with pytest.raises(ValueError, match=message):
        Layout(**{**dict(zip("qkvo", PATTERNS, strict=True)), **options})


@pytest.mark.parametrize("heads", [(), "gpt2", [("q", "k")]])
def test_bad_heads(heads):
    with pytest.raises(ValueError, match="`heads` must be a Layout or several of them"):
        resolve(SeparateAttention(8, 2), heads)


def test_names_are_literal_but_for_the_layer():
    weights = {f"b.{i}.{role}": torch.zeros(4, 4) for i in ("0", "10", "x.y") for role in "qkvo"}
    noise = {"b.0.q2": torch.zeros(4, 4), "bx0.q": torch.zeros(4, 4), "c.b.0.q": torch.zeros(4, 4)}
    head_map = resolve({**noise, **weights}, Layout(*PATTERNS, num_heads=2))
    assert [layer.name for layer in head_map] == ["b.0", "b.10", "b.x.y"]


def test_a_layer_without_all_four_is_not_a_layer():
    weights = {f"b.{i}.{role}": torch.zeros(4, 4) for i in range(2) for role in "qkvo"}
    del weights["b.1.o"]
    assert [layer.name for layer in resolve(weights, Layout(*PATTERNS, num_heads=2))] == ["b.0"]


def test_several_layouts_at_once():
    encoder = {f"enc.{i}.{role}": torch.zeros(4, 4) for i in range(2) for role in "qkvo"}
    decoder = {f"b.{i}.{role}": torch.zeros(4, 4) for i in range(2) for role in "qkvo"}
    first = Layout(*PATTERNS, num_heads=2, name="decoder")
    second = Layout(*(p.replace("b.", "enc.") for p in PATTERNS), num_heads=4, name="encoder")
    head_map = resolve({**encoder, **decoder}, (first, second))
    assert head_map.scheme == "decoder, encoder"
    assert [layer.num_heads for layer in head_map] == [2, 2, 4, 4]


def test_own_layouts_go_before_the_table():
    """Swapped on purpose: the layout given is the one used."""
    attention = SeparateAttention(8, 2)
    swapped = Layout(*(f"{{layer}}.{name}.weight" for name in ("key", "query", "value", "out")))
    assert resolve(attention, swapped).layers[0].roles["q"].parameter == "key.weight"


def test_experts_can_be_described():
    experts = nn.ModuleList(SeparateAttention(8, 2) for _ in range(2))
    model = nn.ModuleDict({"attn": nn.ModuleDict({"experts": experts})})
    layout = Layout(*(f"{{layer}}.experts.1.{name}.weight" for name in ("query", "key", "value", "out")))
    assert [layer.name for layer in resolve(model, layout)] == ["attn.experts.1"]
