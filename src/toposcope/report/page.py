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

from toposcope.charts.theme import AT_CURSOR, RUNS, RUNS_DARK, config
from toposcope.report.run_columns import N_COLOURS, run_groups

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


_THOUSANDS = "format(datum.value, '~s')"
_TIME = (
    "datum.value >= 7200 ? format(datum.value / 3600, '.3~r') + ' h' : "
    "datum.value >= 120 ? format(datum.value / 60, '.3~r') + ' min' : format(datum.value, '.3~r') + ' s'"
)
AXES = {
    "log": {
        "scale": {"type": "symlog", "constant": 1, "nice": False},
        "axis": {"values": [0, *(10**k for k in range(8))], "labelExpr": _THOUSANDS},
    },
    "tokens": {"field": "x", "title": "tokens", "scale": {"nice": False}, "axis": {"labelExpr": _THOUSANDS}},
    "time": {"field": "x", "title": "time since the start", "scale": {"nice": False}, "axis": {"labelExpr": _TIME}},
}
"""What takes the place of the training step on the x axis; ``x`` is a field that the page's script adds to rows."""
EMBED = {
    "renderer": "svg",
    "ast": True,  # expressions are interpreted: the page forbids the browser to compile text
    "logLevel": 1,
    "actions": {"export": True, "source": False, "compiled": False, "editor": False},
}
"""Options of Vega-Embed."""
DRAWN = ("log loss", "log validation_loss", "log learning_rate", "log grad_norm")  # on the live page's first screen
SCRIPTS = ("page", "scales", "lines", "drawing", "tables", "controls")  # in this order, `_START` last
_LIVE, _START = ("rows", "notifications", "live"), "start"


def to_page(document: "Document", vega: str) -> str:
    """Return a report as HTML; charts, their data, style and scripts are inside, and nothing is loaded."""
    charts = document.charts()
    explored = _explored(document.explorer.data if document.explorer else {})
    parts = {
        "style": Markup(run_colours() + page_part("page.css")),
        "script": Markup(page_script(live=False)),
        "vega": Markup(vega),
    }
    data = page_data(charts, document.explorer)
    return _page(document, data, live=False, numbers=_numbers(charts), explored=explored, **parts)


def run_colours() -> str:
    """Return the style of what has the colour of a run."""
    looks = {"light": RUNS, "dark": RUNS_DARK}
    colours = {look: " ".join(f"--run-{i}: {run};" for i, run in enumerate(runs)) for look, runs in looks.items()}
    rules = [f":root[data-theme={look}] {{ {runs} }}\n" for look, runs in colours.items()]
    rules += [f".run-{i} {{ background: var(--run-{i}); }}\n" for i in range(len(RUNS))]
    return "".join(rules)


def page_script(*, live: bool) -> str:
    """Return the script of the page, which Vega's precedes."""
    return "".join(page_part(f"script/{name}.js") for name in (*SCRIPTS, *(_LIVE if live else ()), _START))


def _page(document: Any, data: Any, **parts: Any) -> str:
    template = _environment().get_template("page.html.j2")
    return template.render(document=document, data=Markup(to_json(data)), **parts)


def to_live_page(title: str, charts: Mapping[str, Any], live: Mapping[str, Any]) -> str:
    """Return the page as the server sends it, next to its style and scripts; its rows follow in messages."""
    head, groups = run_groups(live["runs"])
    colours = {group: place % N_COLOURS for place, group in enumerate(dict.fromkeys(groups))}
    runs = [
        {"name": run, "group": group, "colour": colours[group], "steps": [], "covariates": [], "tokens": None}
        for run, group in zip(live["runs"], groups, strict=True)
    ]
    explorer = {
        "runs": runs,
        "coloured_by": head,
        "features": [{**each, "values": {"network": {}}, "notes": {}} for each in live["features"]],
        "layers": {run: {**of, "values": dict.fromkeys(of["keys"], "")} for run, of in live["layers"].items()},
        "diagrams": {},
        "notes": [],
    }
    data = {**_settings(), "charts": charts, "datasets": {}, "explorer": explorer, "live": live}
    document: dict[str, Any] = {"title": title, "sections": [], "explorer": {"data": explorer}, "opening": None}
    return _page(document, data, live={"drawn": DRAWN}, numbers={}, explored=set())


def live_parts(words: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts of a served page that are updated while it is open, by the id of their element."""
    module = _environment().get_template("live.html.j2").module
    return {name: str(getattr(module, name)(words)) for name in ("now", "runs")}


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
        del spec["config"]
        specs[chart.name] = page_chart(spec, rows)
        datasets |= {name: to_columns(rows[name]) for name in specs[chart.name]["datasets"]}
    if explorer is not None:
        specs |= {name: page_chart(spec, {}) for name, spec in explorer.charts.items()}
    return {**_settings(), "charts": specs, "datasets": datasets, "explorer": explorer and explorer.data}


def _settings() -> dict[str, Any]:
    looks = {name: {**config(dark=name == "dark"), "background": "transparent"} for name in ("light", "dark")}
    return {"config": looks, "axes": AXES, "embed": EMBED}


def _explored(explorer: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the features and groups that the explorer has: rows of tables lead to them."""
    features = explorer.get("features", ())
    return {(feature["key"], group) for feature in features for group in feature["values"]}


FIELDS = {
    "partial_rho": "rho given the covariates", "when": "checkpoint", "name": "kind of bar",
    "forecast": "predicted final loss", "middle": "median", "birth": "birth", "low": "low",
}  # fmt: skip
"""Names of fields that their axes do not name; those without a title are named by their own words."""


def page_chart(spec: dict[str, Any], datasets: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return a specification for the page's script, the names of its data and columns, and whether it has a cursor.

    Elsewhere a chart's cursor follows the pointer by itself; on the page, its marks draw the data ``cursor``, and the
    script hands these to all charts.
    """
    params = spec.get("params", [])
    stops = [view for param in params if param["name"] == "hover" for view in param["views"]]
    kept = {"params": [param for param in params if param["name"] != "hover"]} if params else {}
    layers = [_at_cursor(layer) for layer in spec.get("layer", ()) if layer.get("name") not in stops]
    on_page = {**spec, **kept, **({"layer": layers} if layers else {})}
    titles: dict[str, set[str]] = {}
    for field, title in _titles(spec):
        titles.setdefault(field, set()).add(title)
    columns = {**{field: next(iter(names)) for field, names in titles.items() if len(names) == 1}, **FIELDS}
    return {
        "spec": on_page,
        "datasets": _main_first(on_page, datasets),
        "columns": columns,
        "cursor": any(param["name"] == "at" for param in params),
    }


def _main_first(spec: dict[str, Any], datasets: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Order what is drawn: first what most layers draw, or the widest, whose values the page reads out and lists."""
    text = to_json(spec)
    uses = {name: n for name in datasets if (n := text.count(name))}
    columns = {name: len(datasets[name][0]) if datasets[name] else 0 for name in uses}
    return sorted(uses, key=lambda name: (columns[name] < 2, -uses[name], -columns[name]))


def _at_cursor(layer: dict[str, Any]) -> dict[str, Any]:
    if layer.get("transform") != [{"filter": AT_CURSOR}]:
        return layer
    return {**{key: value for key, value in layer.items() if key != "transform"}, "data": {"name": "cursor"}}


def _titles(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield field and title of every axis and legend that has one."""
    for channel in spec.get("encoding", {}).values():
        if isinstance(channel, Mapping) and isinstance(channel.get("title"), str) and "field" in channel:
            yield channel["field"], channel["title"]
    parts = [part for name in ("layer", "concat", "hconcat", "vconcat") for part in spec.get(name, ())]
    for part in [*parts, *([spec["spec"]] if "spec" in spec else [])]:
        yield from _titles(part)


def page_part(name: str) -> str:
    """Return a style or script of the page."""
    return resources.files("toposcope.report").joinpath(name).read_text(encoding="utf-8")
