r"""Labels such as `σ_i` and `W_K W_Qᵀ` in three notations: for matplotlib, for plotly and for HTML.

Labels may hold names from anywhere. What is markup to a renderer is therefore escaped before subscripts are made.
"""

import re

_SUBSCRIPT = re.compile(r"(?<![A-Za-z0-9_])([A-Za-zσ])_([A-Za-z]|\d{1,3})(?![A-Za-z0-9_])")


def to_mathtext(label: str) -> str:
    r"""A label in the notation of matplotlib.

    >>> print(to_mathtext("σ_i of W_K for 5 $"))
    $\sigma_{i}$ of $W_{K}$ for 5 \$
    """
    escaped = label.replace("\\", "/").replace("$", r"\$")
    return _SUBSCRIPT.sub(lambda m: f"${_symbol(m[1])}_{{{m[2]}}}$", escaped)


def to_plotly(label: str) -> str:
    """A label in the notation of plotly, which reads a few HTML tags.

    >>> to_plotly("W_K <b>")
    'W<sub>K</sub> &lt;b&gt;'
    """
    escaped = label.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SUBSCRIPT.sub(r"\1<sub>\2</sub>", escaped)


def to_html(label: str) -> str:
    """A label as HTML that can be inserted into a page as it is.

    >>> to_html("W_K & <b>")
    Markup('W<sub>K</sub> &amp; &lt;b&gt;')
    """
    from markupsafe import Markup, escape

    return Markup(_SUBSCRIPT.sub(r"\1<sub>\2</sub>", str(escape(label))))


def _symbol(letter: str) -> str:
    return r"\sigma" if letter == "σ" else letter
