"""The formulas of the documentation as MathML: all of them, and none with a command that was not understood."""

import re
from pathlib import Path

import markdown
import pytest
from tools.mathml import MathML

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "$" in path.read_text())


def rendered(text):
    return markdown.markdown(
        text,
        extensions=["pymdownx.arithmatex", "pymdownx.superfences", MathML()],
        extension_configs={"pymdownx.arithmatex": {"generic": True}},
    )


def test_a_formula_becomes_mathml_in_its_line_or_in_a_block():
    page = rendered(r"Let $q = u \odot v$." + "\n\n" + r"$$\tfrac14 w^2$$")
    assert re.findall(r'<math [^>]*display="(\w+)"', page) == ["inline", "block"]
    assert "<mi>q</mi>" in page
    assert "<mfrac>" in page


def test_code_is_left_alone():
    assert "<math" not in rendered("`$a$`\n\n```sh\necho $HOME $PATH\n```\n")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_formula_of_the_documentation_is_understood(path):
    page = rendered(path.read_text())
    formulas = re.findall(r"<math .*?</math>", page, flags=re.S)
    assert len(formulas) == page.count('class="arithmatex"')
    assert [formula for formula in formulas if "\\" in formula] == []
