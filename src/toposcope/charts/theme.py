"""The house theme: colours, type and grid of every chart, light and dark."""

from typing import Any

WIDTH, HEIGHT = 560, 240
"""Default size of the plotting area of a file, in pixels; on a page the width is that of its place."""

RUNS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A6FAC", "#6B7280",
    "#5C0014", "#14008F", "#005200", "#AD005C", "#7014A3", "#853D00", "#1F4766", "#AD70FF",
    "#667000", "#1F3DC2", "#AD3DB8", "#470A5C", "#4785FF", "#A38F66", "#703D66", "#E03366",
)  # fmt: skip
"""Okabe & Ito 2008, in an order that separates neighbours, two more, and 16 that lie far from all before in OKLab."""
RUNS_DARK = (
    "#4DA3DB", "#F0803C", "#2FC79A", "#E29CC4", "#8CCBF0", "#F2BE4A", "#A79BE0", "#A0A7B4",
    "#527000", "#B82985", "#5C52E0", "#8FFF70", "#AD4700", "#00708F", "#E0F5D6", "#999900",
    "#D65CD6", "#8F708F", "#00FFEB", "#F54770", "#FFCCFF", "#00997A", "#8FCC00", "#FFF552",
)  # fmt: skip
"""The first eight in a lightness that reads on a dark page, and 16 chosen likewise."""
DIVERGING = ("#5E3C99", "#B2ABD2", "#F7F7F7", "#FDB863", "#B35806")
DIVERGING_DARK = ("#A58FE0", "#5D5285", "#23272E", "#8A6230", "#F0A040")
"""Signed quantities; zero is the colour of the paper."""
SEQUENTIAL = "cividis"
FAULT = "#B00020"
MUTED = "#87909B"  # of what stays in the background; reads on light and dark paper
AT_CURSOR = "datum.step === at || (hover.step && datum.step === hover.step[0])"
"""The rows at the cursor where a chart stands alone and follows the pointer."""
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"

_LIGHT = {"ink": "#1b1f24", "soft": "#4d5761", "line": "#d8dee4", "paper": "#ffffff"}
_DARK = {"ink": "#e6e9ee", "soft": "#a5aeba", "line": "#343b45", "paper": "#171b21"}


def config(*, dark: bool = False) -> dict[str, Any]:
    """Return Vega-Lite's configuration of every chart."""
    look = _DARK if dark else _LIGHT
    return {
        "background": "transparent" if dark else look["paper"],
        "font": FONT,
        "padding": 4,
        "view": {"stroke": None, "continuousWidth": WIDTH, "continuousHeight": HEIGHT},
        "axis": {
            "domainColor": look["soft"],
            "gridColor": look["line"],
            "gridOpacity": 0.7,
            "labelColor": look["ink"],
            "labelFontSize": 12,
            "labelFlush": False,
            "labelOverlap": "greedy",
            "tickColor": look["line"],
            "titleColor": look["ink"],
            "titleFontSize": 12,
            "titleFontWeight": "normal",
        },
        "axisX": {"grid": False, "tickCount": 6},
        "axisY": {"domain": False, "ticks": False, "tickCount": 5, "labelPadding": 6},
        "header": {"labelColor": look["ink"], "labelFontSize": 12, "titleColor": look["ink"], "title": None},
        "legend": {
            "labelColor": look["ink"],
            "labelFontSize": 12,
            "titleColor": look["soft"],
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "orient": "top",
            "labelLimit": 320,
        },
        "title": {
            "anchor": "start",
            "color": look["ink"],
            "fontSize": 14,
            "subtitleColor": look["soft"],
            "subtitleFontSize": 12,
            "offset": 10,
        },
        "line": {"strokeWidth": 1.8},
        "point": {"size": 30, "filled": True},
        "rule": {"color": look["soft"]},
        "text": {"color": look["ink"], "fontSize": 12},
        "bar": {"color": (RUNS_DARK if dark else RUNS)[0]},
        "range": {
            "category": list(RUNS_DARK if dark else RUNS),
            "diverging": list(DIVERGING_DARK if dark else DIVERGING),
            "heatmap": {"scheme": SEQUENTIAL},
            "ramp": {"scheme": SEQUENTIAL},
        },
    }
