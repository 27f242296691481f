"""The census in small: families of every layout are verified against their own forward."""

import pytest
from tools.census.__main__ import PAGE, take
from tools.census._examine import examine
from tools.census._page import page

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


@pytest.mark.slow
def test_the_page_of_families_is_that_of_the_installed_transformers():
    records = list(take())
    assert [record["model_type"] for record in records if record["outcome"] in ("wrong", "crashed")] == []
    assert PAGE.read_text(encoding="utf-8") == page(records)
