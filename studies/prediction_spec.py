"""Does advice predict? The study as a value: advised LoRA ranks against one rank for all and against AdaLoRA.

At scale `paper` a small GPT goes from WikiText-2 to the source text of Python's library.
"""

import json
import math
import operator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from rankrise.lab.data import DataConfig
from rankrise.lab.models import GPTConfig

Method: TypeAlias = Literal["advised", "uniform", "adalora"]
Precision: TypeAlias = Literal["fp32", "tf32", "bf16"]
METHODS: tuple[Method, ...] = get_args(Method)
_COUNTS = ("num_seeds", "batch_size", "pretrain_steps", "tune_steps", "adapter_steps", "rank")


@dataclass(frozen=True, kw_only=True)
class PredictionSpec:
    """A language model, tuned to another text in four ways.

    A repetition k has its own network, order of data and adapters. Repetition 0 chooses the learning rate of every
    method, by validation loss; 1 … `num_seeds` are reported, by test loss.

    Args:
        data: Text of the first training. Its encoding and its context are those of Python's library too.
        model: The network.
        num_seeds: Repetitions that are reported.
        batch_size: Blocks of a step, everywhere.
        pretrain_steps: Number of steps of the first training.
        pretrain_rate: Learning rate of the first training.
        tune_steps: Number of steps of the full fine-tune.
        tune_rate: Learning rate of the full fine-tune.
        advice_share: Part of the fine-tune after which ranks are advised.
        adapter_steps: Number of steps of the training of every adapter.
        rank: Rank of the uniform adapter, whose parameters are the budget; AdaLoRA's mean rank at the end.
        rates: Learning rates that every method tries, rising; if the best is the first or the last, others follow.
        blocks: The most training, validation and test blocks of Python's library.
        precision: Number format of all training.
        seed: Seed of everything random.

    Raises:
        ValueError: A number is not as above.

    >>> spec = PredictionSpec(data=DataConfig("synthetic_text"), model=GPTConfig(num_layers=1))
    >>> spec.repetition_seed(2)
    2
    """

    data: DataConfig
    model: GPTConfig
    num_seeds: int = 3
    batch_size: int = 32
    pretrain_steps: int = 1000
    pretrain_rate: float = 1e-3
    tune_steps: int = 400
    tune_rate: float = 3e-4
    advice_share: float = 0.1
    adapter_steps: int = 400
    rank: int = 8
    rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3)
    blocks: tuple[int, int, int] = (100_000, 256, 1024)
    precision: Precision = "fp32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in _COUNTS:
            object.__setattr__(self, name, _count(name, getattr(self, name), least=1, most=10**9))
        object.__setattr__(self, "seed", _count("seed", self.seed, least=0, most=2**40))
        for name in ("rates", "blocks"):  # as JSON gives them
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for rate in (self.pretrain_rate, self.tune_rate, *self.rates):
            if not 0 < rate < math.inf:
                raise ValueError(f"A learning rate must be positive and finite; got {rate!r}. Pass one like 1e-3.")
        if len(self.rates) < 2 or any(a >= b for a, b in zip(self.rates, self.rates[1:], strict=False)):
            raise ValueError(f"`rates` must be two or more that rise; got {self.rates!r}. Sort them.")
        if not 0 < self.advice_share <= 1:
            raise ValueError(f"`advice_share` must lie in (0, 1]; got {self.advice_share!r}. A tenth is usual.")
        if self.data.seed:
            raise ValueError(f"`data.seed` must be left at 0 in a spec; got {self.data.seed}. Set the spec's `seed`.")

    @property
    def advice_step(self) -> int:
        """Steps of the fine-tune that the advice may see."""
        return max(1, round(self.advice_share * self.tune_steps))

    def repetition_seed(self, repetition: int) -> int:
        """Seed of one repetition; those of two runs differ."""
        return self.seed * 1000 + repetition

    def to_json(self) -> dict[str, Any]:
        """The spec in full, as JSON values: what `spec.json` of a run holds."""
        record: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return record


def _count(name: str, value: Any, *, least: int, most: int) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise ValueError(f"`{name}` must be a whole number; got {value!r}.") from None
    if isinstance(value, bool) or not least <= count <= most:
        raise ValueError(f"`{name}` must be a whole number, at least {least} and at most {most}; got {value!r}.")
    return count


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
SCALES = {"smoke": SMOKE, "small": SMALL, "paper": PAPER}
