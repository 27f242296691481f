import math

import pytest
import torch

from rankrise.heads import resolve
from rankrise.lab.models import GPTConfig, build_model

SMALL = GPTConfig(vocab_size=11, context=8, num_layers=2, num_heads=2, head_dim=4, width=8, mlp_width=16)


def test_gpt2_small_has_its_known_number_of_weights():
    with torch.device("meta"):
        model = build_model(GPTConfig())
    assert sum(p.numel() for p in model.parameters()) == 124_439_808


def test_hugging_faces_gpt2_gives_the_same_logits():
    from transformers import GPT2Config, GPT2LMHeadModel

    ours = build_model(SMALL, seed=1)
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2, n_inner=16, bos_token_id=0, eos_token_id=0
        )
    ).eval()
    weights = theirs.transformer.state_dict()
    with torch.no_grad():
        weights["wte.weight"].copy_(ours.token_embedding.weight)
        weights["wpe.weight"].copy_(ours.positions.weight)
        for n, block in enumerate(ours.blocks):
            for name, module in (
                ("attn.c_attn", block.attn.qkv), ("attn.c_proj", block.attn.proj),
                ("mlp.c_fc", block.mlp_in), ("mlp.c_proj", block.mlp_out),
            ):  # fmt: skip
                module.bias.normal_(generator=torch.Generator().manual_seed(n))
                weights[f"h.{n}.{name}.weight"].copy_(module.weight.T)
                weights[f"h.{n}.{name}.bias"].copy_(module.bias)
    tokens = torch.randint(11, (3, 8), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits)


def test_initial_law_is_gpt2s():
    model = build_model(GPTConfig(vocab_size=500, num_layers=2), seed=0)
    block = model.blocks[0]
    for weight, std in (
        (model.token_embedding.weight, 0.02),
        (block.attn.qkv.weight, 0.02),
        (block.attn.proj.weight, 0.02 / math.sqrt(4)),
        (block.mlp_out.weight, 0.02 / math.sqrt(4)),
    ):
        assert weight.std().item() == pytest.approx(std, rel=0.02)
    assert block.attn.qkv.bias.abs().max() == 0


def test_init_scale_leaves_embeddings_and_norms():
    one = build_model(SMALL, seed=3).state_dict()
    small = build_model(GPTConfig(**{**vars(SMALL), "init_scale": 0.1}), seed=3).state_dict()
    for name, weight in one.items():
        factor = 1.0 if any(part in name for part in ("norm", "embedding", "positions")) else 0.1
        torch.testing.assert_close(small[name], factor * weight, msg=name)


def test_a_token_does_not_see_those_after_it():
    model = build_model(SMALL)
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    changed = tokens.clone()
    changed[0, 3] = 9
    assert torch.equal(model(tokens)[:, :3], model(changed)[:, :3])


def test_a_sequence_longer_than_the_context_is_refused():
    with pytest.raises(ValueError, match="at most 8 tokens; got 9"):
        build_model(SMALL)(torch.zeros(1, 9, dtype=torch.long))


def test_heads_are_read():
    assert [(layer.num_heads, layer.head_dim) for layer in resolve(build_model(SMALL)).layers] == [(2, 4)] * 2
