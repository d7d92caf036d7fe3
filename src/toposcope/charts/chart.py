"""A chart: an Altair figure with its title, caption and text alternative, shown anywhere and written as a file."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import altair as alt

from toposcope.charts.theme import config
from toposcope.charts.vega import Kind, render, without_object_members

Figure = alt.Chart | alt.LayerChart | alt.FacetChart | alt.ConcatChart | alt.HConcatChart | alt.VConcatChart
MIME = "application/vnd.vegalite.v6+json"
_MAX_LINE = 90  # characters of a line of a title or caption in a file


@dataclass(frozen=True, eq=False)
class Chart:
    """A figure and the words that go with it.

    In a notebook it shows itself; `save` writes it as SVG, PNG or PDF.

    Attributes
    ----------
    name : str
        Of its files and its anchor: lower case, words joined by hyphens.
    title : str
        What is seen: "H0 total rises with the step in all three runs".
    caption : str
        How to read it, in at most two sentences.
    alt : str
        Text alternative: what kind of chart, of what, and its finding.
    figure : altair chart
        A page draws it at the width of its place and sets its data anew when runs are switched on or off, if the data
        have a field ``run``; a field ``step`` on the x axis follows the page's x axis.
    """

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure

    @property
    def has_panels(self) -> bool:
        """Whether the figure is of several panels, for which a page makes room."""
        return not isinstance(self.figure, alt.Chart | alt.LayerChart)

    def spec(self, *, titled: bool = True) -> dict[str, Any]:
        """Return the Vega-Lite specification.

        Parameters
        ----------
        titled : bool
            Put title and caption into the figure.
        """
        title = {"text": _lines(self.title), "subtitle": _lines(self.caption)} if titled and self.title else None
        return {**self._plain, **({"title": title} if title else {}), "config": config(dark=False)}

    @cached_property
    def _plain(self) -> dict[str, Any]:
        """The specification without title and theme."""
        self.figure.description = self.alt  # in place: Altair would copy all of the figure
        with alt.data_transformers.enable("default", max_rows=None, consolidate_datasets=True):
            spec: dict[str, Any] = self.figure.to_dict(validate=False)
        return spec

    def render(self, kind: Kind) -> bytes:
        """Return the chart as a file's bytes; equal charts give equal bytes.

        Raises
        ------
        ToposcopeError
            If `kind` is not "svg", "png" or "pdf".
        """
        return render(self.spec(), kind)

    def save(self, path: str) -> None:
        """Write the chart; the name's ending says as what: ``.svg``, ``.png`` or ``.pdf``.

        Raises
        ------
        ToposcopeError
            If the ending is another, or the file cannot be written.
        """
        from pathlib import Path

        from toposcope.files import write_bytes

        write_bytes(Path(path), self.render(Path(path).suffix.lower().lstrip(".")))  # type: ignore[arg-type]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Show the chart in a notebook: interactive where it can be, else as SVG."""
        spec = without_object_members(self.spec())
        return {MIME: spec, "image/svg+xml": self.render("svg").decode(), "text/plain": self.alt}


def _lines(text: str) -> list[str]:
    """Break a text into lines, since a figure does not do that itself."""
    return [line.strip() for line in re.findall(rf".{{1,{_MAX_LINE}}}(?:\s|$)|\S+", text)]
