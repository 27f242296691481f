"""The census in small: families of every layout are verified against their own forward."""

import pytest
from tools.census._examine import examine

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

FAMILIES = {
    "albert": "ALBERT",
    "bloom": "Falcon",
    "codegen": "CodeGen",
    "deberta": "DeBERTa",
    "deberta-v2": "DeBERTa-v2",
    "deepseek_v2": "latent",
    "deepseek_v3": "latent",
    "distilbert": "DistilBERT",
    "falcon": "Falcon",
    "gpt_bigcode": "GPT-BigCode",
    "mpnet": "T5",
    "mpt": "MPT",
    "phi": "Phi",
    "qwen3_5_text": "gated queries",
    "qwen3_next": "gated queries",
    "t5": "T5",
    "xlm": "DistilBERT",
}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_families_are_verified_against_their_forward(model_type):
    record = examine(model_type)
    assert (record.outcome, record.why) == ("resolved with a note", "")
    assert record.scheme == FAMILIES[model_type]
    assert record.verified > 0
