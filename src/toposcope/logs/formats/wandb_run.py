"""The folder of a W&B run on this machine. Its history is readable here only where it is a file of JSON lines."""

import re
from dataclasses import replace
from pathlib import Path

from toposcope.errors import ToposcopeError
from toposcope.logs.formats import json_rows
from toposcope.logs.raw import RawLog

HISTORY = "wandb-history.jsonl"
_RUN = re.compile(r"(?:offline-)?run-\d{8}_\d{6}-(\w+)")
_VALUE = re.compile(r"^([\w./-]+):\n(?:  desc:.*\n)?  value: ([^\n]+)$", re.MULTILINE)
"""A plain value of ``config.yaml`` as W&B writes it."""


def claims(path: Path) -> bool:
    """Return whether the path is such a folder."""
    return path.is_dir() and _RUN.fullmatch(path.name) is not None


def runs(path: Path) -> list[RawLog]:
    """Return the history, with the plain values of the configuration as facts."""
    history = next((f for f in (path / "files" / HISTORY, path / HISTORY) if f.is_file()), None)
    if history is None:
        raise ToposcopeError(
            "the history of this run is in a file that only wandb reads; export it: "
            "wandb.Api().run('ENTITY/PROJECT/RUN').history(samples=10**6).to_csv('run.csv')"
        )
    (raw,) = json_rows.runs(history)
    config = path / "files" / "config.yaml"
    text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
    name = _RUN.fullmatch(path.name)
    return [replace(raw, name=name.group(1) if name else path.name, facts=dict(_VALUE.findall(text)))]
