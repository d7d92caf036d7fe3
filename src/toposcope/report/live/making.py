"""Makes charts for the server in another process: ``python -m toposcope.report.live.making``."""

import sys
from typing import Any

import msgspec

from toposcope.errors import ToposcopeError
from toposcope.report.page import to_json

EXPLORED = ("explore-feature", "layer-map", "layer-lines")  # charts of the explorer that a served page has


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

    explored = explorer_charts([], log_steps=False)
    charts = {**{name: explored[name] for name in EXPLORED}, **live_charts()}
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


def main() -> None:
    """Print the assets as JSON; on failure, one line on standard error."""
    try:
        made = assets()
    except ToposcopeError as error:
        sys.exit(f"Error: {error}")
    sys.stdout.write(to_json(made))


if __name__ == "__main__":
    main()
