"""The number of heads on disk is that of the part of the model the weights lie in, or a note says where it is from."""

import pytest
import torch

from rankrise.heads import resolve
from rankrise.heads._configs import configs_at

CLIP = {"model_type": "clip", "text_config": {"num_attention_heads": 2}, "vision_config": {"num_attention_heads": 4}}
QWEN_VL = {"text_config": {"num_attention_heads": 2, "num_key_value_heads": 1}, "vision_config": {"num_heads": 4}}
OLD_QWEN_VL = {"num_attention_heads": 2, "vision_config": {"num_heads": 4}}
BART = {"encoder_attention_heads": 2, "decoder_attention_heads": 4}
FLORENCE = {"text_config": BART, "vision_config": {"num_heads": [2, 4]}}
OMNI = {"thinker_config": {"audio_config": {"encoder_attention_heads": 8}, **QWEN_VL},
        "talker_config": {"num_attention_heads": 16}}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "path", "heads", "noted"),
    [
        (CLIP, "vision_model.encoder.layers.0.self_attn", 4, False),
        (CLIP, "text_model.encoder.layers.0.self_attn", 2, False),
        (QWEN_VL, "visual.blocks.0.attn", 4, False),
        (QWEN_VL, "model.language_model.layers.0.self_attn", 2, False),
        (QWEN_VL, "model.layers.0.self_attn", 2, True),
        (OLD_QWEN_VL, "visual.blocks.0.attn", 4, False),
        (OLD_QWEN_VL, "model.layers.0.self_attn", 2, False),
        (BART, "model.encoder.layers.0.self_attn", 2, False),
        (BART, "model.decoder.layers.0.encoder_attn", 4, False),
        (BART | {"num_attention_heads": 2}, "decoder.layers.0.self_attn", 4, False),
        (BART, "layers.0.self_attn", None, False),
        ({"encoder_attention_heads": 8, "decoder_attention_heads": 8}, "layers.0.self_attn", 8, False),
        ({"num_encoder_attention_heads": 2, "num_decoder_attention_heads": 4}, "decoder.layers.0", 4, False),
        ({"encoder": {"num_attention_heads": 2}, "decoder": {"n_head": 4}}, "decoder.transformer.h.0.attn", 4, False),
        (FLORENCE, "language_model.model.decoder.layers.0.self_attn", 4, False),
        (FLORENCE, "vision_tower.blocks.1.0.attn", 4, True),
        ({"num_heads": [2, 4]}, "swin.encoder.layers.1.blocks.0.attention", 4, True),
        ({"num_heads": [2, 4]}, "swin.encoder.layers.2.blocks.0.attention", None, False),
        ({"num_heads": [2, "x"]}, "layers.0", None, False),
        (OMNI, "thinker.audio_tower.layers.0.self_attn", 8, False),
        (OMNI, "thinker.visual.blocks.0.attn", 4, False),
        (OMNI, "thinker.model.layers.0.self_attn", 2, True),
        (OMNI, "talker.model.layers.0.self_attn", 16, False),
        ({"text_config": {}, "vision_config": {"attention_heads": 4}}, "vision_model.layers.0", 4, False),
        ({"mask_decoder_config": {"num_heads": 2}, "vision_config": {"num_heads": 4}}, "mask_decoder.0", 2, False),
        ({"a_config": {"num_heads": 2}, "b_config": {"num_heads": 4}}, "layers.0", None, False),
        ({"text_config": {"num_heads": 2}, "vision_config": {"hidden_size": 8}}, "vision_tower.0", None, False),
        (
            {"n_heads": 4, "attn_config": {"clip_qkv": 8}, "ffn_config": {"x": 1}},
            "blocks.0.attn",
            4,
            False,
        ),  # MPT, DBRX
        ({"text_config": 3, "vision_config": [], "num_heads": 2}, "vision_tower.0", 2, False),
    ],
)
def test_the_part_that_the_path_names(config, path, heads, noted):
    first = next(configs_at(config, path), {})
    found = next(
        (first[key] for key in ("num_heads", "num_attention_heads", "n_head", "n_heads") if first.get(key)), None
    )
    assert found == heads
    assert bool(getattr(first, "note", None)) == noted


def test_a_tower_of_another_number_of_heads_is_cut_by_its_own_config():
    shape = {"q": (16, 16), "k": (16, 16), "v": (16, 16), "out": (16, 16)}
    state = {
        f"{tower}_model.encoder.layers.0.self_attn.{role}_proj.weight": torch.empty(size, device="meta")
        for tower in ("text", "vision")
        for role, size in shape.items()
    }
    found = resolve(state, config=CLIP)
    assert {layer.name.split("_")[0]: layer.num_heads for layer in found} == {"text": 2, "vision": 4}
    assert not any("heads:" in note for note in found.notes)
    assert {layer.num_heads for layer in resolve(state, config=CLIP, num_heads=8)} == {8}
    unnamed = {name.replace("text_model.encoder", "model"): tensor for name, tensor in state.items()}
    note = "heads: the number of heads is read from 'text_config', which the names of the weights do not say"
    assert [layer.doubt for layer in resolve(unnamed, config=CLIP)] == [note, None]
    assert note in resolve(unnamed, config=CLIP).notes
