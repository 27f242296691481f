"""Mistakes that others made with these weights (the CENG501 notebook, TransformerLens, WeightWatcher): ours differ."""

import pytest
import torch
import transformers
from tests.heads.oracles import products
from torch import nn

import rankrise as rr
from rankrise.heads import resolve

D, HEADS, R = 12, 4, 3


@pytest.fixture
def gpt2():
    config = transformers.GPT2Config(n_layer=1, n_embd=D, n_head=HEADS, vocab_size=11, bos_token_id=0, eos_token_id=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.GPT2LMHeadModel(config).double()


def test_head_dimension_is_contracted_and_not_the_embedding():
    """Contracting over the embedding gives all pairs of heads' coordinates, 12 × 12 with no head in it."""
    attention = nn.MultiheadAttention(D, HEADS).double()
    kq, _ = products(resolve(attention).layers[0], attention.get_parameter)
    q, k, _ = attention.in_proj_weight.detach().chunk(3)
    assert kq.shape == (HEADS, D, D)
    assert torch.linalg.matrix_rank(kq).tolist() == [R] * HEADS
    for h in range(HEADS):
        torch.testing.assert_close(kq[h], k[h * R : (h + 1) * R].T @ q[h * R : (h + 1) * R])
    assert not torch.allclose(kq.sum(0), k @ q.T)


def test_heads_are_not_slices_of_a_product_over_all_heads():
    attention = nn.MultiheadAttention(D, HEADS).double()
    kq, _ = products(resolve(attention).layers[0], attention.get_parameter)
    q, k, _ = attention.in_proj_weight.detach().chunk(3)
    all_heads = k.T @ q
    torch.testing.assert_close(kq.sum(0), all_heads)
    for h in range(HEADS):
        here = slice(h * R, (h + 1) * R)
        assert not torch.allclose(kq[h][here, here], all_heads[here, here])


def test_thirds_of_c_attn_are_of_its_columns(gpt2):
    weight = gpt2.transformer.h[0].attn.c_attn.weight.detach()
    assert weight.shape == (D, 3 * D)
    key, query = resolve(gpt2).layers[0].factors("kq", gpt2.get_parameter)
    for h in range(HEADS):
        assert torch.equal(query[h], weight[:, h * R : (h + 1) * R])
        assert torch.equal(key[h], weight[:, D + h * R : D + (h + 1) * R])


def test_initial_weights_do_not_follow_training(gpt2):
    """An un-cloned view changes with the weights, and the change since initialisation reads as zero."""
    head_map = resolve(gpt2)
    (layer,) = head_map.layers
    initial = head_map.snapshot(gpt2)
    view = layer.factors("kq", gpt2.get_parameter)
    tokens = torch.arange(8)[None] % 11
    optimiser = torch.optim.SGD(gpt2.parameters(), lr=0.5)
    gpt2(tokens, labels=tokens).loss.backward()
    optimiser.step()
    now, before = layer.factors("kq", gpt2.get_parameter), layer.factors("kq", initial.__getitem__)
    assert (rr.delta_spectrum(*now, *view)[:, 0] == 0).all()
    assert (rr.delta_spectrum(*now, *before)[:, 0] > 1e-6).all()


def test_grouped_heads_are_repeated_and_not_tiled():
    """Query heads 0, 1 share key head 0, and 2, 3 share key head 1."""
    sizes = {"hidden_size": D, "num_attention_heads": HEADS, "num_key_value_heads": 2, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, intermediate_size=4, vocab_size=5, head_dim=4)
    model = transformers.LlamaForCausalLM(config)
    key, _ = resolve(model).layers[0].factors("kq", model.get_parameter)
    assert torch.equal(key[0], key[1])
    assert torch.equal(key[2], key[3])
    assert not torch.equal(key[0], key[2])


def test_a_prefix_does_not_hide_the_initial_weights():
    """Names that differ by a prefix must not make a raw weight pass for a change: both resolve to the same layer."""
    plain = nn.TransformerEncoderLayer(D, HEADS, 8, batch_first=True)
    wrapped = nn.DataParallel(plain)
    before, after = resolve(plain).layers[0], resolve(wrapped).layers[0]
    assert before.name == after.name == "self_attn"
    change = (*after.factors("kq", wrapped.get_parameter), *before.factors("kq", plain.get_parameter))
    assert (rr.delta_spectrum(*change) == 0).all()
