"""The one table of colours: those of Okabe and Ito for things without an order, and viridis for things with an order.

Readers with any colour vision can tell the colours of both apart, and those of viridis in grey as well. matplotlib,
plotly, the scripts of the pages and the page of a diff use the same values.
"""

from rankrise.view._figure import FigureData, Trace

OKABE_ITO = {
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "orange": "#E69F00",
}
GREY = "#767676"
UNKNOWN = "#bbbbbb"  # a cell of a heat map whose value was not measured
_FIXED = {
    "limit": OKABE_ITO["vermillion"],
    "init": GREY,
    "without noise": GREY,
    "with noise": OKABE_ITO["vermillion"],
    "loss": "#333333",
    "kq": OKABE_ITO["blue"],
    "vo": OKABE_ITO["vermillion"],
    "product at init": OKABE_ITO["blue"],
    "change by training": OKABE_ITO["vermillion"],
}
# viridis from 0.76 to 0.04, light to dark, without its yellow end, which cannot be seen on paper
VIRIDIS = (
    "#63cb5f", "#44bf70", "#2cb17e", "#20a386", "#1f958b", "#24868e", "#2a788e", "#306a8e", "#375a8c", "#3e4989",
    "#453781", "#482475", "#471063",
)  # fmt: skip

_ON_DARK = (  # viridis from 0.4 to 0.92: on a dark page the end of the order is the brightest
    "#2a788e", "#26828e", "#228d8d", "#1f978b", "#1fa187", "#25ac82", "#32b67a", "#46c06f", "#5cc863", "#75d054",
    "#90d743", "#addc30", "#cae11f",
)  # fmt: skip
_DARK = {OKABE_ITO["blue"]: "#56B4E9", OKABE_ITO["vermillion"]: "#FF7B6B", GREY: "#a9adb5", "#333333": "#e3e5e8"}


def shade(level: float, ramp: tuple[str, ...] = VIRIDIS) -> str:
    """The colour of a place in an order, from 0, which is light, to 1, which is dark.

    >>> shade(0.0), shade(1.0)
    ('#63cb5f', '#471063')
    """
    place = level * (len(ramp) - 1)
    i = min(int(place), len(ramp) - 2)
    pairs = zip(_rgb(ramp[i]), _rgb(ramp[i + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - i)):02x}" for a, b in pairs)


def ink_on(colour: str) -> str:
    """Black or white, whichever can be read better on a colour, by the contrast that WCAG defines.

    >>> ink_on("#27ab81"), ink_on("#471063")
    ('#000000', '#ffffff')
    """
    dark, light = "#000000", "#ffffff"
    behind = _luminance(colour)
    return dark if (behind + 0.05) ** 2 > (_luminance(dark) + 0.05) * (_luminance(light) + 0.05) else light


def _luminance(colour: str) -> float:
    """The relative luminance of a colour, as WCAG defines it."""
    parts = [value / 255 for value in _rgb(colour)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def colours(figure: FigureData) -> dict[str, str]:
    """The colour of every group that has no level; a group has one colour in all panels."""
    groups = dict.fromkeys(t.group for panel in figure.panels for t in panel.traces if t.level is None)
    free = iter([c for c in OKABE_ITO.values() if c not in {_FIXED.get(g) for g in groups}] * (1 + len(groups)))
    return {group: _FIXED.get(group) or next(free) for group in groups}


def colour_of(trace: Trace, found: dict[str, str]) -> str:
    """The colour of one trace, given `colours` of its figure."""
    return found[trace.group] if trace.level is None else shade(trace.level)


def dark_of(trace: Trace, found: dict[str, str]) -> str:
    """The colour of one trace on a dark page, given `colours` of its figure."""
    if trace.level is not None:
        return shade(trace.level, _ON_DARK)
    colour = found[trace.group]
    return _DARK.get(colour, colour)


def colour_ramps() -> dict[str, list[str]]:
    """The colours of ordered things from the first to the last, for a light and for a dark page."""
    return {"light": list(VIRIDIS), "dark": list(_ON_DARK)}


def run_colours() -> dict[str, list[str]]:
    """Return colours for things without an order, such as runs, for a light and for a dark page."""
    light = [*OKABE_ITO.values(), GREY]
    return {"light": light, "dark": [_DARK.get(colour, colour) for colour in light if colour != OKABE_ITO["sky"]]}


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
