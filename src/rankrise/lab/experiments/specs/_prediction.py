"""Does advice predict? A small GPT goes from WikiText-2 to the source text of Python's library."""

from dataclasses import replace

from rankrise.lab.data import DataConfig
from rankrise.lab.experiments._experiment import Experiment
from rankrise.lab.experiments._prediction_spec import PredictionSpec
from rankrise.lab.models import GPTConfig

PAPER = PredictionSpec(
    data=DataConfig("text", path="wikitext-2", context=256, tokenizer="gpt2"),
    model=GPTConfig(context=256, num_layers=6, num_heads=6, width=384, mlp_width=1536),
    num_seeds=5,
    pretrain_steps=800,
    tune_steps=300,
    adapter_steps=300,
    rates=(2e-3, 4e-3, 8e-3, 1.6e-2),
    precision="bf16",
)
SMALL = replace(
    PAPER,
    data=DataConfig("text", path="wikitext-2", context=64, tokenizer="bytes", num_train=20_000, num_test=200),
    model=GPTConfig(vocab_size=257, context=64, num_layers=2, num_heads=2, head_dim=32, width=64, mlp_width=256),
    num_seeds=3,
    batch_size=16,
    pretrain_steps=600,
    tune_steps=200,
    adapter_steps=200,
    rank=4,
    rates=(4e-3, 8e-3, 1.6e-2, 3.2e-2),
    blocks=(4_000, 200, 400),
    precision="fp32",
)
SMOKE = replace(
    SMALL,
    data=DataConfig("synthetic_text", context=16, num_classes=257, num_train=64, num_test=8),
    model=GPTConfig(vocab_size=257, context=16, num_layers=2, num_heads=2, head_dim=8, width=16, mlp_width=32),
    num_seeds=3,
    batch_size=8,
    pretrain_steps=10,
    tune_steps=20,
    adapter_steps=20,
    rank=2,
    rates=(1e-2, 1e-1),
    blocks=(64, 8, 16),
)

EXPERIMENTS = (
    Experiment(
        name="lora-prediction",
        title="LoRA with advised ranks, with one rank for all, and AdaLoRA",
        shows="whether ranks advised from a tenth of a fine-tune give a lower loss with as many parameters",
        smoke=SMOKE,
        small=SMALL,
        paper=PAPER,
    ),
)
