"""Queries and keys are those that attention uses, in models of several families."""

import pytest
import torch
import torch.nn.functional as F
from tests.tracking.models import small_model
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from rankrise.gauges import attention_entropy, is_watched, seen_attention
from rankrise.heads import resolve
from rankrise.lab.models import GPTConfig, ViTConfig, build_model

TOKENS = torch.arange(24).reshape(2, 12) % 16
SIZES = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}


def seen(model, *args, **kwargs):
    head_map = resolve(model)
    model.eval()
    with torch.no_grad(), seen_attention(model, head_map, attention_entropy) as found:
        output = model(*args, **kwargs)
    return found.by_layer(), output


def hf(name, **options):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}Model")(config).eval()


FAMILIES = {
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 32},
    "Llama": SIZES | {"num_key_value_heads": 2},
    "Qwen3": SIZES | {"num_key_value_heads": 2, "head_dim": 8},
    "Gemma3Text": SIZES | {"num_key_value_heads": 1, "head_dim": 8, "layer_types": None, "sliding_window": 4},
    "GPTNeoX": SIZES,
    "Bert": SIZES,
    "Phi": SIZES,
    "OPT": {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 32,
            "word_embed_proj_dim": 32},
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("is_padded", [False, True])
def test_entropy_is_that_of_the_attention_the_model_returns(name, is_padded):
    model = hf(name, **FAMILIES[name])
    options = {}
    if is_padded:
        options["attention_mask"] = torch.ones_like(TOKENS)
        options["attention_mask"][1, : 3 if name == "GPT2" else 0] = 0
        options["attention_mask"][1, 9:] = 0
    calls, output = seen(model, TOKENS, **options)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(TOKENS, **options, output_attentions=True)
    keep = options.get("attention_mask", torch.ones_like(TOKENS)).bool()
    assert len(calls) == 2
    for (rows,), weights in zip(calls, expected.attentions, strict=True):
        entropy = torch.special.entr(weights.double()).sum(-1)
        found = rows.entropy.double().expand(entropy.shape)
        of_tokens = keep[:, None].expand(entropy.shape)  # rows of padding mean nothing
        torch.testing.assert_close(found[of_tokens], entropy[of_tokens], atol=1e-5, rtol=0)
    state = (output.last_hidden_state - expected.last_hidden_state)[keep].abs().max()
    assert state < 1e-4
    assert not is_watched()


def test_vision_transformer_of_transformers():
    sizes = {key: value for key, value in SIZES.items() if key != "vocab_size"}
    model = hf("ViT", **sizes, image_size=8, patch_size=4)
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    calls, _ = seen(model, images)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(images, output_attentions=True).attentions
    for (rows,), weights in zip(calls, expected, strict=True):
        entropy = torch.special.entr(weights.double()).sum(-1)
        torch.testing.assert_close(rows.entropy.double(), entropy, atol=1e-5, rtol=0)


def test_every_block_of_our_vit_is_seen_the_last_one_too():
    config = ViTConfig(image_size=8, num_channels=1, patch_size=4, width=16, num_layers=3, num_heads=2, head_dim=6)
    model = build_model(config, seed=0).eval()
    images = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    inputs = []
    handles = [block.norm1.register_forward_hook(lambda m, i, out: inputs.append(out)) for block in model.blocks]
    with torch.no_grad():
        plain = model(images)
    for handle in handles:
        handle.remove()
    calls, output = seen(model, images)
    torch.testing.assert_close(output, plain, atol=1e-5, rtol=0)
    assert [rows.entropy.shape[-1] for (rows,) in calls] == [5, 5, 1]  # the last block asks for the class token only
    for block, x, (rows,) in zip(model.blocks, inputs, calls, strict=True):
        q, k, _ = block.attn.qkv(x).view(5, 5, 3, 2, 6).transpose(1, 3).unbind(2)
        entropy = torch.special.entr((q @ k.mT / 6**0.5).double().softmax(-1)).sum(-1)
        torch.testing.assert_close(rows.entropy.double(), entropy[..., : rows.entropy.shape[-1]], atol=1e-5, rtol=0)


def test_our_gpt_is_seen_with_its_causal_rows():
    model = build_model(GPTConfig(vocab_size=16, context=12, width=16, num_layers=2, num_heads=2, head_dim=8), seed=0)
    calls, _ = seen(model, TOKENS)
    for (rows,) in calls:
        assert rows.visible[0, 0].tolist() == list(range(1, 13))


def test_encoder_layers_of_torch_are_seen_although_they_have_a_fast_path():
    model = small_model(dropout=0.0).eval()
    x = torch.randn(4, 5, 12, generator=torch.Generator().manual_seed(0))
    calls, output = seen(model, x)
    torch.testing.assert_close(output, model(x), atol=1e-5, rtol=0)
    normed = model.layers[0].norm1(x)
    _, weights = model.layers[0].self_attn(normed, normed, normed, average_attn_weights=False)
    entropy = torch.special.entr(weights.double()).sum(-1)
    torch.testing.assert_close(calls[0][0].entropy.double(), entropy.detach(), atol=1e-5, rtol=0)


class ByName(nn.Module):
    """Attention that imported torch's function by name."""

    def __init__(self, num_calls=1):
        super().__init__()
        self.num_heads, self.num_calls = 2, num_calls
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (2, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        for _ in range(self.num_calls):
            x = self.o_proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x


@pytest.mark.parametrize("num_calls", [1, 3])
def test_functions_imported_by_name_and_layers_used_several_times(num_calls):
    model = nn.Sequential(ByName(num_calls), ByName(num_calls))
    calls, _ = seen(model, torch.randn(3, 5, 8))
    assert [len(rows) for rows in calls] == [num_calls, num_calls]


def test_attention_outside_the_layers_is_left_out():
    model = nn.Sequential(ByName(), ByName())

    def extra(module, args):
        q = torch.zeros(1, 9, 2, 2)
        F.scaled_dot_product_attention(q, q, q)

    model.register_forward_pre_hook(extra)
    calls, _ = seen(model, torch.randn(3, 5, 8))
    assert [rows.entropy.shape for (rows,) in calls] == [(3, 2, 5)] * 2


def test_eager_attention_is_refused_with_its_remedy():
    model = hf("Llama", **SIZES, attn_implementation="eager")
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn, layers\.1\.self_attn of the 2 .*\"sdpa\"\.$"):
        seen(model, TOKENS)
    assert not is_watched()


def test_everything_is_put_back_when_the_model_fails():
    model = nn.Sequential(ByName())
    with pytest.raises(RuntimeError):
        seen(model, torch.randn(3, 5, 9))
    assert F.scaled_dot_product_attention is scaled_dot_product_attention
    assert torch.backends.mha.get_fastpath_enabled()
    assert not is_watched()
    assert not model[0]._forward_hooks
    calls, _ = seen(model, torch.randn(3, 5, 8))
    assert len(calls[0]) == 1
