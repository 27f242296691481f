"""Pages that open offline: one file with its scripts and styles inside, which asks nothing of any server.

Names may come from anywhere. Jinja escapes all text, data goes only into `<script type="application/json">` by
`tojson`, and the page's own scripts set `textContent`. In addition, the policy of the page allows only the scripts
whose SHA-256 it lists, so that markup that was not escaped would do nothing.
"""

import base64
import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise._extras import require
from rankrise.view._notation import to_html

if TYPE_CHECKING:
    from jinja2 import Environment

_ASSETS = Path(__file__).parent / "assets"


def render(template: Path, *, styles: tuple[str, ...], scripts: tuple[str, ...], data: object, **values: Any) -> str:
    """The text of a whole page.

    Args:
        template: The file of the template; its folder may hold styles of its own.
        styles: The texts of the styles.
        scripts: The texts of the scripts, in the order in which they run.
        data: What the scripts read, as JSON values.
        **values: What the template uses.
    """
    require("Writing a page", "jinja2")
    from markupsafe import Markup

    safe = [script.replace("\r\n", "\n").replace("</script", "<\\/script") for script in scripts]
    return (
        _environment(template.parent)
        .get_template(template.name)
        .render(
            styles=Markup("\n".join(styles)),
            scripts=[Markup(script) for script in safe],
            policy=policy(safe),
            data=data,
            **values,
        )
    )


def policy(scripts: list[str]) -> str:
    """The policy of a page: it may run these scripts, style itself and show images that it made, and load nothing."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    listed = " ".join(f"'sha256-{value}'" for value in hashes)
    return (
        f"default-src 'none'; script-src {listed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def asset(name: str) -> str:
    """The text of a file that every page may use: `page.css`, `chart.js` (small charts), `figures.js`, `.css`."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def plotly_script() -> str | None:
    """The text of plotly.js from the Python package; None if the package is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    script: str = get_plotlyjs()
    return script


@functools.cache
def _environment(folder: Path) -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader([folder, _ASSETS])  # the second folder has the parts that all pages use
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.filters["subscripts"] = to_html
    return found
