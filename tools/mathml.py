r"""An extension of Python-Markdown that turns the formulas of the documentation into MathML while the site is built.

`pymdownx.arithmatex` finds the formulas and leaves them as `\(…\)` for a script in the browser. MathML needs no script
and no font from elsewhere, so that the site is complete without a network.
"""

from xml.etree.ElementTree import Element

import latex2mathml.converter
from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

_AFTER_ALL_OTHERS = 0


class _Formulas(Treeprocessor):
    def run(self, root: Element) -> None:
        for element in root.iter():
            if element.get("class") == "arithmatex" and element.text:
                latex = element.text.strip()[2:-2]  # between \( and \), or between \[ and \]
                display = "block" if element.tag == "div" else "inline"
                element.text = self.md.htmlStash.store(latex2mathml.converter.convert(latex, display=display))


class MathML(Extension):
    """Formulas as MathML; it needs `pymdownx.arithmatex` with `generic = true`."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Register the processor behind all others, which must have found the formulas."""
        md.treeprocessors.register(_Formulas(md), "mathml", _AFTER_ALL_OTHERS)


def makeExtension(**options: object) -> MathML:
    """Return the extension; Python-Markdown calls this."""
    return MathML(**options)
