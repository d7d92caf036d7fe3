"""What every chart of a page has to be, for tests."""

import re
from typing import Any
from xml.etree import ElementTree

from toposcope.charts.chart import Chart

MAX_TITLE = 110


def check_chart(chart: Chart) -> None:
    """Check the words of a chart, and that it can be drawn."""
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", chart.name), chart.name
    assert 0 < len(chart.title) <= MAX_TITLE, chart.title
    caption = re.sub(r" \d+ (of \d+ runs|checkpoints of a run) are shown[^.]*\.", "", chart.caption)
    assert len(re.findall(r"\.(?:\s|$)", caption)) <= 2, caption
    assert len(chart.alt) > 40
    assert not re.search(r"\bnan\b|None|\binf\b|\{|  ", chart.title + chart.caption + chart.alt), chart.title
    assert ElementTree.fromstring(chart.render("svg")).tag.endswith("svg")


def rows_of_chart(chart: Chart | None, *fields: str) -> list[dict[str, Any]]:
    """Return the rows of a chart's data that have all these fields."""
    assert chart is not None
    datasets = chart.spec().get("datasets", {}).values()
    return [row for rows in datasets for row in rows if set(fields) <= row.keys()]


def encodings(chart: Chart) -> dict[str, list[Any]]:
    """Return all encodings of a chart by channel."""
    found: dict[str, list[Any]] = {}

    def visit(part: Any) -> None:
        if isinstance(part, dict):
            for channel, value in part.get("encoding", {}).items():
                found.setdefault(channel, []).append(value)
            for value in part.values():
                visit(value)
        elif isinstance(part, list):
            for value in part:
                visit(value)

    visit({key: value for key, value in chart.spec().items() if key not in ("datasets", "config")})
    return found
