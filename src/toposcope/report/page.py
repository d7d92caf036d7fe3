"""The page: a document and its charts as one self-contained HTML file that opens offline."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup, escape

from toposcope.charts.theme import RUNS, RUNS_DARK, config

if TYPE_CHECKING:
    from toposcope.charts.chart import Chart
    from toposcope.report.document import Document, Explorer


DIGITS = 6  # significant digits of a number on the page; the tables next to it have all


def to_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return rows as columns."""
    fields = dict.fromkeys(field for row in rows for field in row)
    return {field: [_rounded(row.get(field)) for row in rows] for field in fields}


def to_json(value: Any) -> str:
    """Return compact JSON that may stand inside a script of a page."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


AXES = {
    "log": {
        "scale": {"type": "symlog", "constant": 1, "nice": False},
        "axis": {"values": [0, *(10**k for k in range(8))], "labelExpr": "format(datum.value, '~s')"},
    },
    "tokens": {
        "field": "x",
        "title": "tokens",
        "scale": {"nice": False},
        "axis": {"labelExpr": "format(datum.value, '~s')"},
    },
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
_START = "// ---- Start\n"  # before this line of the page's script, that of the served page is put in


def to_page(document: "Document", vega: str) -> str:
    """Return a report as HTML; charts, their data, style and scripts are inside, and nothing is loaded."""
    charts = document.charts()
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            document=document,
            numbers=_numbers(charts),
            data=Markup(to_json(page_data(charts, document.explorer))),
            explored=_explored(document.explorer.data if document.explorer else {}),
            colours={"light": RUNS, "dark": RUNS_DARK},
            style=_own("page.css"),
            script=_own("page.js"),
            vega=Markup(vega),
            live=False,
        )
    )


def to_live_page(
    title: str, charts: Mapping[str, Any], vega: str, live: Mapping[str, Any], analysis: Mapping[str, Any] | None
) -> str:
    """Return the page as the server sends it; its rows follow in messages."""
    made = analysis or {"html": "", "charts": {}, "datasets": {}, "sections": [], "explorer": {}}
    analysed = {"runs": [], "features": [], "diagrams": {}, "notes": [], "targets": "loss", **made["explorer"]}
    of_run = {run["name"]: run for run in analysed["runs"]}
    of_feature = {each["key"]: each for each in analysed["features"]}
    no_run: dict[str, Any] = {"steps": [], "covariates": [], "tokens": None}
    no_feature: dict[str, Any] = {"values": {"network": {}}, "notes": {}}
    explorer = {
        **analysed,
        "runs": [
            {**no_run, **of_run.get(run, {}), "name": run, "colour": place} for place, run in enumerate(live["runs"])
        ],
        "features": [{**each, **no_feature, **of_feature.get(each["key"], {})} for each in live["features"]],
        "layers": {run: {**of, "values": dict.fromkeys(of["keys"], "")} for run, of in live["layers"].items()},
    }
    data = {
        **_settings(),
        "charts": {**charts, **made["charts"]},
        "datasets": made["datasets"],
        "explorer": explorer,
        "live": live,
    }
    before, start = _own("page.js").split(_START)
    sections = [{"anchor": anchor, "title": name} for anchor, name in made["sections"]]
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            document={
                "title": title,
                "sections": sections,
                "explorer": {"data": explorer},
                "opening": None,
                "lead": [],
            },
            numbers={},
            data=Markup(to_json(data)),
            explored=set(),
            colours={"light": RUNS, "dark": RUNS_DARK},
            style=_own("page.css"),
            script=Markup("".join([before, _own("live/live.js"), _START, start])),
            vega=Markup(vega),
            live={"html": Markup(made["html"])},
        )
    )


def live_parts(words: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts of a served page that are updated while it is open, by the id of their element."""
    module = _environment().get_template("live.html.j2").module
    return {name: str(getattr(module, name)(words)) for name in ("now", "runs")}


def to_fragment(document: "Document", explorer: Mapping[str, Any]) -> str:
    """Return the verdict and the sections of a report as a piece of a page."""
    return (
        _environment()
        .get_template("fragment.html.j2")
        .render(
            document=document,
            numbers=_numbers(document.charts()),
            explored=_explored(explorer),
            targets=explorer["targets"],
        )
    )


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.PackageLoader("toposcope.report", ".")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["glossed"] = glossed
    return environment


def glossed(text: str, *, focusable: bool = True) -> Markup:
    """Return text in which verdicts show what they mean: to a pointer, and where they can be focused also to keys."""
    from toposcope.analysis.verdict import GLOSSES  # the server, which imports nothing heavy, has no verdicts

    tab = ' tabindex="0"' if focusable else ""
    verdict = rf"\b({'|'.join(map(re.escape, GLOSSES))})\b"
    return Markup(re.sub(verdict, lambda m: f'<abbr title="{GLOSSES[m[0]]}"{tab}>{m[0]}</abbr>', str(escape(text))))


def _numbers(charts: "list[Chart]") -> dict[str, int]:
    return {chart.name: i for i, chart in enumerate(charts, 1)}


def page_data(charts: "list[Chart]", explorer: "Explorer | None" = None) -> dict[str, Any]:
    """Return what the page's script reads: specifications of the charts, their data in columns, and the theme."""
    specs: dict[str, Any] = {}
    datasets: dict[str, Any] = {}
    for chart in charts:
        spec = chart.spec(titled=False)
        rows = spec.pop("datasets", {})
        datasets |= {name: to_columns(each) for name, each in rows.items()}
        del spec["config"]
        specs[chart.name] = page_chart(spec, _main_first(spec, rows))
    if explorer is not None:
        specs |= {name: page_chart(spec, []) for name, spec in explorer.charts.items()}
    return {
        **_settings(),
        "charts": specs,
        "datasets": datasets,
        "explorer": explorer and explorer.data,
    }


def _settings() -> dict[str, Any]:
    looks = {name: {**config(dark=name == "dark"), "background": "transparent"} for name in ("light", "dark")}
    return {"config": looks, "axes": AXES, "embed": EMBED}


def _explored(explorer: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the features and groups that the explorer has: rows of tables lead to them."""
    features = explorer.get("features", ())
    return {(feature["key"], group) for feature in features for group in feature["values"]}


def _main_first(spec: dict[str, Any], datasets: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Order a chart's data: first what most layers draw, or the widest, whose values the page reads out and lists."""
    text = to_json(spec)
    columns = {name: len(rows[0]) if rows else 0 for name, rows in datasets.items()}
    return sorted(datasets, key=lambda name: (columns[name] < 2, -text.count(name), -columns[name]))


FIELDS = {
    "partial_rho": "rho given the covariates", "when": "checkpoint", "place": "bar", "name": "kind of bar",
    "forecast": "predicted final loss", "middle": "median", "birth": "birth",
}  # fmt: skip
"""Names of fields that their axes do not name; those without a title are named by their own words."""


def page_chart(spec: dict[str, Any], datasets: list[str]) -> dict[str, Any]:
    """Return a specification, the names of its data and their columns, and which of the page's signals it has."""
    signals = {param["name"] for param in spec.get("params", ())}
    titles: dict[str, set[str]] = {}
    for field, title in _titles(spec):
        titles.setdefault(field, set()).add(title)
    columns = {**{field: next(iter(names)) for field, names in titles.items() if len(names) == 1}, **FIELDS}
    return {
        "spec": spec,
        "datasets": datasets,
        "columns": columns,
        "cursor": "at" in signals,
        "hover": "hover" in signals,
    }


def _titles(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield field and title of every axis and legend that has one."""
    for channel in spec.get("encoding", {}).values():
        if isinstance(channel, Mapping) and isinstance(channel.get("title"), str) and "field" in channel:
            yield channel["field"], channel["title"]
    parts = [part for name in ("layer", "concat", "hconcat", "vconcat") for part in spec.get(name, ())]
    for part in [*parts, *([spec["spec"]] if "spec" in spec else [])]:
        yield from _titles(part)


def _own(name: str) -> Markup:
    return Markup(resources.files("toposcope.report").joinpath(name).read_text(encoding="utf-8"))
