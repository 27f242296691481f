"""Models of transformers that are run: loaded from folders, given inputs, and asked for their outputs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise.checkpoints.files import open_checkpoint, show

_NUM_TOKENS = 64


def load_model(folder: Path, config_folder: Path) -> Any:
    """Load a model through transformers in float32, ready for evaluation.

    Args:
        folder: Its weights.
        config_folder: Its config, which names the architecture; that of the base where a tuned model has none.

    Raises:
        ValueError: There is no config with an architecture that transformers knows, or the weights are a lone file.
    """
    config, architecture = find_architecture(config_folder)
    where = str(check_loadable(folder))
    with _quiet():
        model = architecture.from_pretrained(
            where, config=config, dtype=torch.float32, local_files_only=True, use_safetensors=True
        )
    return model.eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the progress bar of transformers while models are loaded."""
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def find_architecture(config_folder: Path) -> tuple[Any, Any]:
    """Return the config and the class that it names."""
    import transformers

    place = config_folder if config_folder.is_dir() else config_folder.parent
    if not (place / "config.json").is_file():
        raise ValueError(
            f"A model that is run needs a config.json beside the base; {show(str(place))} has none. Name a folder with "
            "one, or leave out what runs it."
        )
    try:
        config = transformers.AutoConfig.from_pretrained(str(place), local_files_only=True, trust_remote_code=False)
        name = str((config.architectures or [""])[0])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"A model that is run needs a config.json that transformers can read; {show(str(place))}: "
            f"{show(' '.join(str(error).split())[:300])}. Mend it, or download the model again."
        ) from error
    architecture = getattr(transformers, name, None)
    if not (isinstance(architecture, type) and issubclass(architecture, transformers.PreTrainedModel)):
        raise ValueError(
            f"A model that is run needs an architecture that transformers knows; {show(str(place))} names "
            f"{show(name)!r}."
        )
    return config, architecture


def check_loadable(path: Path) -> Path:
    """The folder that transformers is to load: it holds safetensors, none of which is a link that leads elsewhere."""
    if path.is_file() and path.name != "model.safetensors":
        raise ValueError(
            f"A model that is run must be a folder that transformers can load; {show(str(path))} is a file. Leave out "
            "what runs it."
        )
    folder = path if path.is_dir() else path.parent
    if not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"A model that is run must be stored as safetensors; {show(str(folder))} has none. Save it with "
            "save_pretrained, or leave out what runs it."
        )
    open_checkpoint(folder)
    return folder


def check_tokens(tokens: Sequence[int], config: Any) -> None:
    """Refuse token ids that the model's vocabulary does not have.

    Raises:
        ValueError: No token, or one that is out of range.
    """
    vocabulary = config.get_text_config().vocab_size
    if not tokens or not all(0 <= token < vocabulary for token in tokens):
        raise ValueError(f"`tokens` must be ids from 0 to {vocabulary - 1}, at least one; got {list(tokens)[:8]}.")


def make_inputs(model: Any, tokens: Sequence[int] | None) -> tuple[dict[str, Tensor], str]:
    """Return arguments of a forward, and what they are in words: given or random tokens, random images, or both."""
    generator = torch.Generator().manual_seed(0)
    config = model.config
    if model.main_input_name == "pixel_values":
        return {"pixel_values": _images(config, 4, generator)}, "4 random images"
    if tokens is not None:
        check_tokens(tokens, config)
        ids, words = torch.tensor([list(tokens)]), f"{len(tokens)} given tokens"
    else:
        text = config.get_text_config()
        most = getattr(text, "max_position_embeddings", None) or 2 * _NUM_TOKENS
        length = max(1, min(_NUM_TOKENS, most // 2))  # RoBERTa's positions begin behind that of the padding
        ids, words = torch.randint(text.vocab_size, (2, length), generator=generator), f"2 × {length} random tokens"
    decoder = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
    if _compares_images(config):
        images = _images(config.vision_config, len(ids), generator)
        return {"input_ids": ids, "pixel_values": images}, f"{words} and {len(ids)} random images"
    return {"input_ids": ids, **decoder}, words


def _compares_images(config: Any) -> bool:
    """Return whether a model needs tokens and images, as CLIP; one that writes about images has a token for them."""
    writes = any(hasattr(config, name) for name in ("image_token_id", "image_token_index"))
    has_both = hasattr(config, "text_config") and hasattr(getattr(config, "vision_config", None), "image_size")
    return has_both and not writes


def _images(config: Any, count: int, generator: torch.Generator) -> Tensor:
    size = config.image_size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.randn(count, getattr(config, "num_channels", 3), height, width, generator=generator)


@torch.no_grad()
def run_model(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the logits in float32, or the first output of a model that has none."""
    found = model(**inputs)
    output: Tensor = found.logits if hasattr(found, "logits") else found[0]
    return output.float()
