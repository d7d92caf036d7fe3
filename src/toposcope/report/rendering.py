"""Figures as files, several at a time; imports little, since every process of its own begins with that."""

import io
import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from multiprocessing.connection import wait
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

MOST_PROCESSES = 4
PLACES = 7
"""Decimals of a place in a figure, whose width is 1."""

Files = dict[str, bytes]
"""Kind of file -> its bytes."""


class Renderer(AbstractContextManager["Renderer"]):
    """Processes that render figures as SVG, PNG and PDF; they begin at once, and are warm when the figures are drawn.

    Parameters
    ----------
    style : mapping
        Matplotlib's parameters.
    nameless : mapping
        By kind, the metadata to be left out, so that equal figures give equal bytes.
    processes : int, optional
        As many as there are processors, at most 4; with 1 this process renders.
    """

    def __init__(
        self, style: Mapping[str, Any], nameless: Mapping[str, Mapping[str, None]], processes: int | None = None
    ) -> None:
        self._arguments = (dict(style), {kind: dict(left_out) for kind, left_out in nameless.items()})
        self._waiting: dict[str, tuple[Figure, Future[Files] | None]] = {}
        count = min(os.cpu_count() or 1, MOST_PROCESSES) if processes is None else processes
        self._executor: ProcessPoolExecutor | None = None
        if count > 1:
            self._executor = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin)
            for _ in range(count):
                self._executor.submit(_begin_once)

    def add(self, name: str, figure: Figure) -> None:
        """Begin to render a figure."""
        future = None
        if self._executor is not None:
            try:
                future = self._executor.submit(render, figure, *self._arguments)
            except BrokenProcessPool:
                self._executor = None
        self._waiting[name] = (figure, future)

    def finish(self) -> dict[str, Files]:
        """Return all files by the name of the figure, in the order added."""
        return {name: self._result(*waiting) for name, waiting in self._waiting.items()}

    def _result(self, figure: Figure, future: Future[Files] | None) -> Files:
        try:
            if future is not None:
                return future.result()
        except BrokenProcessPool:  # killed, perhaps for want of memory: one at a time needs less
            self._executor = None
        return render(figure, *self._arguments)

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)


def render(figure: Figure, style: dict[Any, Any], nameless: Mapping[str, Mapping[str, None]]) -> Files:
    """Render one figure as every kind of file: laid out once, drawn once for each kind."""
    with mpl.rc_context(style):
        _lay_out(figure)
        svg, png, pdf = io.StringIO(), io.BytesIO(), io.BytesIO()
        FigureCanvasSVG(figure).print_svg(svg, metadata=nameless["svg"])  # type: ignore[no-untyped-call]
        figure.dpi = mpl.rcParams["savefig.dpi"]
        FigureCanvasAgg(figure).print_png(png, metadata=nameless["png"])  # type: ignore[no-untyped-call]
        FigureCanvasPdf(figure).print_pdf(pdf, metadata=nameless["pdf"])  # type: ignore[no-untyped-call]
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


def _begin() -> None:
    """Prepare a process: no reaction to Ctrl-C, which is its parent's, and no life after that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _begin_once() -> None:
    """Nothing; whoever runs it has begun."""


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
