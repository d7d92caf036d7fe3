"""The page: a document and its charts as one self-contained HTML file that opens offline."""

from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from toposcope.charts.chart import Chart
from toposcope.charts.theme import RUNS, RUNS_DARK, config
from toposcope.report.columns import to_columns, to_json
from toposcope.report.document import Document, Explorer

AXES = {
    "log": {
        "scale": {"type": "symlog", "constant": 1, "nice": False},
        "axis": {"values": [0, *(10**k for k in range(8))], "format": "~s"},
    },
    "tokens": {"field": "x", "title": "tokens", "scale": {"nice": False}, "axis": {"format": "~s"}},
    "loss": {
        "field": "x",
        "title": "loss, falling to the right",
        "scale": {"zero": False, "nice": False, "reverse": True},
        "axis": {},
    },
}
"""What takes the place of the training step on the x axis; ``x`` is a field that the page's script adds to rows."""
EMBED = {
    "renderer": "svg",
    "ast": True,  # expressions are interpreted: the page forbids the browser to compile text
    "logLevel": 1,
    "actions": {"export": True, "source": False, "compiled": False, "editor": False},
}
"""Options of Vega-Embed."""


def to_page(document: Document, vega: str) -> str:
    """Return a report as HTML; charts, their data, style and scripts are inside, and nothing is loaded.

    Parameters
    ----------
    document : Document
    vega : str
        Vega as a script, from `toposcope.charts.vega.bundle`.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("toposcope.report", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    charts = document.charts()
    return environment.get_template("page.html.j2").render(
        document=document,
        numbers={chart.name: i for i, chart in enumerate(charts, 1)},
        data=Markup(to_json(page_data(charts, document.explorer))),
        explored=_explored(document.explorer),
        colours={"light": RUNS, "dark": RUNS_DARK},
        style=_own("page.css"),
        script=_own("page.js"),
        vega=Markup(vega),
    )


def page_data(charts: list[Chart], explorer: Explorer | None = None) -> dict[str, Any]:
    """Return what the page's script reads: specifications of the charts, their data in columns, and the theme."""
    specs: dict[str, Any] = {}
    datasets: dict[str, Any] = {}
    for chart in charts:
        spec = chart.spec(titled=False)
        rows = spec.pop("datasets", {})
        datasets |= {name: to_columns(each) for name, each in rows.items()}
        del spec["config"]
        specs[chart.name] = _page_chart(spec, _main_first(spec, list(rows)))
    if explorer is not None:
        specs |= {name: _page_chart(spec, []) for name, spec in explorer.charts.items()}
    return {
        "charts": specs,
        "datasets": datasets,
        "config": {"light": config(), "dark": config(dark=True)},
        "axes": AXES,
        "embed": EMBED,
        "explorer": explorer and explorer.data,
    }


def _explored(explorer: Explorer | None) -> set[tuple[str, str]]:
    """Return the features and groups that the explorer has: rows of tables lead to them."""
    features = explorer.data["features"] if explorer else ()
    return {(feature["key"], group) for feature in features for group in feature["values"]}


def _main_first(spec: dict[str, Any], datasets: list[str]) -> list[str]:
    """Order a chart's data: first what most of its layers draw, whose values the page reads out and lists."""
    text = to_json(spec)
    return sorted(datasets, key=lambda name: -text.count(name))


def _page_chart(spec: dict[str, Any], datasets: list[str]) -> dict[str, Any]:
    """Return a specification, the names of its data, and which of the page's signals it has."""
    signals = {param["name"] for param in spec.get("params", ())}
    return {"spec": spec, "datasets": datasets, "cursor": "at" in signals, "hover": "hover" in signals}


def _own(name: str) -> Markup:
    return Markup(resources.files("toposcope.report").joinpath(name).read_text(encoding="utf-8"))
