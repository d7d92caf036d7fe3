"""The files of a page's charts, and Vega: made in other processes while the next charts are drawn."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from toposcope.charts.chart import Chart
from toposcope.charts.vega import Kind, Task, load, make
from toposcope.engine.pool import TaskFailure, Workers
from toposcope.errors import ToposcopeError

MAX_WORKERS = 2
MAX_QUEUE = 1000
"""Charts that wait for a process: all of a page, which holds them anyway, so that drawing never waits."""


@dataclass
class Rendered:
    """What a page needs beside its text.

    Attributes
    ----------
    files : dict
        Name of a chart -> kind of file -> bytes.
    vega : str
        Vega as a script.
    """

    files: dict[str, dict[Kind, bytes]] = field(default_factory=dict)
    vega: str = ""


def rendering_engine(workers: int = 1) -> Workers:
    """Return an engine for `render_all`; its processes get ready at once, while the first chart is drawn."""
    engine = Workers(min(workers, os.cpu_count() or 1, MAX_WORKERS), queue=MAX_QUEUE)
    engine.start(load)
    return engine


def render_all(charts: Iterable[Chart], kinds: Sequence[Kind], engine: Workers, *, vega: bool = True) -> Rendered:
    """Render charts, and bundle Vega.

    Parameters
    ----------
    charts : iterable of Chart
        Read one by one: other processes render the first while the next are drawn.
    kinds : sequence of "svg", "png", "pdf"
    engine : Workers
        From `rendering_engine`.
    vega : bool
        Whether to bundle Vega.

    Raises
    ------
    ToposcopeError
        If rendering a chart kills its process.
    """
    rendered, names = Rendered(), list[str]()

    def tasks() -> Iterator[Task]:
        if vega:
            yield "", None, {}  # first: it takes as long as a dozen charts, and needs none of the tables
        for chart in charts:
            names.append(chart.name)
            yield from ((chart.name, kind, chart.spec()) for kind in kinds)

    for (name, kind, _), result in engine.run(make, tasks()):
        if isinstance(result, TaskFailure):
            raise ToposcopeError(f"figure {name}: {result.message}")
        if kind is None:
            rendered.vega = result.decode()
        else:
            rendered.files.setdefault(name, {})[kind] = result
    rendered.files = {name: rendered.files[name] for name in names if name in rendered.files}
    return rendered
