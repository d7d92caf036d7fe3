"""The parts of the served page that need heavy libraries: specifications of charts, Vega, names of features.

A short-lived process makes them once per version, and they are stored in the cache folder.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from toposcope.errors import ToposcopeError
from toposcope.files import write_bytes
from toposcope.version import __version__

MADE_BY = ("altair", "vl-convert-python")
SOURCES = (
    ("toposcope.report", "headline.py"),
    ("toposcope.report.charts", "explorer.py"),
    ("toposcope.report.charts", "live.py"),
    ("toposcope.report.live", "making.py"),
    ("toposcope.charts", "training.py"),
    ("toposcope.charts", "vega.py"),
)
"""Modules on which the assets depend; if one changes, they are made again."""
MAX_SECONDS = 120


@dataclass(frozen=True)
class Assets:
    """The parts that every served page shares."""

    charts: Mapping[str, Any]  # charts without runs, by name, in the form of `toposcope.report.page.page_data`
    vega: str  # vega as a script
    names: Mapping[str, str]  # keys of the main features, in order, and their names in the report
    defaults: Mapping[str, Mapping[str, Any]]  # options of each probe, in order, with their default values
    layer_quantities: list[str]  # quantities of layers, the main ones first
    map_height: int  # height of the layer map in pixels

    def label(self, probe: str, options: str) -> str:
        """Return the label of a probe: its name, and the options that differ from their defaults."""
        try:
            given = json.loads(options or "{}")
        except ValueError:
            return probe
        defaults = self.defaults.get(probe, {})
        ordered = [name for name in defaults if name in given] + [name for name in given if name not in defaults]
        changed = [name for name in ordered if name not in defaults or given[name] != defaults[name]]
        texts = (f"{name}={json.dumps(given[name], separators=(',', ':')).strip(chr(34))}" for name in changed)
        text = ",".join(texts)
        return f"{probe}:{text}" if text else probe

    def charts_of(self, runs: list[str], n_layers: int) -> dict[str, Any]:
        """Return the charts for runs, which are coloured by their position, and a number of layers."""
        charts = {name: {**chart, "spec": _with_runs(chart["spec"], runs)} for name, chart in self.charts.items()}
        charts["layer-map"]["spec"]["height"] = {"step": max(3, min(20, self.map_height // max(1, n_layers)))}
        return charts


def _with_runs(part: Any, runs: list[str]) -> Any:
    if isinstance(part, list):
        return [_with_runs(each, runs) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("field") == "run" and "scale" in part:
        return {**part, "scale": {**part["scale"], "domain": runs}}
    return {key: _with_runs(value, runs) for key, value in part.items()}


def _file() -> Path:
    folder = Path(os.environ.get("TOPOSCOPE_CACHE") or "~/.cache/toposcope").expanduser()
    return folder / f"page-{_key()}.json"


def are_made() -> bool:
    """Return whether the assets of this version are in the cache folder."""
    return _file().is_file()


def load_assets() -> Assets:
    """Return the assets from the cache folder, or make them."""
    file = _file()
    try:
        return Assets(**json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        content = _made()
    assets = Assets(**json.loads(content))
    try:
        write_bytes(file, content)
    except ToposcopeError:  # without a cache, the next start takes a few seconds longer
        return assets
    return assets


def _made() -> bytes:
    """Run a process that makes the assets with the heavy libraries, and return what it prints."""
    # -P: no module of the folder in which the user works
    command = [sys.executable, "-P", "-m", "toposcope.report.live.making"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=MAX_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise ToposcopeError(f"making the page's charts took more than {MAX_SECONDS} s; try again") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["the process ended without a message"]
        raise ToposcopeError(lines[-1].removeprefix("Error: "))
    return done.stdout


def _key() -> str:
    digest = hashlib.sha256(__version__.encode())
    for name in MADE_BY:
        digest.update(metadata.version(name).encode())
    for package, name in SOURCES:
        digest.update(resources.files(package).joinpath(name).read_bytes())
    return digest.hexdigest()[:20]
