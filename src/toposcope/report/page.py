"""The page: a document and its figures as one self-contained HTML file."""

import base64
from collections.abc import Mapping
from importlib import resources
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from toposcope.report.document import Document

KINDS = ("svg", "png", "pdf")
"""Formats in which every figure is written."""
Rendered = Mapping[str, Mapping[str, bytes]]
"""Figure name -> kind of file -> its bytes."""


def to_page(document: Document, rendered: Rendered) -> str:
    """Return a report as HTML; figures, style and script are inside.

    Parameters
    ----------
    document : Document
    rendered : mapping
        The bytes of every figure the document shows; of SVG and PNG the smaller goes into the page.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("toposcope.report", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.j2").render(
        document=document,
        sources={name: _source(files) for name, files in rendered.items()},
        kinds=KINDS,
        style=_own("page.css"),
        script=_own("page.js"),
    )


def _own(name: str) -> Markup:
    return Markup(resources.files("toposcope.report").joinpath(name).read_text(encoding="utf-8"))


def _source(files: Mapping[str, bytes]) -> str:
    """Return the smaller of SVG, as quoted text, and PNG, in base 64."""
    svg = "data:image/svg+xml," + quote(files["svg"].decode(), safe=" !'()*,-./:;=?@_~$&+")
    png = "data:image/png;base64," + base64.b64encode(files["png"]).decode()
    return min(svg, png, key=len)
