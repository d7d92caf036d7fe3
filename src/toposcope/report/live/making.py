"""Makes charts and analyses for the server in another process: ``python -m toposcope.report.live.making``."""

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from toposcope.errors import ToposcopeError
from toposcope.report.page import to_json


def assets() -> dict[str, Any]:
    """Return the content of `toposcope.report.live.assets.Assets`."""
    from toposcope.charts.vega import bundle

    return {**assets_without_vega(), "vega": bundle().decode()}


def assets_without_vega() -> dict[str, Any]:
    """Return the assets without Vega, which takes longest to make."""
    from toposcope.probes import probe_types
    from toposcope.report.charts.explorer import MAX_MAP_HEIGHT, explorer_charts
    from toposcope.report.charts.live import live_charts
    from toposcope.report.explorer import LAYER_QUANTITIES
    from toposcope.report.headline import HEADLINES
    from toposcope.report.page import page_chart

    charts = {**explorer_charts([], log_steps=False), **live_charts()}
    return {
        "charts": {name: page_chart(spec, {}) for name, spec in charts.items()},
        "names": {headline.key: headline.name for headline in HEADLINES},
        "defaults": {name: _defaults(cls) for name, cls in probe_types().items()},
        "layer_quantities": list(LAYER_QUANTITIES),
        "map_height": MAX_MAP_HEIGHT,
    }


def _defaults(cls: Any) -> dict[str, Any]:
    try:
        values = msgspec.to_builtins(cls())
    except TypeError:  # a probe with a required option: its label shows all options
        return {}
    return {name: value for name, value in values.items() if name != "name"}


def analysis(directory: Path) -> dict[str, Any]:
    """Return the sections of a study's report as HTML, their charts, and the data of the explorer."""
    from toposcope.report.document import Document
    from toposcope.report.explorer import explorer_data
    from toposcope.report.own_run import opening, top_charts
    from toposcope.report.page import page_data, to_fragment
    from toposcope.report.writing import study_page
    from toposcope.study import Study

    page = study_page(Study.load(directory))
    composed = page.compose(first=top_charts, vega=False)
    top = opening(page.data, composed.first)
    about_topology = top.then or top  # of a run, the live page itself says the rest
    document = Document(page.data.declaration.name, composed.summary, composed.sections, about_topology)
    data = page_data(document.charts())
    explorer = explorer_data(page.data)
    html = to_fragment(document, explorer)
    return {
        "html": html,
        "charts": data["charts"],
        "datasets": data["datasets"],
        "explorer": {key: explorer[key] for key in ("runs", "features", "diagrams", "notes")},
        "sections": [[section.anchor, section.title] for section in composed.sections],
    }


def main() -> None:
    """Print the requested part as JSON; on failure, one line on standard error."""
    what, *places = sys.argv[1:]
    if what == "analysis" and hasattr(os, "nice"):
        os.nice(10)  # training has priority
    try:
        made = assets() if what == "assets" else analysis(Path(places[0]))
    except ToposcopeError as error:
        sys.exit(f"Error: {error}")
    sys.stdout.write(to_json(made))


if __name__ == "__main__":
    main()
