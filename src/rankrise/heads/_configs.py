"""Which part of a nested config describes the attention at a path: that of a tower, of the encoder, of the decoder.

A `config.json` of a model with several parts keeps a config for each (`vision_config`, `text_config`, `encoder`), or
one number of heads for each side (`encoder_attention_heads`). The path of the weights names the part. Where it does
not, the number of heads is taken only from a config that is likely, and a note says from which one.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_PARTS = ("encoder", "decoder", "text_encoder", "audio_encoder", "question_encoder", "generator")  # without `_config`
_NO_PARTS = ("quantization_config", "generation_config", "compression_config", "attn_config", "ffn_config")
# Words of a path that mean the same part as a word of a config's name.
_SAME = {"visual": "vision", "image": "vision", "vit": "vision", "language": "text", "lm": "text", "llm": "text",
         "speech": "audio", "pixel": "backbone"}  # fmt: skip
_SIDE = re.compile(r"(?:num_)?(encoder|decoder)_(?:num_)?(attention_heads|key_value_heads)")
_HEADS = ("num_heads", "num_attention_heads", "attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head")


class PartConfig(dict[str, Any]):
    """The config of the part that a path lies in.

    `note` says where its number of heads does not come from the config that the path names; None where it does.
    """

    note: str | None = None


def configs_at(config: Any, path: str, num_heads: int | None = None) -> Iterator[Any]:
    """Return what a config says about the attention at `path`: its part first, then the kinds of what contains it.

    A config without parts, sides and lists is returned as it is. Of the configs that contain a part only the model type
    is handed on, because their numbers of heads belong to other parts.

    Args:
        config: A mapping or an object, as `config.json` or transformers have it.
        path: The module that holds the weights, without wrappers.
        num_heads: Query heads of every layer, where the caller states them; it goes before every config.

    >>> clip = {"text_config": {"num_attention_heads": 8}, "vision_config": {"num_attention_heads": 12}}
    >>> next(configs_at(clip, "vision_model.encoder.layers.0.self_attn"))["num_attention_heads"]
    12
    >>> bart = {"encoder_attention_heads": 4, "decoder_attention_heads": 8}
    >>> next(configs_at(bart, "model.decoder.layers.0.encoder_attn"))["num_attention_heads"]
    8
    """
    whole = _plain(config)
    stated = {} if num_heads is None else {"num_heads": num_heads}
    place, segments, note = _find_part(whole, path, is_stated=bool(stated))
    values: Mapping[str, Any] = whole
    kinds: list[dict[str, Any]] = []
    for key in place:
        kinds.insert(0, {"model_type": values.get("model_type")})
        values = values[key]
    if note is None or place:
        sided, listed = _of_side(values, segments), _of_list(values, segments)
        renamed = _renamed(values)
        if not (place or sided or listed or renamed or stated):
            yield config
            return
        part = PartConfig({**values, **renamed, **listed, **sided, **stated})
        if any(listed.values()) and note is None:
            where = ".".join(place) or "the config"
            note = (
                f"heads: the number of heads of {path!r} is the entry of a list in {where} for the name's first number"
            )
        part.note = None if stated else note
        yield part
    yield from kinds


def _find_part(whole: Mapping[str, Any], path: str, *, is_stated: bool) -> tuple[list[str], list[str], str | None]:
    """Return the keys that lead to the part a path lies in, what is left of the path, and a note where it is a guess.

    No key with a note means that no part is likely.
    """
    place: list[str] = []
    values, segments, note = whole, path.split(".") if path else [], None
    while parts := _parts(values):
        found = _named(parts, segments)
        if found is not None:
            key, segments = found
        elif is_stated or any(_is_count(values.get(k)) for k in _HEADS) or any(_of_side(values, segments).values()):
            break
        else:
            likely = _likely(parts)
            said = ".".join([*place, likely or ""])
            note = f"heads: the number of heads is read from {said!r}, which the names of the weights do not say"
            if likely is None:
                return [], segments, note
            key = likely
        place.append(key)
        values = parts[key]
    return place, segments, note


def _plain(config: Any) -> Mapping[str, Any]:
    """Return the entries of a config, whether it is a mapping or an object."""
    if isinstance(config, Mapping):
        return config
    to_dict = getattr(config, "to_dict", None)
    found = to_dict() if callable(to_dict) else getattr(config, "__dict__", {})
    return found if isinstance(found, Mapping) else {}


def _parts(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {
        key: value
        for key, value in config.items()
        if isinstance(key, str)
        and isinstance(value, Mapping)
        and value
        and (key in _PARTS or (key.endswith("_config") and key not in _NO_PARTS))
    }


def _named(parts: Mapping[str, Any], segments: list[str]) -> tuple[str, list[str]] | None:
    """Return the part that the first telling segment of a path names, and the segments after it."""
    for number, segment in enumerate(segments):
        words = _words(segment)
        named = [key for key in parts if _words(key.removesuffix("_config")) <= words]
        if named:
            return max(named, key=lambda key: len(_words(key))), segments[number + 1 :]
    return None


def _words(name: str) -> set[str]:
    return {_SAME.get(word, word) for word in name.lower().split("_")}


def _likely(parts: Mapping[str, Any]) -> str | None:
    """Return the part that unnamed layers belong to: the text model's, or the only one there is."""
    text = [key for key in parts if "text" in _words(key) and key not in _PARTS]
    several = text or list(parts)
    return several[0] if len(several) == 1 else None


def _of_side(values: Mapping[str, Any], segments: list[str]) -> dict[str, Any]:
    """Return the counts of the side, encoder or decoder, that a path names; of the only side where there is one."""
    sides: dict[str, dict[str, int]] = {}
    for key, value in values.items():
        if isinstance(key, str) and (match := _SIDE.fullmatch(key)) and _is_count(value):
            sides.setdefault(match[1], {})[f"num_{match[2]}"] = value
    sides = {side: counts for side, counts in sides.items() if "num_attention_heads" in counts}
    named = next((side for segment in segments for side in sides if side in segment.split("_")), None)
    if named is None and len({tuple(counts.items()) for counts in sides.values()}) == 1:
        named = next(iter(sides))  # one side, or two with the same counts
    if named is None:
        return {key: None for key in _HEADS if key in values} if sides else {}
    return dict.fromkeys((key for key in (*_HEADS, *_KV_HEADS) if key in values), None) | sides[named]


def _of_list(values: Mapping[str, Any], segments: list[str]) -> dict[str, Any]:
    """Return the counts of one stage or layer, by the first number of a path, where a config lists them."""
    number = next((int(segment) for segment in segments if segment.isdecimal() and len(segment) < 7), None)
    found = {}
    for key in (*_HEADS, *_KV_HEADS):
        several = values.get(key)
        if isinstance(several, list | tuple):
            fits = number is not None and number < len(several) and all(map(_is_count, several))
            found[key] = several[number] if fits and number is not None else None
    several, sizes = values.get("num_attention_heads_per_stage"), values.get("blocks_per_stage")
    if isinstance(several, list | tuple) and isinstance(sizes, list | tuple) and number is not None:  # SAM 2's tower
        of_block = [heads for heads, size in zip(several, sizes, strict=False) if _is_count(size) for _ in range(size)]
        found["num_attention_heads"] = of_block[number] if number < len(of_block) else None
    return found


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the count of a config that calls it `attention_heads` (Mllama's vision tower)."""
    stated = values.get("attention_heads")
    return {"num_attention_heads": stated} if _is_count(stated) and "num_attention_heads" not in values else {}


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0
