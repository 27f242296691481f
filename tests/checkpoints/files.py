"""Checkpoints on disk for the tests: sound ones, and bytes that only look like one."""

import json
import struct
from pathlib import Path

import torch
from safetensors.torch import save_file

MODEL = {
    "model.embed_tokens.weight": (40, 16),
    **{
        f"model.layers.{n}.{name}.weight": shape
        for n in range(2)
        for name, shape in {
            "self_attn.q_proj": (16, 16),
            "self_attn.k_proj": (8, 16),
            "self_attn.v_proj": (8, 16),
            "self_attn.o_proj": (16, 16),
            "mlp.up_proj": (24, 16),
            "mlp.down_proj": (16, 24),
            "input_layernorm": (16,),
        }.items()
    },
    "model.norm.weight": (16,),
    "lm_head.weight": (40, 16),
}
CONFIG = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}


def weights(seed=0, shapes=None):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(*shape, generator=generator) for name, shape in (shapes or MODEL).items()}


def tuned(base, seed=1, rank=2, size=0.01):
    """Every matrix changed by `rank` directions, vectors not at all."""
    generator = torch.Generator().manual_seed(seed)
    changed = {}
    for name, weight in base.items():
        changed[name] = weight.clone()
        if weight.ndim == 2:
            left, right = (torch.randn(n, rank, generator=generator) for n in weight.shape)
            change = left @ right.T
            changed[name] += size * weight.norm() / change.norm() * change
    return changed


def save(folder: Path, state, config=CONFIG, name="model.safetensors"):
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: t.contiguous() for k, t in state.items()}, folder / name, {"format": "pt"})
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def save_shards(folder: Path, state, num=3, config=CONFIG):
    folder.mkdir(parents=True, exist_ok=True)
    names, weight_map = list(state), {}
    for i in range(num):
        part = f"model-{i + 1:05d}-of-{num:05d}.safetensors"
        save_file({k: state[k].contiguous() for k in names[i::num]}, folder / part)
        weight_map |= dict.fromkeys(names[i::num], part)
    total = sum(t.numel() * t.element_size() for t in state.values())
    write_index(folder, weight_map, total)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_index(folder: Path, weight_map, total=0):
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)


def save_peft(folder: Path, modules, *, rank=2, alpha=4, seed=0, dtype=torch.float32, **options):
    """A PEFT adapter: `modules` maps a module's full name to (out, in)."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, (outputs, inputs) in modules.items():
        state[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator).to(dtype)
        state[f"base_model.model.{name}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator).to(dtype)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, **options}
    save(folder, state, None, "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return state


def save_mlx(folder: Path, modules, *, rank=2, scale=10.0, seed=0, name="adapters.safetensors"):
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for module, (outputs, inputs) in modules.items():
        state[f"{module}.lora_a"] = torch.randn(inputs, rank, generator=generator)
        state[f"{module}.lora_b"] = torch.randn(rank, outputs, generator=generator)
    save(folder, state, None, name)
    config = {"fine_tune_type": "lora", "lora_parameters": {"rank": rank, "alpha": 16, "scale": scale}}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return state


def raw(path: Path, header, data=b"", length=None):
    """A safetensors file with a header of one's own."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path
