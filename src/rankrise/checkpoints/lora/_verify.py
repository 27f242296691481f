"""An adapter read back: its product against the change it stands for, and its logits against the tuned model's."""

import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise._extras import require
from rankrise.checkpoints.delta import Delta
from rankrise.checkpoints.files import find_inside, open_safetensors, show
from rankrise.checkpoints.lora._models import (
    check_loadable,
    check_tokens,
    find_architecture,
    load_model,
    make_inputs,
    run_model,
)
from rankrise.checkpoints.lora._peft_rules import Setting, read_config
from rankrise.checkpoints.lora._peft_writer import CONFIG, MODEL, factor_names
from rankrise.checkpoints.match import Module


@dataclass(frozen=True)
class LogitsCheck:
    """Outputs of base + adapter against the tuned model, on the same inputs."""

    inputs: str  # what went in, in words
    max_difference: float  # between base + adapter and tuned
    relative_error: float  # ‖adapter − tuned‖ / ‖base − tuned‖
    agreement: float  # share of positions with the same largest output
    base_agreement: float  # the same of the base, to compare
    weight_error: float = math.nan  # ‖(base + adapter) − tuned‖ / ‖tuned − base‖ over the parameters in memory


def verify_factors(
    folder: Path, deltas: Mapping[str, tuple[Callable[[], Delta], Module]], modules: Iterable[Module]
) -> dict[str, float]:
    """`‖Δ − (alpha / r) B A‖_F / ‖Δ‖_F` of every module, with A, B, alpha and r as PEFT will read them.

    Args:
        folder: The adapter.
        deltas: For each module how to read its change once more; one is held at a time.
        modules: Every module of the base, adapted or not.

    Raises:
        ValueError: PEFT would adapt other modules, or give one another rank or scale, than was meant.
    """
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    file = open_safetensors(find_inside(folder, MODEL))
    read = _as_peft_reads(config, deltas, list(modules))
    errors = {}
    for name, (delta, module) in deltas.items():
        a, b = (file.read(factor).to(torch.float32) for factor in factor_names(name, deltas))
        rank, alpha = read[name].rank, read[name].alpha
        if a.shape[0] % rank or alpha != rank or (not module.is_stack and rank != a.shape[0]):
            raise ValueError(f"The adapter of {name!r} must have rank and alpha {a.shape[0]}; got {rank} and {alpha}.")
        left, right = _as_stored(a, b, module, rank)
        rest, total, begin = 0.0, 0.0, 0
        for block in delta().blocks():
            rows = left[begin : begin + len(block)].to(block)
            if module.is_stack:  # each row of the block is an expert
                product = (rows @ right[begin : begin + len(block)].to(block)).flatten(1)
                rest += _squares(block - product)
            else:
                rest += _squares(torch.addmm(block, rows, right.to(block), alpha=-1))
            total += _squares(block)
            begin += len(block)
        errors[name] = math.sqrt(rest / total)
    return errors


def _as_stored(a: Tensor, b: Tensor, module: Module, rank: int) -> tuple[Tensor, Tensor]:
    """`left` and `right` whose product is the change as the weight is stored; of a stack for every expert."""
    if module.is_stack:
        a, b = a.reshape(-1, rank, a.shape[1]), b.reshape(b.shape[0], rank, -1).permute(2, 0, 1)
    return (a.mT, b.mT) if module.is_transposed else (b, a)


def _as_peft_reads(config: Mapping[str, Any], meant: Iterable[str], modules: Sequence[Module]) -> dict[str, Setting]:
    """The settings of the modules that PEFT adapts, which must be those that were meant."""
    meant = set(meant)
    known = dict.fromkeys([*(m.name for m in modules if m.parameter == "weight" or m.is_stack), *meant])
    read = read_config(config, known, has_experts=any(m.is_parameter for m in modules))
    if wrong := sorted(read.keys() ^ meant):
        what = "would be left out" if wrong[0] in meant else "would be adapted as well"
        raise ValueError(
            f"PEFT must adapt the modules whose change was found, and no others; {show(wrong[0])!r} {what}. "
            "Its name cannot be told from another one: `--save` it whole, or rename the modules."
        )
    return read


def require_transformers() -> None:
    """Refuse, before any work is done, a verification whose packages are missing.

    Raises:
        ImportError: transformers or peft is not installed.
    """
    require("`verify`", "transformers", "peft", otherwise="or leave it out: the factors are checked without")


def require_modules(base: Path, names: Iterable[str]) -> None:
    """Refuse an adapter that PEFT would leave out in silence: a module that the model in memory has not.

    Raises:
        ValueError: transformers renames the weights of this architecture in a way that is not known here.
    """
    config, architecture = find_architecture(base)
    with torch.device("meta"):
        model = architecture(config)
    known = {*dict(model.named_modules()), *dict(model.named_parameters())}
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
    config, architecture = find_architecture(base)
    if reshaped:
        raise ValueError(f"`verify` needs models of one size; got {reshaped[0]}. Leave `verify` out.")
    takes = architecture.main_input_name
    if takes not in ("input_ids", "pixel_values") or (config.is_encoder_decoder and takes != "input_ids"):
        raise ValueError(
            f"`verify` needs a model of tokens or of images; {architecture.__name__} takes {takes}. Leave `verify` out."
        )
    for path in (base, tuned):
        check_loadable(path)
    if tokens is not None and takes == "input_ids":
        check_tokens(tokens, config)


def compare_logits(
    base: Path, tuned: Path, adapter: Path, modules: Mapping[str, Module], tokens: Sequence[int] | None = None
) -> LogitsCheck:
    """Outputs of base + adapter and of the tuned model in float32, on given or random input.

    What PEFT made of the adapter is compared with the file first, weight by weight, so that a part which PEFT leaves
    out or puts elsewhere is found whatever it does to the outputs.

    Args:
        base: A folder that transformers can load.
        tuned: Likewise; its config may be missing.
        adapter: What `extract_lora` wrote.
        modules: The modules that the adapter changes, by name.
        tokens: One sequence of token ids; random ones if None. Images are random.

    Raises:
        ImportError: transformers or peft is not installed.
        ValueError: The base has no config with an architecture that transformers knows; a token out of range; PEFT
            makes other weights of the adapter than the file says, or other outputs than these weights give.
    """
    require_transformers()
    import peft

    model = load_model(base, base)
    try:
        inputs, words = make_inputs(model, tokens)
        of_base = run_model(model, inputs)
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError) as error:  # what a forward may raise
        raise ValueError(
            f"`verify` needs a model that runs on tokens or images alone; {type(model).__name__} says "
            f"{show(str(error))!r}. Leave `verify` out."
        ) from error
    with warnings.catch_warnings():  # PEFT says that patterns of parameters match no module, and then uses them
        warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern keys", category=RuntimeWarning)
        try:
            adapted = peft.PeftModel.from_pretrained(model, str(adapter), is_trainable=False).eval()
        except (KeyError, RuntimeError) as error:
            raise ValueError(
                f"PEFT must load the adapter; it says {show(str(error))}. Leave what it names out of `save`."
            ) from error
    of_adapter = run_model(adapted, inputs)
    with warnings.catch_warnings():  # an embedding that is saved whole is no longer tied
        warnings.filterwarnings("ignore", message="Input and output embeddings are no longer tied")
        merged = adapted.merge_and_unload()
    of_merged = run_model(merged, inputs)
    after = dict(merged.named_parameters())
    del model, adapted, merged
    before = dict(load_model(base, base).named_parameters())
    tuned_model = load_model(tuned, base)
    of_tuned = run_model(tuned_model, inputs)
    goal = dict(tuned_model.named_parameters())
    _check_merged(after, before, goal, adapter, modules)
    rest = sum(_squares(after[name].detach() - goal[name].detach()) for name in after.keys() & goal.keys())
    total = sum(_squares(before[name].detach() - goal[name].detach()) for name in before.keys() & goal.keys())
    _check_outputs(of_adapter, of_merged, of_base)
    scale = float((of_base - of_tuned).norm())
    best = of_tuned.argmax(-1)
    return LogitsCheck(
        inputs=words,
        max_difference=float((of_adapter - of_tuned).abs().max()),
        relative_error=float((of_adapter - of_tuned).norm()) / scale if scale else 0.0,
        agreement=float((of_adapter.argmax(-1) == best).float().mean()),
        base_agreement=float((of_base.argmax(-1) == best).float().mean()),
        weight_error=math.sqrt(rest / total) if total else 0.0,
    )


_MOST_WEIGHT_ERROR = 1e-4  # largest error over ‖BA‖, on top of what rounding of the sum to float32 explains
_MOST_OUTPUT_ERROR = 1e-3  # largest relative error of the outputs, because sums are taken in another order


def _check_merged(
    after: Mapping[str, Tensor],
    before: Mapping[str, Tensor],
    goal: Mapping[str, Tensor],
    adapter: Path,
    modules: Mapping[str, Module],
) -> None:
    """Refuse an adapter of which PEFT makes other weights than `base + BA`, or than the tuned ones where it has these.

    Args:
        after: Parameters of base + adapter, as PEFT merges them.
        before: Parameters of the base.
        goal: Parameters of the tuned model.
        adapter: The folder.
        modules: The modules that have A and B, by name.
    """
    config = json.loads((adapter / CONFIG).read_text(encoding="utf-8"))
    file = open_safetensors(find_inside(adapter, MODEL))
    saved = tuple(f"{name}." for name in config.get("modules_to_save") or ())
    if missing := sorted(name for name in modules if f"{name}.weight" not in after and name not in after):
        raise ValueError(f"PEFT must know the modules of the adapter; the model has no {show(missing[0])!r}.")
    for name, weight in ((name, weight) for name, weight in after.items() if name in before):
        module = name.removesuffix(".weight")
        if is_saved := name.startswith(saved) and name in goal:
            expected = goal[name]
        elif module in modules and (name != module or modules[module].is_stack):
            a, b = (file.read(factor).float() for factor in factor_names(module, modules))
            rank = a.shape[0] // (before[name].shape[0] if modules[module].is_stack else 1)
            left, right = _as_stored(a, b, modules[module], rank)
            expected = before[name] + left @ right
        else:
            expected = before[name]
        change = float((expected - before[name]).detach().norm())
        off = float((weight - expected).detach().norm())
        if off > _MOST_WEIGHT_ERROR * change + 2 * torch.finfo(weight.dtype).eps * float(before[name].detach().norm()):
            raise ValueError(
                f"PEFT must make of the adapter what its files say; {show(name)!r} is off by {off:.3g}, where the "
                f"adapter's change is {change:.3g}. {'Leave it out of' if is_saved else 'Add it to'} `save`, or report "
                "the architecture."
            )


def _check_outputs(of_adapter: Tensor, of_merged: Tensor, of_base: Tensor) -> None:
    """Refuse outputs that contradict the weights: the adapter beside its base against the adapter added to it."""
    off = float((of_adapter - of_merged).norm())
    if off > _MOST_OUTPUT_ERROR * max(float(of_base.norm()), float(of_merged.norm())):
        raise ValueError(
            f"The outputs of base + adapter must be those of the merged weights; they differ by {off:.3g} of "
            f"{float(of_merged.norm()):.3g}. The adapter is not used as its file says: report the architecture."
        )


def _squares(block: Tensor) -> float:
    return float(torch.linalg.vector_norm(block, dtype=torch.float64)) ** 2
