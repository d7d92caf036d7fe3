"""Figures as files, several at a time; imports little, since every worker process imports it."""

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from toposcope.engine.pool import TaskFailure, Workers, shared
from toposcope.errors import ToposcopeError

MAX_WORKERS = 4
PLACES = 7
"""Decimals of a place in a figure, whose width is 1."""

Files = dict[str, bytes]
"""Kind of file -> its bytes."""


def render_all(
    figures: Iterable[tuple[str, Figure]],
    style: Mapping[Any, Any],
    omitted_metadata: Mapping[str, Mapping[str, None]],
    workers: int | None = None,
) -> dict[str, Files]:
    """Render figures as SVG, PNG and PDF, several at a time; the next ones are drawn meanwhile.

    Parameters
    ----------
    figures : iterable of (str, Figure)
        Names and figures.
    style : mapping
        Matplotlib's parameters.
    omitted_metadata : mapping
        Kind of file -> metadata to leave out, so that equal figures give equal bytes.
    workers : int, optional
        As many as there are processors, at most 4; with 1 this process renders.

    Returns
    -------
    dict
        Name -> kind of file -> bytes, in the order of the figures.

    Raises
    ------
    ToposcopeError
        If rendering a figure kills its process.
    """
    names: list[str] = []

    def tasks() -> Iterator[tuple[str, Figure]]:
        for name, figure in figures:
            names.append(name)
            yield name, figure

    files: dict[str, Files] = {}
    count = min(os.cpu_count() or 1, MAX_WORKERS) if workers is None else workers
    with Workers(count, shared=(dict(style), {kind: dict(keys) for kind, keys in omitted_metadata.items()})) as engine:
        for (name, _), result in engine.run(_render_task, tasks()):
            if isinstance(result, TaskFailure):
                raise ToposcopeError(f"figure {name}: {result.message}")
            files[name] = result
    return {name: files[name] for name in names}


def _render_task(task: tuple[str, Figure]) -> Files:
    return render(task[1], *shared())


def render(figure: Figure, style: dict[Any, Any], omitted_metadata: Mapping[str, Mapping[str, None]]) -> Files:
    """Render one figure as every kind of file: laid out once, drawn once for each kind."""
    with mpl.rc_context(style):
        _lay_out(figure)
        svg, png, pdf = io.StringIO(), io.BytesIO(), io.BytesIO()
        FigureCanvasSVG(figure).print_svg(svg, metadata=omitted_metadata["svg"])  # type: ignore[no-untyped-call]
        figure.dpi = mpl.rcParams["savefig.dpi"]
        FigureCanvasAgg(figure).print_png(png, metadata=omitted_metadata["png"])  # type: ignore[no-untyped-call]
        FigureCanvasPdf(figure).print_pdf(pdf, metadata=omitted_metadata["pdf"])  # type: ignore[no-untyped-call]
    return {"svg": svg.getvalue().encode(), "png": png.getvalue(), "pdf": pdf.getvalue()}


def _lay_out(figure: Figure) -> None:
    """Lay a figure out for good.

    The solver's last digits depend on what the process laid out before, and names inside an SVG are hashes of places:
    places are rounded, so that a figure is the same whichever process renders it.
    """
    engine = figure.get_layout_engine()
    if engine is None:
        return
    engine.execute(figure)
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(float(p), PLACES) for p in axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height))
