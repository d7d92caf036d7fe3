"""The files of a page's charts, and Vega: made in other processes while the next charts are drawn."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from toposcope.charts.chart import Chart
from toposcope.charts.vega import Kind, bundle, render
from toposcope.engine.pool import TaskFailure, Workers
from toposcope.errors import ToposcopeError

MAX_WORKERS = 2
Task = tuple[str, Kind | None, dict[str, Any]]
"""A chart's name, a kind of file and the specification; without a kind, Vega itself."""


@dataclass
class Rendered:
    """What a page needs beside its text.

    Attributes
    ----------
    files : dict
        Name of a chart -> kind of file -> bytes.
    vega : str
        Vega as a script; empty without charts.
    """

    files: dict[str, dict[Kind, bytes]] = field(default_factory=dict)
    vega: str = ""


def render_all(charts: Iterable[Chart], kinds: Sequence[Kind], workers: int = 1) -> Rendered:
    """Render charts, and bundle Vega if there are any.

    Parameters
    ----------
    charts : iterable of Chart
        Read one by one, as workers become free: they may be drawn meanwhile.
    kinds : sequence of "svg", "png", "pdf"
    workers : int
        With 1, this process does it.

    Raises
    ------
    ToposcopeError
        If rendering a chart kills its process.
    """
    rendered, names = Rendered(), list[str]()

    def tasks() -> Iterator[Task]:
        for chart in charts:
            if not names:
                yield "", None, {}
            names.append(chart.name)
            yield from ((chart.name, kind, chart.spec()) for kind in kinds)

    with Workers(min(workers, os.cpu_count() or 1, MAX_WORKERS)) as engine:
        for (name, kind, _), result in engine.run(_render, tasks()):
            if isinstance(result, TaskFailure):
                raise ToposcopeError(f"figure {name}: {result.message}")
            if kind is None:
                rendered.vega = result.decode()
            else:
                rendered.files.setdefault(name, {})[kind] = result
    rendered.files = {name: rendered.files[name] for name in names if name in rendered.files}
    return rendered


def _render(task: Task) -> bytes:
    _, kind, spec = task
    return bundle() if kind is None else render(spec, kind)
