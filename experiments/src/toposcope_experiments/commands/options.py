"""Options that the commands of experiments share; this module is imported at every start, so it stays small."""

from collections.abc import Callable
from pathlib import Path

import click

from toposcope.extend import workers_option


def experiment_options(folder: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return ``--out``, ``--workers`` and ``--json`` of the command of an experiment, which writes to a folder."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        command = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(workers_option(command))
        return out_option(folder)(command)

    return add


def out_option(folder: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return ``--out`` of the command of an experiment, which writes to a folder."""
    kind = click.Path(file_okay=False, path_type=Path)
    words = "Folder for what is trained, the tables and the page."
    return click.option("--out", type=kind, default=Path(folder), show_default=True, help=words)
