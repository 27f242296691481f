"""The one exception to "imports only go down": what methods of lower packages call to reach `rankrise.view`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankrise.checkpoints import Diff


def diff_page(diff: "Diff") -> str:
    """Return the page of a diff of checkpoints, for `Diff.write_html`."""
    from rankrise.view import diff_page as page

    return page(diff)
