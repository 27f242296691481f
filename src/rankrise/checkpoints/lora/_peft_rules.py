"""What PEFT does with an adapter's config: which modules it adapts, and with which rank and scale.

These are the rules of PEFT 0.21 (`check_target_module_exists`, `get_pattern_key`, `_inject_parameters` and the
conversion of targets for models with experts), so that a config is read back as PEFT reads it, also where PEFT is not
installed. `tests/checkpoints/test_peft_rules.py` compares them with PEFT itself.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rankrise.checkpoints.files import PeftSettings, show
from rankrise.checkpoints.match import is_expert_stack, is_taken_for_experts


@dataclass(frozen=True)
class Setting:
    """How PEFT adapts one module."""

    rank: int
    alpha: float


def read_config(config: Mapping[str, Any], modules: Iterable[str], *, has_experts: bool) -> dict[str, Setting]:
    """Map each module that PEFT adapts to its rank and alpha.

    Args:
        config: An `adapter_config.json`.
        modules: Names in memory of all modules with a weight, and of the fused weights of experts.
        has_experts: Whether the model has experts, for which PEFT replaces some targets.

    Raises:
        ValueError: A target that PEFT would replace; a pattern that matches no module that is adapted.

    >>> config = {"r": 8, "lora_alpha": 8, "target_modules": ["up"], "rank_pattern": {"a.up": 2}}
    >>> {name: found.rank for name, found in read_config(config, ["a.up", "b.up", "up2"], has_experts=False).items()}
    {'a.up': 2, 'b.up': 8}
    """
    targets = config.get("target_modules") or []
    parameters = config.get("target_parameters") or []
    if has_experts:
        _refuse_replaced(targets)
    ranks, alphas = PeftSettings(config, "rank"), PeftSettings(config, "alpha")
    found: dict[str, Setting] = {}
    keys: list[str] = []
    for name in modules:
        key = name if is_expert_stack(name) else f"{name}.weight"
        if any(key == target or key.endswith(f".{target}") for target in parameters):
            if _is_target(config, targets, name):
                raise ValueError(f"PEFT must be told a module or its parameter; {show(name)!r} is told as both.")
        elif _is_target(config, targets, name):
            key = name
        else:
            continue
        keys.append(key)
        found[name] = Setting(ranks.of(key), alphas.of(key))
    for kind in ("rank_pattern", "alpha_pattern"):
        patterns = {pattern: re.compile(rf"(.*\.)?({pattern})$") for pattern in config.get(kind) or {}}
        used = {next((p for p, expression in patterns.items() if expression.match(key)), None) for key in keys}
        if unused := [pattern for pattern in patterns if pattern not in used]:
            raise ValueError(f"Every key of {kind} must match an adapted module; {show(unused[0])!r} does not.")
    return found


def _is_target(config: Mapping[str, Any], targets: str | Collection[str], name: str) -> bool:
    excluded = config.get("exclude_modules") or []
    if isinstance(excluded, str):
        if re.fullmatch(excluded, name):
            return False
    elif any(name == word or name.endswith(f".{word}") for word in excluded):
        return False
    if any(re.match(rf"(^|.*\.){word}($|\..*)", name) for word in config.get("modules_to_save") or ()):
        return False
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(name == target or name.endswith(f".{target}") for target in targets)


def _refuse_replaced(targets: str | Collection[str]) -> None:
    names = re.findall(r"\w+", targets) if isinstance(targets, str) else targets
    if taken := sorted({name.rpartition(".")[2] for name in names if is_taken_for_experts(name)}):
        raise ValueError(
            f"In a model with experts PEFT takes targets named {taken[0]!r} for the experts' weights. Name the "
            "parameter instead (`target_parameters`)."
        )
