import dataclasses

import pytest
import torch

from rankrise.heads import resolve
from rankrise.lab.models import VIT_B16, ViTConfig, build_model

SMALL = ViTConfig(
    image_size=8, patch_size=2, num_channels=1, num_layers=2, num_heads=2, head_dim=6, width=8, mlp_width=10
)


def test_the_papers_network():
    model = build_model(ViTConfig())
    assert sum(p.numel() for p in model.parameters()) == 15_815_178
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    layers = resolve(model).layers
    assert [(layer.num_heads, layer.head_dim) for layer in layers] == [(8, 128)] * 6


def test_vit_b16_has_the_known_number_of_weights():
    # timm's vit_base_patch16_224 has 86,567,656; ours has no bias on Q, K, V
    with torch.device("meta"):
        model = build_model(VIT_B16)
    assert sum(p.numel() for p in model.parameters()) == 86_567_656 - 12 * 3 * 768


def test_hugging_faces_vit_gives_the_same_logits():
    from transformers import ViTConfig as TheirConfig
    from transformers import ViTForImageClassification

    config = dataclasses.replace(SMALL, head_dim=4)
    ours = build_model(config, seed=1)
    theirs = ViTForImageClassification(
        TheirConfig(
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=10,
            image_size=8,
            patch_size=2,
            num_channels=1,
            num_labels=10,
            qkv_bias=False,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            layer_norm_eps=1e-5,
        )
    ).eval()
    weights = theirs.state_dict()

    def copy(name, value):
        assert weights[name].shape == value.shape, name
        weights[name].copy_(value)

    with torch.no_grad():
        copy("vit.embeddings.cls_token", ours.class_token)
        copy("vit.embeddings.position_embeddings", ours.positions)
        copy("vit.embeddings.patch_embeddings.projection.weight", ours.patch_embedding.weight.view(8, 1, 2, 2))
        copy("vit.embeddings.patch_embeddings.projection.bias", ours.patch_embedding.bias)
        names = {name.rsplit(".", 1)[0] for name in weights if ".layers." in name or ".layer." in name}
        stem = next(name for name in names if ".0." in name).split(".0.")[0]
        for n, block in enumerate(ours.blocks):
            q, k, v = block.attn.qkv.weight.chunk(3)
            copy(f"{stem}.{n}.attention.q_proj.weight", q)
            copy(f"{stem}.{n}.attention.k_proj.weight", k)
            copy(f"{stem}.{n}.attention.v_proj.weight", v)
            for theirs_name, module in (
                ("attention.o_proj", block.attn.proj), ("mlp.fc1", block.mlp_in), ("mlp.fc2", block.mlp_out),
                ("layernorm_before", block.norm1), ("layernorm_after", block.norm2),
            ):  # fmt: skip
                copy(f"{stem}.{n}.{theirs_name}.weight", module.weight)
                copy(f"{stem}.{n}.{theirs_name}.bias", module.bias)
        for theirs_name, module in (("vit.layernorm", ours.norm), ("classifier", ours.classifier)):
            copy(f"{theirs_name}.weight", module.weight)
            copy(f"{theirs_name}.bias", module.bias)
    images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(images), theirs(images).logits)


def test_init_scale_scales_attention_mlp_and_classifier_only():
    one, small = (build_model(dataclasses.replace(SMALL, init_scale=s), seed=3).state_dict() for s in (1.0, 0.1))
    kept = ("norm", "patch_embedding", "class_token", "positions")
    for name, weight in one.items():
        factor = 1.0 if any(part in name for part in kept) else 0.1
        torch.testing.assert_close(small[name], factor * weight, msg=name)
    assert {n.split(".")[0] for n in one} == {
        "patch_embedding", "class_token", "positions", "blocks", "norm", "classifier"
    }  # fmt: skip


def test_initial_law_is_pytorchs_default():
    weight = build_model(ViTConfig(num_layers=1)).blocks[0].attn.qkv.weight
    bound = 512**-0.5
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch_size": 3}, "`patch_size` must divide `image_size`; got 3 and 8"),
        ({"num_layers": 0}, "`num_layers` must be at least 1; got 0"),
        ({"width": 8.0}, "`width` must be a whole number; got 8.0"),
        ({"num_heads": True}, "`num_heads` must be a whole number; got True"),
        ({"activation": "swish"}, "`activation` must be 'gelu' or 'relu'; got 'swish'"),
        ({"norm": "rms"}, "`norm` must be one of"),
        ({"init_scale": 0.0}, "`init_scale` must be a positive number; got 0.0"),
        ({"init_scale": float("nan")}, "`init_scale` must be a positive number; got nan"),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        dataclasses.replace(SMALL, **change)
