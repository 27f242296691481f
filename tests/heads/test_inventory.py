"""Names without wrappers: torch.compile, DDP, activation checkpointing; collisions and odd sources."""

import pytest
import torch
from tests.heads.oracles import SeparateAttention
from torch import nn
from transformers.pytorch_utils import Conv1D

from rankrise.heads import canonical_names, resolve

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own


def model():
    return nn.Sequential(*(nn.Sequential(SeparateAttention(8, 2)) for _ in range(2)))


PLAIN = ["0.0", "1.0"]


def test_compiled_module():
    compiled = torch.compile(model())
    head_map = resolve(compiled)
    assert [layer.name for layer in head_map] == PLAIN
    assert head_map.layers[0].roles["q"].parameter == "_orig_mod.0.0.query.weight"
    assert "stripped the prefix '_orig_mod.'" in head_map.notes
    assert set(head_map.parameters()) <= set(dict(compiled.named_parameters()))


def test_compiled_blocks():
    inner = model()
    inner[1] = torch.compile(inner[1])
    head_map = resolve(inner)
    assert [layer.name for layer in head_map] == PLAIN
    assert head_map.layers[1].roles["q"].parameter == "1._orig_mod.0.query.weight"


@pytest.mark.parametrize("wrap", [lambda m: nn.DataParallel(m), lambda m: nn.DataParallel(torch.compile(m))])
def test_data_parallel(wrap):
    head_map = resolve(wrap(model()))
    assert [layer.name for layer in head_map] == PLAIN
    assert "stripped the prefix 'module.'" in head_map.notes


def test_compiled_data_parallel():
    head_map = resolve(torch.compile(nn.DataParallel(model())))
    assert [layer.name for layer in head_map] == PLAIN
    assert head_map.notes[:2] == ("stripped the prefix '_orig_mod.'", "stripped the prefix 'module.'")


def test_state_dict_of_a_wrapped_module():
    state = torch.compile(nn.DataParallel(model())).state_dict()
    assert [layer.name for layer in resolve(state, num_heads=2)] == PLAIN


def test_checkpointed_module():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    assert [layer.name for layer in resolve(checkpoint_wrapper(model()))] == PLAIN


def test_fully_sharded_modules_keep_their_kind():
    """FSDP2 swaps a module's class for one called FSDP + its name; a Conv1D must stay one."""
    attention = SeparateAttention(8, 2, linear=lambda a, b: Conv1D(b, a))
    expected = resolve(attention)
    for name in attention.names:
        getattr(attention, name).__class__ = type("FSDPConv1D", (Conv1D,), {})
    assert resolve(attention) == expected
    assert expected.layers[0].roles["q"].axis == 1


def test_a_module_called_module_is_left_alone():
    own = nn.ModuleDict({"module": SeparateAttention(8, 2), "other": nn.Linear(2, 2)})
    head_map = resolve(own)
    assert [layer.name for layer in head_map] == ["module"]
    assert not any("stripped" in note for note in head_map.notes)


def test_names_that_become_equal_are_refused():
    state = SeparateAttention(8, 2).state_dict()
    twice = {**state, **{f"_orig_mod.{name}": tensor for name, tensor in state.items()}}
    with pytest.raises(
        ValueError, match=r"must differ after wrappers are stripped; 'query\.weight' and '_orig_mod\.query"
    ):
        resolve(twice, num_heads=2)


@pytest.mark.parametrize("source", [None, [torch.zeros(2, 2)], "model.safetensors", 3])
def test_other_sources_are_refused(source):
    with pytest.raises(ValueError, match=r"`source` must be an nn\.Module or map names to tensors; got "):
        resolve(source)


def test_entries_that_are_not_tensors_are_passed_over():
    state = {**SeparateAttention(8, 2).state_dict(), "epoch": 3, "_extra_state": None, 7: torch.zeros(2, 2)}
    assert len(resolve(state, num_heads=2)) == 1


@pytest.mark.parametrize("pattern", ["encoder_layer_{}", "h.{}", "h{}.block", "stage1_block{}b"])
def test_layers_come_in_the_order_of_their_numbers(pattern):
    names = [pattern.format(i) for i in range(12)]
    state = {f"{n}.{k}": v for n in sorted(names) for k, v in SeparateAttention(8, 2).state_dict().items()}
    assert [layer.name for layer in resolve(state, num_heads=2)] == names


def test_names_in_the_order_of_their_numbers_in_every_part():
    paths = ["stage_2.block_10", "stage_10.block_9", "stage_10.block_10"]
    state = {f"{n}.{k}": v for n in reversed(paths) for k, v in SeparateAttention(8, 2).state_dict().items()}
    assert [layer.name for layer in resolve(state, num_heads=2)] == paths


@pytest.mark.parametrize(
    ("names", "plain"),
    [
        (["module.a", "module.b"], ["a", "b"]),
        (["module.a", "b"], ["module.a", "b"]),
        (["_orig_mod.module.a", "_orig_mod.module.b"], ["a", "b"]),
        (["module._orig_mod.a", "module.h.1._orig_mod.b"], ["a", "h.1.b"]),
        (["module.module.a", "module.b"], ["module.a", "b"]),
        (["module.module.a", "module.module.b"], ["a", "b"]),
        (["h.module.a", "h.b"], ["h.module.a", "h.b"]),
        ([], []),
    ],
)
def test_canonical_names(names, plain):
    assert canonical_names(names) == dict(zip(names, plain, strict=True))


def test_canonical_names_are_those_of_the_resolver():
    inner = nn.ModuleDict({"module": model(), "other": model()})
    inner["other"][0] = torch.compile(inner["other"][0])
    for wrapped in (inner, nn.DataParallel(inner), torch.compile(nn.DataParallel(inner))):
        plain = canonical_names(name for name, _ in wrapped.named_parameters())
        for layer in resolve(wrapped):
            assert plain[layer.roles["q"].parameter] == f"{layer.name}.query.weight"
        assert set(plain.values()) == set(model_names("module", "other"))


def model_names(*parents):
    return [f"{parent}.{name}" for parent in parents for name, _ in model().named_parameters()]


def test_canonical_names_never_merge_two_parameters():
    with pytest.raises(ValueError, match=r"'h\.weight' and 'h\._orig_mod\.weight' are both 'h\.weight'"):
        canonical_names(["h.weight", "h._orig_mod.weight"])


def test_a_layer_used_again_is_a_layer_each_time():
    block = nn.TransformerEncoderLayer(8, 2, 16)
    head_map = resolve(nn.ModuleList([block] * 3))
    assert [layer.name for layer in head_map] == [f"{i}.self_attn" for i in range(3)]
    assert head_map.layers[2].roles["q"].parameter == "2.self_attn.in_proj_weight"
    (note,) = (note for note in head_map.notes if note.startswith("shared"))
    assert note.startswith("shared: 4 weights are those of other roles or layers, such as '1.self_attn.in_proj_weight'")
    assert len(head_map.snapshot(nn.ModuleList([block] * 3))) == 6
    state = nn.ModuleList([block] * 3).state_dict()
    assert [layer.name for layer in resolve(state, num_heads=2)] == [layer.name for layer in head_map]


def test_tied_keys_and_queries_are_read_and_noted():
    attention = SeparateAttention(8, 2)
    attention.key.weight = attention.query.weight
    (layer,) = (head_map := resolve(attention)).layers
    key, query = layer.factors("kq", attention.get_parameter)
    assert torch.equal(key, query)
    assert (
        "shared: 1 weights are those of other roles or layers, such as 'key.weight', which is 'query.weight'"
        in head_map.notes
    )


def test_weights_tied_between_two_towers_are_layers_of_both():
    towers = nn.ModuleDict({"encoder": SeparateAttention(8, 2), "decoder": SeparateAttention(8, 2)})
    for name in towers["encoder"].names:
        getattr(towers["decoder"], name).weight = getattr(towers["encoder"], name).weight
    assert [layer.name for layer in resolve(towers)] == ["decoder", "encoder"]
    assert any(note.startswith("shared: 4 weights") for note in resolve(towers).notes)


def test_a_model_beside_its_compiled_self_is_read_once():
    both = nn.Module()
    both.net = model()
    both.fast = torch.compile(both.net)
    head_map = resolve(both)
    assert [layer.name for layer in head_map] == ["net.0.0", "net.1.0"]
    assert "alias: 2 modules have a second name and are read once, such as 'fast.0.0' as 'net.0.0'" in head_map.notes
    assert not any(note.startswith(("shared", "not read")) for note in head_map.notes)
