"""What begins a study: a declaration drafted for series that have none, and the series opened."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import tomli_w

from toposcope.checkpoints import Access, Series
from toposcope.errors import ToposcopeError
from toposcope.study.declaration import DEFAULT_PROBES, Declaration, DeclaredSeries

_OTHER_THAN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def draft(series: Sequence[DeclaredSeries]) -> Declaration:
    """Return a study of some series by the default probes, named after the first."""
    first = _OTHER_THAN_NAMES.sub("-", series[0].resolved_name()).strip("-._") or "checkpoints"
    more = f"-and-{len(series) - 1}-more" if len(series) > 1 else ""
    return Declaration(name=f"{first}{more}-study", series=list(series))


def draft_toml(declaration: Declaration, file: Path) -> str:
    """Return the text of a TOML file that declares the same, with what else it may hold in comments."""
    lines = [
        f"# Run it, and run it again to resume: toposcope study run {file}",
        "# Every field: docs/study.md. Unknown fields are refused.",
        *_toml({"name": declaration.name}),
        "",
        "# A training log next to the checkpoints is found by itself: log.csv, training_log.json, trainer_state.json.",
    ]
    for series in declaration.series:
        fields, defaults = msgspec.to_builtins(series), msgspec.to_builtins(DeclaredSeries())
        lines += ["[[series]]", *_toml({key: value for key, value in fields.items() if value != defaults[key]})]
        if not series.is_selection():
            lines += ["# log_spaced = 20  # only so many checkpoints, evenly spaced in log(step); or every = 10"]
        lines += [""]
    probes = [str(probe["name"]) for probe in DEFAULT_PROBES]
    lines += [
        f"# These are measured by default: {', '.join(probes)}. To choose others, uncomment and add one table each;",
        "# toposcope measure --help lists the probes and their options.",
        "# [[probes]]",
        f'# name = "{probes[0]}"',
        "",
        "# What models read, for the probes hidden_states and language_modelling:",
        "# [text]",
        '# source = "book.txt"',
    ]
    return "\n".join(lines) + "\n"


def _toml(fields: dict[str, object]) -> list[str]:
    return tomli_w.dumps(fields).splitlines()


def open_series(declaration: Declaration, directory: Path, access: Access) -> dict[str, Series]:
    """Open the series of a new study."""
    if (directory / "study.db").exists():
        return {}
    opened, errors = {}, []
    for name, declared in declaration.named_series().items():
        if declared.path:
            try:
                opened[name] = declared.open(access)
            except (ToposcopeError, OSError) as error:
                errors.append(error)
    if errors and not opened and not declaration.runs and not any(s.features for s in declaration.series):
        more = f" (and {len(errors) - 1} more series)" if len(errors) > 1 else ""
        raise ToposcopeError(f"{errors[0]}{more}") from errors[0]
    return opened
