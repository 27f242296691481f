"""The entropy of attention against a softmax in float64, in tiny random models of many families of transformers.

    PYTHONPATH=src:. OMP_NUM_THREADS=1 python studies/entropy_of_families.py --each 40

One in forty types of models of the census (`tools/census`) is built and run. Where its attention calls the function of
PyTorch, `rankrise.attention_entropy` of the queries, keys and masks of each call is compared with the entropy of an
explicit softmax in float64, and so is that of queries and keys in bfloat16. The counts are in docs/log/gauges.md.
"""

import argparse
import contextlib
import math
from collections import Counter
from typing import Any

import torch
import transformers
from tools.census._feed import forwards
from tools.census._tiny import build, model_types
from tools.census._workers import run_all
from torch import Tensor

from rankrise.gauges import AttentionRows, attention_entropy, seen_attention
from rankrise.heads import resolve


def explicit(q: Tensor, k: Tensor, scale: float | None, is_causal: bool, mask: Tensor | None) -> Tensor:
    """Entropy of every row of attention in float64, from a softmax that is written out."""
    k = k.double().repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    logits = q.double() @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        logits = logits.masked_fill(torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask.double()
    return torch.special.entr(logits.softmax(-1)).sum(-1)


def examine(model_type: str) -> dict[str, Any]:
    """Build and run one type of model, and compare every attention call that can be seen."""
    found: dict[str, Any] = {"model_type": model_type, "outcome": "compared", "worst": 0.0, "half": 0.0, "kinds": []}
    kinds: set[str] = set()

    def measure(q: Tensor, k: Tensor, *, scale: float | None, is_causal: bool, mask: Tensor | None) -> AttentionRows:
        rows = attention_entropy(q, k, scale=scale, is_causal=is_causal, mask=mask)
        half = attention_entropy(q.bfloat16(), k.bfloat16(), scale=scale, is_causal=is_causal, mask=mask)
        sees = (rows.visible > 0).expand(rows.entropy.shape)
        expected = explicit(q, k, scale, is_causal, mask).expand(rows.entropy.shape)[sees]
        for name, values in (("worst", rows.entropy), ("half", half.entropy)):
            gap = (values.double()[sees] - expected).abs()
            found[name] = max(found[name], gap.max().item() if len(gap) else 0.0)
        grouped = ["grouped"] if q.shape[-3] != k.shape[-3] else []
        kinds.update(grouped + (["causal"] if is_causal else []) + ([] if mask is None else [f"{mask.dtype} mask"]))
        return rows

    try:
        model = build(model_type).float().eval()
        model.set_attn_implementation("sdpa")  # the census builds models that return their attention
        head_map = resolve(model)
    except Exception as error:
        return {**found, "outcome": "not built, not resolved, or has no such attention", "why": type(error).__name__}
    with torch.no_grad(), seen_attention(model, head_map, measure) as seen:
        for _, run in forwards(model, 1):
            with contextlib.suppress(Exception):
                run()
                break
    found["kinds"] = sorted(kinds)
    layers = {at for at, _ in seen.calls if at >= 0}
    found["layers"] = f"{len(layers)} of {len(head_map)}"
    if not seen.calls:
        found["outcome"] = "calls no attention function of PyTorch"
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", type=int, default=40)
    transformers.logging.set_verbosity_error()
    names = model_types()[:: parser.parse_args().each]
    records = list(run_all(names, examine, workers=1))
    for record in sorted(records, key=lambda record: record["model_type"]):
        print(record, flush=True)
    print(transformers.__version__, Counter(record["outcome"] for record in records))
    compared = [record for record in records if record["outcome"] == "compared"]
    for name in ("worst", "half"):
        print(name, max(record[name] for record in compared))
    print(Counter(kind for record in compared for kind in record["kinds"]))
