"""The page: a document and its charts as one self-contained HTML file that opens offline."""

from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from toposcope.charts.chart import Chart
from toposcope.charts.theme import config
from toposcope.report.columns import to_columns, to_json
from toposcope.report.document import Document, Explorer


def to_page(document: Document) -> str:
    """Return a report as HTML; charts, their data, style and scripts are inside, and nothing is loaded."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("toposcope.report", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    charts = document.charts()
    return environment.get_template("page.html.j2").render(
        document=document,
        numbers={chart.name: i for i, chart in enumerate(charts, 1)},
        data=Markup(to_json(page_data(charts, document.explorer))),
        style=_own("page.css"),
        script=_own("page.js"),
        vega=Markup(vega_bundle()) if charts else "",
    )


def page_data(charts: list[Chart], explorer: Explorer | None = None) -> dict[str, Any]:
    """Return what the page's script reads: specifications of the charts, their data in columns, and the theme."""
    specs: dict[str, Any] = {}
    datasets: dict[str, Any] = {}
    for chart in charts:
        spec = chart.spec(titled=False)
        datasets |= {name: to_columns(rows) for name, rows in spec.pop("datasets", {}).items()}
        del spec["config"]
        specs[chart.name] = spec
    if explorer is not None:
        specs |= explorer.charts
    return {
        "charts": specs,
        "datasets": datasets,
        "config": {"light": config(), "dark": config(dark=True)},
        "explorer": explorer and explorer.data,
    }


@cache
def vega_bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script that offers ``window.vegaEmbed`` and ``window.vega``."""
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed; window.vega = vega;")
    return bundle.replace("</script", "<\\/script")


def _own(name: str) -> Markup:
    return Markup(resources.files("toposcope.report").joinpath(name).read_text(encoding="utf-8"))
