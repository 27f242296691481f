"""GPT-2 on WikiText. The paper does not give its recipe; this is a common one."""

from dataclasses import replace

from rankrise.lab.data import DataConfig
from rankrise.lab.experiments._experiment import Experiment
from rankrise.lab.experiments.kinds import TrainingSpec
from rankrise.lab.models import GPTConfig
from rankrise.lab.training import TrainingConfig

WIKITEXT2 = TrainingSpec(
    data=DataConfig("text", path="wikitext-2", context=1024, tokenizer="gpt2"),
    model=GPTConfig(),  # GPT-2 small: 12 layers, 12 heads of 64, width 768
    training=TrainingConfig(
        epochs=20,
        batch_size=32,
        optimiser="adam",
        learning_rate=3e-4,
        betas=(0.9, 0.95),
        warmup_epochs=1,
        precision="bf16",
        clip_norm=1.0,
        track_every=25,
        num_spectra=30,
    ),
)
WIKITEXT103 = replace(
    WIKITEXT2,
    data=replace(WIKITEXT2.data, path="wikitext-103"),
    training=replace(
        WIKITEXT2.training,
        epochs=10,
        batch_size=512,
        accumulate=16,
        learning_rate=6e-4,
        warmup_epochs=0.5,
        track_every=20,
    ),
)
SMALL = TrainingSpec(  # bytes in place of tokens, a network 150 times smaller
    data=DataConfig("text", path="wikitext-2", context=128, tokenizer="bytes", num_train=4_000, num_test=200),
    model=GPTConfig(vocab_size=257, context=128, num_layers=4, num_heads=4, head_dim=32, width=128, mlp_width=512),
    training=TrainingConfig(
        epochs=6,
        batch_size=32,
        learning_rate=1e-3,
        betas=(0.9, 0.95),
        warmup_epochs=0.2,
        clip_norm=1.0,
        track_every=25,
        num_spectra=20,
    ),
)
SMOKE = TrainingSpec(
    data=DataConfig("synthetic_text", context=16, num_classes=32, num_train=64, num_test=16),
    model=GPTConfig(vocab_size=32, context=16, num_layers=2, num_heads=2, head_dim=8, width=16, mlp_width=32),
    training=replace(SMALL.training, epochs=2, batch_size=16, track_every=2, num_spectra=4),
)

EXPERIMENTS = (
    Experiment(
        name="gpt2-wikitext2",
        title="GPT-2 small on WikiText-2, 20 epochs",
        shows="the gradual rise in a language model; 2 million tokens, so it overfits",
        smoke=SMOKE,
        small=SMALL,
        paper=WIKITEXT2,
    ),
    Experiment(
        name="gpt2-wikitext103",
        title="GPT-2 small on WikiText-103, 10 epochs",
        shows="the gradual rise in a language model that does not run out of text",
        smoke=replace(SMOKE, training=replace(SMOKE.training, accumulate=2)),
        small=replace(SMALL, data=replace(SMALL.data, path="wikitext-103")),
        paper=WIKITEXT103,
    ),
)
