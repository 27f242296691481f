"""`resolve`: from a module or a state dict to its attention layers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from rankrise.heads._cuts import cut_into_heads, stated_counts
from rankrise.heads._families import LAYOUTS
from rankrise.heads._inventory import Inventory, common_path, lookup, natural_order, take_inventory
from rankrise.heads._layout import ROLES, Layout
from rankrise.heads._modifiers import fold, norm_before, updates_on
from rankrise.heads._notes import (
    is_not_softmax,
    layer_notes,
    left_out_note,
    leftover_note,
    shared_note,
    skipped_note,
)
from rankrise.heads._refusals import no_softmax, not_understood, refuse_experts, refuse_other_orders, refuse_quantised
from rankrise.heads._views import AttentionLayer, HeadMap, WeightView


def resolve(
    source: nn.Module | Mapping[str, Tensor],
    heads: Layout | Sequence[Layout] | None = None,
    *,
    num_heads: int | None = None,
    config: Any = None,
    fold_norm: bool = False,
    strict: bool = False,
) -> HeadMap:
    """Find W_K, W_Q, W_V, W_O of every attention layer.

    Only names, shapes, classes and attributes are looked at, never a value. A module on the meta device therefore
    suffices, and the recipes found on it read the loaded module. `_orig_mod.` and `module.` are stripped and noted.

    Args:
        source: A module, or a state dict with the names that the model has in memory or on disk. A state dict needs
            `num_heads` or `config`.
        heads: Your own layout, or several, used instead of the table.
        num_heads: Query heads of every layer. None: found in the modules or their configs.
        config: A mapping or object such as a model's config.json, asked before the modules: `num_attention_heads`,
            `num_key_value_heads`, `head_dim`, also of a part of the model under `vision_config` and the like;
            `lora_alpha` for a state dict with LoRA pairs; `norm_first` for a state
            dict of torch's own layers, if the norm is to be found.
        fold_norm: Fold gain and centring of the norm before attention into W_K, W_Q and W_V; see `NormGain`.
        strict: Refuse a model that has one attention layer which cannot be read. Otherwise that layer is skipped, and a
            note names it with the reason.

    Returns:
        The layers in the natural order of their names.

    Raises:
        ValueError: If nothing is understood, attention is quantised or a mixture of experts, shapes do not fit, or the
            number of heads is not known.

    >>> from torch import nn
    >>> model = nn.Module()
    >>> model.query, model.key, model.value, model.out = (nn.Linear(8, 8) for _ in range(4))
    >>> layer = resolve(model, num_heads=2).layers[0]
    >>> layer.roles["q"].parameter, layer.head_dim
    ('query.weight', 4)
    >>> layer.notes
    ('biases: projections have biases, which no product contains',)
    """
    if num_heads is not None and (type(num_heads) is not int or num_heads < 1):
        raise ValueError(f"`num_heads` must be a positive integer; got {num_heads!r}.")
    inventory = take_inventory(source, config, num_heads)
    refuse_quantised(inventory)
    layouts = _layouts(heads)
    if heads is None:
        refuse_experts(inventory)
    matched = _match(inventory, layouts)
    if not matched:
        raise not_understood(inventory)
    kept, aliases = _without_aliases(inventory, matched)
    kept.sort(key=lambda match: natural_order(match[0]))
    left_out = [path for path, *_ in kept if heads is None and is_not_softmax(inventory, path)]
    layers: list[AttentionLayer] = []
    refusals: dict[str, ValueError] = {}
    for path, layout, names in kept:
        if path not in left_out:
            try:
                cut = _cut(inventory, path, layout, names)
            except ValueError as refusal:
                refusals[path] = refusal
                continue
            layers.append(_layer(inventory, len(layers), path, layout, names, cut, fold_norm))
    if refusals and (strict or not layers):
        raise next(iter(refusals.values()))
    if not layers:
        raise no_softmax(inventory, left_out)
    notes = (
        *inventory.notes,
        *aliases,
        *shared_note(inventory, _read(kept)),
        *left_out_note(left_out),
        *skipped_note(refusals),
        *leftover_note(inventory, _read(matched)),
        *(note for layer in layers for note in layer.notes),
    )
    return HeadMap(
        layers=tuple(layers),
        scheme=", ".join(dict.fromkeys(layout.name for _, layout, _ in matched)),
        notes=tuple(dict.fromkeys(notes)),
    )


_Match = tuple[str, Layout, dict[str, str]]


def _match(inventory: Inventory, layouts: Sequence[Layout]) -> list[_Match]:
    """Return the matches; the first layout that has all four weights of a layer gets them."""
    matched: list[_Match] = []
    claimed: set[str] = set()
    for layout in layouts:
        for names in layout.find(inventory.tensors):
            weights = {names[role] for role in ROLES}
            path = common_path(weights)
            if not weights & claimed and _allows(inventory, layout, path):
                claimed |= weights
                matched.append((path, layout, names))
    return matched


def _allows(inventory: Inventory, layout: Layout, path: str) -> bool:
    if layout.types is None:
        return True
    types = (lookup(witness, "model_type") for witness in inventory.witnesses(path))
    return any(isinstance(kind, str) and re.fullmatch(layout.types, kind) for kind in types)


def _without_aliases(inventory: Inventory, matched: Sequence[_Match]) -> tuple[list[_Match], tuple[str, ...]]:
    """Leave out a module that was met before under another word, such as a model beside its compiled form.

    A module that was met before under another number is a layer that is used again, so it stays.
    """
    kept: list[_Match] = []
    left: list[tuple[str, str]] = []
    first: dict[int, str] = {}
    for match in matched:
        path, modules = match[0], inventory.modules.get(match[0], ())
        before = first.setdefault(id(modules[-1]), path) if modules else path
        if _word(before) == _word(path):
            kept.append(match)
        else:
            left.append((path, before))
    if not left:
        return kept, ()
    path, before = left[0]
    return kept, (f"alias: {len(left)} modules have a second name and are read once, such as {path!r} as {before!r}",)


def _read(matched: Sequence[_Match]) -> list[str]:
    return [name for _, _, names in matched for name in names.values()]


def _word(path: str) -> str:
    return re.sub(r"\d+", "#", path)


_Cut = tuple[dict[str, WeightView], tuple[str, ...], str | None]  # views, notes, and where the counts are doubtful


def _cut(inventory: Inventory, path: str, layout: Layout, names: dict[str, str]) -> _Cut:
    if layout in LAYOUTS:
        refuse_other_orders(inventory, path)
    stated = {"num_heads": layout.num_heads, "num_kv_heads": layout.num_kv_heads}
    counts = stated_counts((stated, *inventory.witnesses(path)), layout, path)
    return *cut_into_heads(inventory, layout, names, counts), counts.note


def _layer(
    inventory: Inventory, index: int, path: str, layout: Layout, names: dict[str, str], cut: _Cut, fold_norm: bool
) -> AttentionLayer:
    views, notes, doubt = cut
    views = {role: _adapted(inventory, layout, names, view) for role, view in views.items()}
    gain = norm_before(inventory, layout, names, path)
    if fold_norm:
        norm = fold(inventory, layout, gain, path)
        views = {role: view if role == "o" else replace(view, norm=norm) for role, view in views.items()}
    return AttentionLayer(
        index=index,
        name=path,
        views=tuple(views.values()),
        notes=(*notes, *layer_notes(inventory, layout, names, path, views, gain), *((doubt,) if doubt else ())),
        doubt=doubt,
    )


def _adapted(inventory: Inventory, layout: Layout, names: Mapping[str, str], view: WeightView) -> WeightView:
    transposed = (view.axis == 0) == (view.role == "o")  # stored (in, out)
    adapters = updates_on(inventory, layout, names[view.role], transposed=transposed)
    down = view.down
    if down is not None:
        name = names["q_down" if view.role == "q" else "kv_down"]
        down = replace(down, adapters=updates_on(inventory, layout, name, transposed=False))
    return replace(view, adapters=adapters, down=down)


def _layouts(heads: Layout | Sequence[Layout] | None) -> Sequence[Layout]:
    if heads is None:
        return LAYOUTS
    layouts = (heads,) if isinstance(heads, Layout) else tuple(heads)
    if not layouts or not all(isinstance(layout, Layout) for layout in layouts):
        raise ValueError(f"`heads` must be a Layout or several of them; got {heads!r}.")
    return layouts
