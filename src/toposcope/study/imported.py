"""A published study, from its own files: checkpoint folders with their logs, features, correlations."""

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
from toposcope.errors import ToposcopeError
from toposcope.study.declaration import DEFAULT_PROBES, PUBLISHED_CLOUD, Declaration, DeclaredSeries, check
from toposcope.study.feature_file import LONGEST_NAME, PublishedRun, canonical, features_of, read_json
from toposcope.study.published import Published, is_quantity

DEPTH = 4
"""Folders below the given one that are looked into."""
_KNOWN = re.compile(r"(training_log|trainer_state|(generation_|tokenizer_|.*_)?config|tokenizer|.*\.index|vocab)\.json")
"""Files that lie beside checkpoints: logs, which are read with them, and what describes a model."""
_OWNED = re.compile(r"([A-Za-z0-9][^/]*/[^/]+)?")
"""No name, or one as a hub gives it."""


@dataclass
class Imported:
    """What was found in a folder.

    Attributes
    ----------
    declaration : Declaration
        To be run: the runs found, the exact probes and the published cloud.
    notes : list of str
        What was left out, and why.
    """

    declaration: Declaration
    notes: list[str]


def imported(folder: Path, out: Path | None = None) -> Imported:
    """Look for a published study in a folder.

    Parameters
    ----------
    folder : Path
        Looked through, `DEPTH` folders down; hidden folders are left out.
    out : Path, optional
        A folder below that is not looked into: where the study is to be.

    Returns
    -------
    Imported

    Raises
    ------
    ToposcopeError
        If there is nothing usable, or two runs have one name.
    """
    folder = folder.resolve()
    found = _Found()
    for place, below, files in _folders(folder, out.resolve() if out else None, found.notes):
        if found.take_series(place, files, below):
            below.clear()  # what lies in it are its checkpoints
        for name in files:
            if name.endswith(".json") and not _KNOWN.fullmatch(name):
                found.take_json(place / name)
    found.refuse_equal_names()
    if not found.series and not found.features:
        more = f"; {found.notes[0]}" if found.notes else ""
        raise ToposcopeError(
            f"{folder}: neither a series of checkpoints nor a JSON file of features by step in it{more}"
        )
    declaration = found.declaration(folder)
    check(declaration)
    return Imported(declaration, found.notes)


def _folders(folder: Path, left_out: Path | None, notes: list[str]) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield folders with the folders and files in them, those above first; folders that are removed are passed over."""

    def refused(error: OSError) -> None:
        notes.append(f"left out: {error.filename}: cannot be read: {error.strerror}")

    seen: set[Path] = set()
    for place, below, files in os.walk(folder, onerror=refused, followlinks=True):
        path = Path(place)
        seen.add(path.resolve())
        deep = len(path.relative_to(folder).parts) >= DEPTH
        below[:] = [] if deep else sorted(n for n in below if not n.startswith("."))
        below[:] = [n for n in below if (path / n).resolve() not in {*seen, left_out}]
        yield path, below, sorted(files)


@dataclass
class _Found:
    """What has been found so far."""

    series: dict[Path, str] = field(default_factory=dict)
    """Name of the series in a folder."""
    features: dict[Path, dict[str, PublishedRun]] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def take_series(self, place: Path, files: list[str], below: list[str]) -> bool:
        """Take a folder as a series, if it is one."""
        try:
            opened = series(place)
        except (ToposcopeError, OSError) as error:
            if any(is_checkpoint([name]) for name in files):
                self.notes.append(f"left out: {error}")
            return False
        if len(opened) == 1 and below and not opened.steps[0]:
            return False  # one file of weights beside folders is no run
        self.series[place] = opened.name
        return True

    def take_json(self, path: Path) -> None:
        """Take a file as features or as correlations; name it if it is neither."""
        try:
            content = read_json(path)
            if isinstance(content, dict) and isinstance(content.get("correlations"), dict):
                claims, unknown = _claims(content, path)
                if self.claims:
                    raise ToposcopeError(f"{path}: a second file of correlations; {self.claims['source']} counts")
                self.claims = {"source": path, **claims}
                if unknown:
                    self.notes.append(f"left out: {path}: correlations of what is not measured: {', '.join(unknown)}")
            else:
                self.features[path] = features_of(content, path)
                self.notes += [
                    f"{path}: run {run.written!r} is called {name!r} here"
                    for name, run in _renamed(self.features[path])
                ]
        except ToposcopeError as error:
            self.notes.append(f"left out: {error}")

    def refuse_equal_names(self) -> None:
        """Refuse two series, or two files of features, that are of one run."""
        for what, pairs in (
            ("series", [(name, place) for place, name in self.series.items()]),
            ("features", [(name, path) for path, runs in self.features.items() for name in runs]),
        ):
            counts = Counter(name for name, _ in pairs)
            for name, count in counts.items():
                if count > 1:
                    first, second, *_ = [str(place) for other, place in pairs if other == name]
                    raise ToposcopeError(
                        f"{what} of two runs called {name!r}: {first} and {second}; move one of them away"
                    )

    def declaration(self, folder: Path) -> Declaration:
        """Return the study: runs with features as their file has them, then the other series."""
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
    """Return the runs that the file calls otherwise, but for ``owner/name``, of which the last part is the name."""
    return [(n, run) for n, run in runs.items() if run.written != n and not _OWNED.fullmatch(run.written)]


def _claims(content: dict[str, Any], path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the correlations with the loss, and the phases, that a file claims; and of what it is not known here."""
    correlations: dict[str, dict[str, float]] = {}
    unknown: list[str] = []
    for run, pairs in _objects(content["correlations"], path, "correlations"):
        for pair, told in pairs.items():
            feature, found, target = pair.rpartition("_vs_")
            rho = told.get("rho") if isinstance(told, dict) else told
            if not found or target != "loss" or rho is None or rho != rho:
                continue
            if isinstance(rho, bool) or not isinstance(rho, int | float) or not -1 <= rho <= 1:
                raise ToposcopeError(f"{path}: correlations: {run}: {pair}: {str(rho)[:40]!r} is no correlation")
            quantity = canonical(feature)
            if is_quantity(quantity):
                correlations.setdefault(quantity, {})[run] = float(rho)
            else:
                unknown.append(feature[:LONGEST_NAME])
    phases: dict[str, dict[str, int]] = {"largest_change": {}, "diminishing_returns": {}}
    columns = {"max_change_step": "largest_change", "diminishing_step": "diminishing_returns"}
    for run, told in _objects(content.get("transitions", {}), path, "transitions"):
        for column, name in columns.items():
            if told.get(column) is not None:
                phases[name][run] = _step(told[column], f"{path}: transitions: {run}: {column}")
    return {"correlations": correlations, **phases}, list(dict.fromkeys(unknown))


def _objects(content: Any, path: Path, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(content, dict):
        raise ToposcopeError(f"{path}: {where}: expected an object by run")
    for run, told in content.items():
        if not isinstance(told, dict):
            raise ToposcopeError(f"{path}: {where}: {run[:100]}: expected an object")
        yield run, told


def _step(value: Any, place: str) -> int:
    try:
        step: int = msgspec.convert(value, Annotated[int, msgspec.Meta(ge=0)])
    except msgspec.ValidationError as error:
        raise ToposcopeError(f"{place}: {error}") from error
    return step
