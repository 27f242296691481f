"""An adapter read back: its product against the change it stands for, and its logits against the tuned model's."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise._extras import require
from rankrise.checkpoints.delta import Delta
from rankrise.checkpoints.files import PeftSettings, find_inside, open_safetensors
from rankrise.checkpoints.lora._peft_writer import CONFIG, MODEL, PREFIX
from rankrise.checkpoints.match import Module

_NUM_TOKENS = 64


@dataclass(frozen=True)
class LogitsCheck:
    """Outputs of base + adapter against the tuned model, on the same inputs."""

    inputs: str  # what went in, in words
    max_difference: float  # between base + adapter and tuned
    relative_error: float  # ‖adapter − tuned‖ / ‖base − tuned‖
    agreement: float  # share of positions with the same largest output
    base_agreement: float  # the same of the base, to compare


def verify_factors(folder: Path, deltas: Mapping[str, tuple[Callable[[], Delta], Module]]) -> dict[str, float]:
    """`‖Δ − (alpha / r) B A‖_F / ‖Δ‖_F` of every module, with A, B, alpha and r as PEFT will read them.

    Args:
        folder: The adapter.
        deltas: For each module how to read its change once more; one is held at a time.

    Raises:
        ValueError: A module is missing from the file, or has a rank or scale that was not meant.
    """
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    ranks, alphas = PeftSettings(config, "rank"), PeftSettings(config, "alpha")
    file = open_safetensors(find_inside(folder, MODEL))
    errors = {}
    for name, (delta, module) in deltas.items():
        a, b = (file.read(f"{PREFIX}{name}.lora_{letter}.weight").to(torch.float32) for letter in "AB")
        rank, alpha = ranks.of(name), alphas.of(name)
        if rank != a.shape[0] or alpha != rank:
            raise ValueError(f"The adapter of {name!r} must have rank and alpha {a.shape[0]}; got {rank} and {alpha}.")
        left, right = (a.mT, b.mT) if module.is_transposed else (b, a)
        rest, total, begin = 0.0, 0.0, 0
        for block in delta().blocks():
            rows = left[begin : begin + len(block)].to(block)
            rest += _squares(torch.addmm(block, rows, right.to(block), alpha=-1))
            total += _squares(block)
            begin += len(block)
        errors[name] = math.sqrt(rest / total)
    return errors


def require_transformers() -> None:
    """Refuse early what would fail late.

    Raises:
        ImportError: transformers or peft is not installed.
    """
    require("`verify`", "transformers", "peft", otherwise="or leave it out: the factors are checked without")


def require_modules(base: Path, names: Iterable[str]) -> None:
    """Refuse an adapter that PEFT would leave out in silence: a module that the model in memory has not.

    Raises:
        ValueError: transformers renames the weights of this architecture in a way that is not known here.
    """
    config, architecture = _architecture(base)
    with torch.device("meta"):
        known = dict(architecture(config).named_modules())
    if missing := [name for name in names if name not in known]:
        raise ValueError(
            f"Modules must be named as they are in memory; {architecture.__name__} of this transformers has no "
            f"{missing[0]!r}. It renames weights on loading: save the state dicts of both loaded models and use these."
        )


def check_verifiable(
    base: Path, tuned: Path, tokens: Sequence[int] | None = None, *, reshaped: Sequence[str] = ()
) -> None:
    """Refuse what `compare_logits` would refuse after all the work.

    Args:
        base: As for `compare_logits`.
        tuned: Likewise.
        tokens: Likewise.
        reshaped: Weights that have other rows in the tuned model, in words.

    Raises:
        ValueError: No config, an architecture that transformers has not or that takes neither tokens nor images, a lone
            file, a weight with other rows, tokens out of range.
    """
    config, architecture = _architecture(base)
    if reshaped:
        raise ValueError(f"`verify` needs models of one size; got {reshaped[0]}. Leave `verify` out.")
    takes = architecture.main_input_name
    if takes not in ("input_ids", "pixel_values") or (config.is_encoder_decoder and takes != "input_ids"):
        raise ValueError(
            f"`verify` needs a model of tokens or of images; {architecture.__name__} takes {takes}. Leave `verify` out."
        )
    for path in (base, tuned):
        _loadable(path)
    if tokens is not None and takes == "input_ids":
        _check_tokens(tokens, config)


def compare_logits(base: Path, tuned: Path, adapter: Path, tokens: Sequence[int] | None = None) -> LogitsCheck:
    """Outputs of base + adapter and of the tuned model in float32, on given or random input.

    Args:
        base: A folder that transformers can load.
        tuned: Likewise; its config may be missing.
        adapter: What `extract_lora` wrote.
        tokens: One sequence of token ids; random ones if None. Images are random.

    Raises:
        ImportError: transformers or peft is not installed.
        ValueError: The base has no config with an architecture that transformers knows; a token out of range.
    """
    require_transformers()
    import peft

    model = _load(base, base)
    inputs, words = _inputs(model, tokens)
    of_base = _outputs(model, inputs)
    adapted = peft.PeftModel.from_pretrained(model, str(adapter), is_trainable=False).eval()
    of_adapter = _outputs(adapted, inputs)
    del model, adapted
    of_tuned = _outputs(_load(tuned, base), inputs)
    scale = float((of_base - of_tuned).norm())
    best = of_tuned.argmax(-1)
    return LogitsCheck(
        inputs=words,
        max_difference=float((of_adapter - of_tuned).abs().max()),
        relative_error=float((of_adapter - of_tuned).norm()) / scale if scale else 0.0,
        agreement=float((of_adapter.argmax(-1) == best).float().mean()),
        base_agreement=float((of_base.argmax(-1) == best).float().mean()),
    )


def _load(folder: Path, config_folder: Path) -> Any:
    config, architecture = _architecture(config_folder)
    where = str(_loadable(folder))
    with _quiet():
        model = architecture.from_pretrained(where, config=config, dtype=torch.float32, local_files_only=True)
    return model.eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bar of transformers."""
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _architecture(config_folder: Path) -> tuple[Any, Any]:
    """The config and the class that it names."""
    import transformers

    place = config_folder if config_folder.is_dir() else config_folder.parent
    if not (place / "config.json").is_file():
        raise ValueError(f"`verify` needs a config.json beside the base; {place} has none. Leave `verify` out.")
    config = transformers.AutoConfig.from_pretrained(str(place), local_files_only=True)
    name = (config.architectures or [""])[0]
    architecture = getattr(transformers, name, None)
    if architecture is None:
        raise ValueError(f"`verify` needs an architecture that transformers knows; {place} names {name!r}.")
    return config, architecture


def _loadable(path: Path) -> Path:
    if path.is_file() and path.name != "model.safetensors":
        raise ValueError(f"`verify` needs folders that transformers can load; {path} is a file. Leave `verify` out.")
    return path if path.is_dir() else path.parent


def _check_tokens(tokens: Sequence[int], config: Any) -> None:
    vocabulary = config.get_text_config().vocab_size
    if not tokens or not all(0 <= token < vocabulary for token in tokens):
        raise ValueError(f"`tokens` must be ids from 0 to {vocabulary - 1}, at least one; got {list(tokens)[:8]}.")


def _inputs(model: Any, tokens: Sequence[int] | None) -> tuple[dict[str, Tensor], str]:
    generator = torch.Generator().manual_seed(0)
    config = model.config
    if model.main_input_name == "pixel_values":
        size = config.image_size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        shape = (4, getattr(config, "num_channels", 3), height, width)
        return {"pixel_values": torch.randn(shape, generator=generator)}, "4 random images"
    if tokens is not None:
        _check_tokens(tokens, config)
        ids, words = torch.tensor([list(tokens)]), f"{len(tokens)} given tokens"
    else:
        text = config.get_text_config()
        length = min(_NUM_TOKENS, getattr(text, "max_position_embeddings", _NUM_TOKENS))
        ids, words = torch.randint(text.vocab_size, (2, length), generator=generator), f"2 × {length} random tokens"
    decoder = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
    return {"input_ids": ids, **decoder}, words


@torch.no_grad()
def _outputs(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    found = model(**inputs)
    output: Tensor = found.logits if hasattr(found, "logits") else found[0]
    return output.float()


def _squares(block: Tensor) -> float:
    return float(torch.linalg.vector_norm(block, dtype=torch.float64)) ** 2
