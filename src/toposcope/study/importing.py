"""Imports a published study from its own files: checkpoint folders with their logs, features, correlations."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from toposcope.checkpoints import series
from toposcope.checkpoints.formats import is_checkpoint
from toposcope.checkpoints.sources import without_credentials
from toposcope.errors import ToposcopeError
from toposcope.study.declaration import DEFAULT_PROBES, PUBLISHED_CLOUD, Declaration, DeclaredSeries, check
from toposcope.study.feature_file import MAX_NAME_LENGTH, PublishedRun, canonical_name, parse_features, read_json
from toposcope.study.published import Published, is_quantity

MAX_DEPTH = 4
"""Levels of folders below the given one that are searched."""
_BESIDE_CHECKPOINTS = re.compile(
    r"(training_log|trainer_state|(generation_|tokenizer_|.*_)?config|tokenizer|.*\.index|vocab)\.json"
)
"""Files beside checkpoints that are no features: training logs and configurations of models."""
_HUB_NAME = re.compile(r"([A-Za-z0-9][^/]*/[^/]+)?")
"""A name on the hub, or none."""


@dataclass
class ImportedStudy:
    """A study made from the files of a folder.

    Attributes
    ----------
    declaration : Declaration
        With the runs of the folder, the exact probes and the published cloud.
    notes : list of str
        What was left out, with the reason.
    """

    declaration: Declaration
    notes: list[str]


def import_study(folder: Path, out: Path | None = None) -> ImportedStudy:
    """Import a published study from a folder.

    Parameters
    ----------
    folder : Path
        Searched `MAX_DEPTH` levels down, without hidden folders.
    out : Path, optional
        The folder of the new study, which is not searched.

    Returns
    -------
    ImportedStudy

    Raises
    ------
    ToposcopeError
        If there is nothing to import, or two runs have the same name.
    """
    folder = folder.resolve()
    contents = _Contents()
    for place, below, files in _folders(folder, out.resolve() if out else None, contents.notes):
        if contents.add_series(place, files, below):
            below.clear()  # its subfolders are its checkpoints
        for name in files:
            if name.endswith(".json") and not _BESIDE_CHECKPOINTS.fullmatch(name):
                contents.add_json(place / name)
    contents.refuse_equal_names()
    if not contents.series and not contents.features:
        more = f"; {contents.notes[0]}" if contents.notes else ""
        raise ToposcopeError(
            f"{folder}: neither a series of checkpoints nor a JSON file of features by step in it{more}"
        )
    declaration = contents.declaration(folder)
    check(declaration)
    return ImportedStudy(declaration, contents.notes)


def _folders(folder: Path, left_out: Path | None, notes: list[str]) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder with its subfolders and files, top down; the caller may remove subfolders from the list."""

    def refused(error: OSError) -> None:
        notes.append(f"left out: {error.filename}: cannot be read: {error.strerror}")

    seen: set[Path] = set()
    for place, below, files in os.walk(folder, onerror=refused, followlinks=True):
        path = Path(place)
        seen.add(path.resolve())
        deep = len(path.relative_to(folder).parts) >= MAX_DEPTH
        below[:] = [] if deep else sorted(n for n in below if not n.startswith("."))
        below[:] = [n for n in below if (path / n).resolve() not in {*seen, left_out}]
        yield path, below, sorted(files)


@dataclass
class _Contents:
    """The series, features and correlations of the folders searched so far."""

    series: dict[Path, str] = field(default_factory=dict)
    """Folder of each series, with its name."""
    features: dict[Path, dict[str, PublishedRun]] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add_series(self, place: Path, files: list[str], below: list[str]) -> bool:
        """Add a folder if it is a series; return whether it is."""
        try:
            opened = series(place)
        except (ToposcopeError, OSError) as error:
            if any(is_checkpoint([name]) for name in files):
                self.notes.append(f"left out: {error}")
            return False
        if len(opened) == 1 and below and not opened.steps[0]:
            return False  # one file of weights beside folders is not a run
        self.series[place] = opened.name
        return True

    def add_json(self, path: Path) -> None:
        """Add a file of features or of correlations; add a note if it is neither."""
        try:
            content = read_json(path)
            if isinstance(content, dict) and isinstance(content.get("correlations"), dict):
                claims, unknown = _claims(content, path)
                if self.claims:
                    raise ToposcopeError(f"{path}: a second file of correlations; {self.claims['source']} is used")
                self.claims = {"source": path, **claims}
                if unknown:
                    self.notes.append(
                        f"left out: {path}: correlations of quantities that are not measured: {', '.join(unknown)}"
                    )
            else:
                self.features[path] = parse_features(content, path)
                self.notes += [
                    f"{path}: run {without_credentials(run.written)!r} is called {name!r} here"
                    for name, run in _renamed(self.features[path])
                ]
        except ToposcopeError as error:
            self.notes.append(f"left out: {error}")

    def refuse_equal_names(self) -> None:
        """Refuse two series, or two files of features, of the same run."""
        for what, pairs in (
            ("series", [(name, place) for place, name in self.series.items()]),
            ("features", [(name, path) for path, runs in self.features.items() for name in runs]),
        ):
            counts = Counter(name for name, _ in pairs)
            for name, count in counts.items():
                if count > 1:
                    first, second, *_ = [str(place) for other, place in pairs if other == name]
                    raise ToposcopeError(
                        f"{what} of two runs called {name!r}: {first} and {second}; remove one of them"
                    )

    def declaration(self, folder: Path) -> Declaration:
        """Return the study: runs with features in the order of their file, then the other series."""
        places = {name: place for place, name in self.series.items()}
        files = {name: path for path, runs in self.features.items() for name in runs}
        declared = [
            DeclaredSeries(name=name, path=str(places.get(name, "")), features=str(files.get(name, "")))
            for name in dict.fromkeys([*files, *sorted(places)])
        ]
        finals = {name: _final_loss(run) for runs in self.features.values() for name, run in runs.items()}
        known = {name: loss for name, loss in finals.items() if np.isfinite(loss)}
        return Declaration(
            name=re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).lstrip("-._") or "imported",
            series=declared,
            probes=[*DEFAULT_PROBES, PUBLISHED_CLOUD],
            published=Published(**{**self.claims, "source": folder.name, "final_loss": known}),
        )


def _final_loss(run: PublishedRun) -> float:
    """Return the published loss of the last batch; NaN if there is none."""
    return float(run.log.values["loss"][-1])


def _renamed(runs: dict[str, PublishedRun]) -> list[tuple[str, PublishedRun]]:
    """Return the runs that have another name in the file, except for ``owner/name``, which is shortened."""
    return [(n, run) for n, run in runs.items() if run.written != n and not _HUB_NAME.fullmatch(run.written)]


def _claims(content: dict[str, Any], path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the correlations with the loss and the phases in a file, and the features that are unknown here."""
    correlations: dict[str, dict[str, float]] = {}
    unknown: list[str] = []
    for run, pairs in _objects(content["correlations"], path, "correlations"):
        for pair, entry in pairs.items():
            feature, separator, target = pair.rpartition("_vs_")
            rho = entry.get("rho") if isinstance(entry, dict) else entry
            if not separator or target != "loss" or rho is None or rho != rho:
                continue
            if isinstance(rho, bool) or not isinstance(rho, int | float) or not -1 <= rho <= 1:
                raise ToposcopeError(f"{path}: correlations: {run}: {pair}: {str(rho)[:40]!r} is not a correlation")
            quantity = canonical_name(feature)
            if is_quantity(quantity):
                correlations.setdefault(quantity, {})[run] = float(rho)
            else:
                unknown.append(feature[:MAX_NAME_LENGTH])
    phases: dict[str, dict[str, int]] = {"largest_change": {}, "diminishing_returns": {}}
    columns = {"max_change_step": "largest_change", "diminishing_step": "diminishing_returns"}
    for run, entries in _objects(content.get("transitions", {}), path, "transitions"):
        for column, name in columns.items():
            if entries.get(column) is not None:
                phases[name][run] = _step(entries[column], f"{path}: transitions: {run}: {column}")
    return {"correlations": correlations, **phases}, list(dict.fromkeys(unknown))


def _objects(content: Any, path: Path, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(content, dict):
        raise ToposcopeError(f"{path}: {where}: expected an object by run")
    for run, entries in content.items():
        if not isinstance(entries, dict):
            raise ToposcopeError(f"{path}: {where}: {run[:100]}: expected an object")
        yield run, entries


def _step(value: Any, place: str) -> int:
    try:
        step: int = msgspec.convert(value, Annotated[int, msgspec.Meta(ge=0)])
    except msgspec.ValidationError as error:
        raise ToposcopeError(f"{place}: {error}") from error
    return step
