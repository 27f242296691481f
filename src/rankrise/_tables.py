"""Tables of plain text, for commands and for whoever prints a result."""

from collections.abc import Collection, Mapping, Sequence


def table(rows: Sequence[Mapping[str, object]], *, left: Collection[str] = ()) -> str:
    """Return rows as text under the keys of the first row. Columns in `left` are left-aligned, others right-aligned.

    >>> print(table([{"layer": "0", "rank": 1.5}, {"layer": "11", "rank": True}], left=("layer",)))
    layer  rank
    0       1.5
    11      yes
    """
    if not rows:
        return ""
    import io

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=None)
    for key in rows[0]:
        grid.add_column(Text(key), justify="left" if key in left else "right", no_wrap=True)
    for row in rows:
        grid.add_row(*(Text(_cell(row[key])) for key in rows[0]))
    stream = io.StringIO()
    Console(file=stream, width=100_000, color_system=None, legacy_windows=False).print(grid)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
