"""Figures as files: a figure that its files already show is not drawn again.

Drawing takes most of the time of a report. After drawing, the digest of the figure, of the code that drew it and of the
two pictures is noted in the user's own cache folder. The pictures themselves come from a folder that anybody may have
changed or sent, so they count as drawn only if that note says that this user drew exactly these bytes of this figure.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import os
from pathlib import Path

import rankrise
from rankrise.store import UntrustedFolder, UntrustedInputError, replacing
from rankrise.view._draw import draw_files
from rankrise.view._figure import FigureData, to_csv

_DRAWS = ("matplotlib", "numpy", "pillow")
_MOST_BYTES = 64 * 2**20  # Checking a larger picture would take longer than drawing it.


def save_figure(figure: FigureData, folder: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
    """Write `<name>.svg`, `<name>.png` and the numbers behind them, `<name>.csv`.

    The pictures are drawn only if those in the folder are not the ones that this user last drew there of this figure.

    Returns:
        The three paths.
    """
    svg, png, csv = (Path(folder) / f"{figure.name}{ending}" for ending in (".svg", ".png", ".csv"))
    note = _note_of(svg)
    if note is None or not _is_drawn(figure, svg, png, note):
        drawn = _digest(figure, draw_files(figure, svg, png))
        if note is not None:
            with contextlib.suppress(OSError):  # Without a note the figure is drawn again next time.
                note.parent.mkdir(parents=True, exist_ok=True)
                note.write_text(drawn, encoding="ascii")
    with replacing(csv, "figure") as temporary:
        temporary.write_text(to_csv(figure), encoding="utf-8")
    return svg, png, csv


def _note_of(picture: Path) -> Path | None:
    """The file in the user's cache folder that holds the digest for a picture; None if the user has no such folder."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        cache = base if base.is_absolute() else Path.home() / ".cache"
        place = hashlib.sha256(os.fsencode(picture.resolve())).hexdigest()
    except (OSError, RuntimeError):  # There is no home folder, or the path leads through a circle of links.
        return None
    return cache / "rankrise" / "figures" / place


def _is_drawn(figure: FigureData, svg: Path, png: Path, note: Path) -> bool:
    try:
        with UntrustedFolder(svg.parent) as folder:
            pictures = [folder.read(path.name, most_bytes=_MOST_BYTES) for path in (svg, png)]
        return note.read_bytes() == _digest(figure, pictures).encode("ascii")
    except (OSError, UntrustedInputError):
        return False


def _digest(figure: FigureData, pictures: list[bytes]) -> str:
    """SHA-256 of what is drawn, what draws it, and what came out."""
    parts = [figure.fingerprint, _renderer(), *(hashlib.sha256(picture).hexdigest() for picture in pictures)]
    return hashlib.sha256("\n".join(parts).encode("ascii")).hexdigest()


@functools.cache
def _renderer() -> str:
    """SHA-256 of everything that decides how a figure looks: the sources of this package and the versions it uses."""
    found = hashlib.sha256(rankrise.__version__.encode())
    for name in _DRAWS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.update(f"\n{name} {importlib.metadata.version(name)}\n".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()
