"""Specifications as files, and Vega for pages: vl-convert alone, so that worker processes start quickly."""

import hashlib
import os
import re
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from toposcope.errors import ToposcopeError

Kind = Literal["svg", "png", "pdf"]
KINDS: tuple[Kind, ...] = ("svg", "png", "pdf")
Task = tuple[str, Kind | None, dict[str, Any]]
"""A chart's name, a kind of file and the specification; without a kind, Vega itself is asked for."""
_VERSION = "6.4"  # of Vega-Lite, the one that Altair 6 writes
_PIXELS_PER_INCH = 144
_OBJECT_MEMBERS = frozenset(
    f"__{prefix}{accessor}__" for prefix in ("define", "lookup") for accessor in ("Getter", "Setter")
) | {
    *("__proto__", "constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString"),
    *("toString", "valueOf"),
}  # fmt: skip
"""What every object of JavaScript has; Vega takes a run or layer of such a name for the member."""
_LICENCES = Path(__file__).with_name("vega_licences.txt")
_OFFERED = "window.vegaEmbed = vegaEmbed; window.vega = vega;"


def render(spec: dict[str, Any], kind: Kind) -> bytes:
    """Return a Vega-Lite specification as a file's bytes; equal specifications give equal bytes."""
    import vl_convert

    spec = without_object_members(spec)
    if kind == "svg":
        return _renumbered(vl_convert.vegalite_to_svg(spec, vl_version=_VERSION)).encode()
    if kind == "png":
        return bytes(vl_convert.vegalite_to_png(spec, vl_version=_VERSION, ppi=_PIXELS_PER_INCH))
    if kind == "pdf":
        return bytes(vl_convert.vegalite_to_pdf(spec, vl_version=_VERSION))
    raise ToposcopeError(f"a chart is written as {', '.join(KINDS)}, not as {kind!r}")


def without_object_members(value: Any) -> Any:
    """Return a specification whose texts are no members of JavaScript's objects: an invisible character ends them."""
    if isinstance(value, str):
        return f"{value}\u2060" if value in _OBJECT_MEMBERS else value
    if isinstance(value, dict):
        return {without_object_members(key): without_object_members(each) for key, each in value.items()}
    return [without_object_members(each) for each in value] if isinstance(value, list | tuple) else value


@cache
def bundle() -> bytes:
    """Return Vega, Vega-Lite and Vega-Embed as one script, which offers ``window.vegaEmbed`` and ``window.vega``.

    It begins with their licences. Made in 1.5 s and the same for every page, it is kept in the cache folder.
    """
    from toposcope.files import write_bytes

    folder = Path(os.environ.get("TOPOSCOPE_CACHE") or "~/.cache/toposcope").expanduser()
    licences = f"/*!\n{_LICENCES.read_text(encoding='utf-8')}*/\n"
    made_by = f"{_VERSION} {metadata.version('vl-convert-python')} {_OFFERED} {licences}"
    file = folder / f"vega-{hashlib.sha256(made_by.encode()).hexdigest()[:20]}.js"
    with suppress(OSError):
        digest, _, script = file.read_bytes().partition(b"\n")
        if hashlib.sha256(script).hexdigest().encode() == digest:
            return script
    import vl_convert

    script = bytes((licences + vl_convert.javascript_bundle(_OFFERED).replace("</script", "<\\/script")).encode())
    with suppress(ToposcopeError):  # without a cache, the next page takes longer
        write_bytes(file, hashlib.sha256(script).hexdigest().encode() + b"\n" + script)
    return script


def load() -> None:
    """Have everything loaded that `render` needs, which takes as long as several charts."""
    mark = {"data": {"values": [{}]}, "mark": "point"}
    render(mark, "svg")


def make(task: Task) -> bytes:
    """Return what a task asks for; processes that run it import this module alone."""
    _, kind, spec = task
    return bundle() if kind is None else render(spec, kind)


def _renumbered(svg: str) -> str:
    """Count clips and gradients from 0; Vega goes on counting from one chart of a process to the next."""
    names = dict.fromkeys(re.findall(r'<(?:clipPath|linearGradient|radialGradient) id="([^"]+)"', svg))
    for i, name in enumerate(names):
        kind = name.rstrip("0123456789")
        for before, after in (('id="', '"'), ("url(#", ")")):
            svg = svg.replace(f"{before}{name}{after}", f"{before}{kind}-{i}{after}")
    return svg
