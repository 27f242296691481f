"""Pairs of checkpoints with a change of known rank, of four architectures, small and made on the spot."""

import torch

from rankrise.checkpoints.lora._models import make_inputs, run_model


def models():
    """Name to a function that builds a tiny model with random weights."""
    import transformers as hf

    def llama(**more):
        return hf.LlamaForCausalLM(
            hf.LlamaConfig(
                hidden_size=96,
                intermediate_size=160,
                num_hidden_layers=2,
                num_attention_heads=6,
                num_key_value_heads=2,
                vocab_size=64,
                max_position_embeddings=32,
                tie_word_embeddings=False,
                **more,
            )
        )

    def gpt2(width=96):
        return hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=width, n_layer=2, n_head=4, vocab_size=64, n_positions=32))

    def wide_gpt2():  # beyond 128, decompositions are randomised
        return gpt2(160)

    def vit():
        return hf.ViTForImageClassification(
            hf.ViTConfig(
                hidden_size=96,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                image_size=16,
                patch_size=8,
                num_labels=5,
            )
        )

    def bert():
        return hf.BertForSequenceClassification(
            hf.BertConfig(
                hidden_size=96,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                vocab_size=64,
                max_position_embeddings=32,
                num_labels=3,
            )
        )

    def gpt2_classifier():
        sizes = {"n_embd": 96, "n_layer": 1, "n_head": 4, "vocab_size": 64, "n_positions": 32}
        config = hf.GPT2Config(**sizes, num_labels=40, pad_token_id=0)
        return hf.GPT2ForSequenceClassification(config)

    def t5():
        sizes = {"d_model": 96, "d_kv": 24, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 64}
        return hf.T5ForConditionalGeneration(hf.T5Config(**sizes, decoder_start_token_id=0))

    return {
        "t5": t5,
        "llama": llama,
        "gpt2": gpt2,
        "wide_gpt2": wide_gpt2,
        "vit": vit,
        "bert": bert,
        "gpt2_classifier": gpt2_classifier,
    }


def build(name, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return models()[name]().eval()


def plant(weight, rank, size, generator):
    """`weight` plus a change of that rank, flat spectrum, with ‖Δ‖_F = size · ‖W‖_F."""
    m, n = weight.shape
    left, right = (torch.linalg.qr(torch.randn(k, rank, generator=generator)).Q for k in (m, n))
    change = left @ right.mT
    return weight + change * (size * weight.norm() / change.norm())


def adaptable(model):
    """Names of the weights of Linear and Conv1D layers."""
    return [f"{name}.weight" for name, module in model.named_modules() if type(module).__name__ in ("Linear", "Conv1D")]


def planted_pair(folder, name, *, rank=4, size=0.05, dtype=torch.float32, skip=()):
    """Save a base and a tuned model below `folder`; returns folders, models, and the names of what was planted."""
    model, tuned = build(name), build(name)
    generator = torch.Generator().manual_seed(1)
    tied = model.config.tie_word_embeddings if name != "vit" else False
    names = [n for n in adaptable(model) if not any(s in n for s in skip) and not (tied and n.startswith("lm_head"))]
    with torch.no_grad():
        for parameter in names:
            weight = tuned.get_parameter(parameter)
            weight.copy_(plant(weight, min(rank, min(weight.shape) // 2), size, generator))
    model, tuned = model.to(dtype), tuned.to(dtype)
    model.save_pretrained(folder / "base")
    tuned.save_pretrained(folder / "tuned")
    return folder / "base", folder / "tuned", model, tuned, names


def model_inputs(model):
    """The same random tokens or images in every call."""
    return make_inputs(model, None)[0]


def adapter_logits(model, folder):
    """Of `model` with the adapter in `folder`, as PEFT itself loads it."""
    import peft

    return run_model(peft.PeftModel.from_pretrained(model, str(folder)).eval(), model_inputs(model))


def brute_circuit(base, tuned, layer, head, circuit):
    """Change and base of one head's circuit in a model of `files`, formed whole in float64."""
    q, k, v, o = (f"model.layers.{layer}.self_attn.{r}_proj.weight" for r in "qkvo")

    def product(state):
        s = {n: state[n].double() for n in (q, k, v, o)}
        h, g = slice(4 * head, 4 * head + 4), slice(4 * (head // 2), 4 * (head // 2) + 4)
        return s[k][g].T @ s[q][h] if circuit == "kq" else s[v][g].T @ s[o][:, h].T

    return product(tuned) - product(base), product(base)
