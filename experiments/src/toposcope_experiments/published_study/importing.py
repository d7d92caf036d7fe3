"""Imports a published study from its own files: checkpoint folders with their logs, features, correlations."""

import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from toposcope.checkpoints import series
from toposcope.extend import (
    DEFAULT_PROBES,
    DeclaredSeries,
    PublishedRun,
    ToposcopeError,
    check_declaration,
    is_checkpoint,
    without_credentials,
)
from toposcope.study import Declaration
from toposcope_experiments.published_study.feature_file import parse_features, read_json
from toposcope_experiments.published_study.published import Published
from toposcope_experiments.published_study.published_file import merge_results, parse_results
from toposcope_experiments.published_study.reading import CLOUD

MAX_DEPTH = 4  # levels of folders below the given one that are searched
SAME = 1e-6  # relative difference up to which two files have the same number
_BESIDE_CHECKPOINTS = re.compile(
    r"(training_log|trainer_state|(generation_|tokenizer_|.*_)?config|tokenizer|.*\.index|vocab)\.json"
)
"""Files next to checkpoints that are no features: training logs and configurations of models."""
_HUB_NAME = re.compile(r"([A-Za-z0-9][^/]*/[^/]+)?")  # a name on the hub, or none


@dataclass
class ImportedStudy:
    """A study made from the files of a folder."""

    declaration: Declaration  # with the runs of the folder, the exact probes and the published cloud
    notes: list[str]  # what was left out, with the reason


def import_study(folder: Path, out: Path | None = None) -> ImportedStudy:
    """Import a published study from a folder."""
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
        what = "neither a series of checkpoints nor a JSON file of features by step in it"
        raise ToposcopeError(f"{folder}: {what}{more}")
    declaration = contents.declaration(folder)
    check_declaration(declaration)
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

    series: dict[Path, str] = field(default_factory=dict)  # folder of each series, with its name
    features: dict[Path, dict[str, PublishedRun]] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)  # fields of `Published`
    results_path: Path = field(default_factory=Path)  # the first file of results
    notes: list[str] = field(default_factory=list)

    def add_series(self, place: Path, files: list[str], below: list[str]) -> bool:
        """Add a folder if it is a series; return whether it is."""
        try:
            opened = series(place)
        except (ToposcopeError, OSError) as error:
            if any(is_checkpoint([name]) for name in files):
                self.notes.append(f"left out: {error}")
            return False
        if opened.source is not None and opened.source.spec != str(place):
            return False  # the one run below it, which is found by itself
        if len(opened) == 1 and below and not opened.steps[0]:
            return False  # one file of weights next to folders is not a run
        self.series[place] = opened.name
        return True

    def add_json(self, path: Path) -> None:
        """Add a file of features or of results; add a note on whatever is not imported of it."""
        try:
            content = read_json(path)
            results = parse_results(content, path)
            if results is None:
                self._add_features(path, parse_features(content, path))
                return
            self.notes += results.notes(path)
            if not self.results:
                self.results, self.results_path = results.fields, path
            elif note := merge_results(self.results, self.results_path, results.fields, path):
                self.notes.append(note)
        except ToposcopeError as error:
            self.notes.append(f"left out: {error}")

    def _add_features(self, path: Path, runs: dict[str, PublishedRun]) -> None:
        """Add the runs of a file that no other file holds already, with the same features."""
        self.notes += [
            f"{path}: run {without_credentials(run.written)!r} is called {name!r} here" for name, run in _renamed(runs)
        ]
        self.features[path] = {}
        repeated: dict[Path, list[str]] = {}
        for name, run in runs.items():
            other = next((place for place, others in self.features.items() if name in others), None)
            if other is None or _differ(self.features[other][name], run):
                self.features[path][name] = run
            elif _numbers(run).keys() <= _numbers(self.features[other][name]).keys():
                repeated.setdefault(other, []).append(name)
            else:
                del self.features[other][name]
                self.features[path][name] = run
                self.notes.append(f"left out: {other}: features of {name}, which {path} holds too")
        for other, names in repeated.items():
            self.notes.append(f"left out: {path}: features of {', '.join(names)}, which {other} holds too")

    def refuse_equal_names(self) -> None:
        """Refuse two series, or two files of features, of the same run."""
        for what, pairs in (
            ("series", [(name, place) for place, name in self.series.items()]),
            ("features", [(name, path) for path, runs in self.features.items() for name in runs]),
        ):
            counts = Counter(name for name, _ in pairs)
            for name, count in counts.items():
                if count > 1:
                    first, second, *_ = [place for other, place in pairs if other == name]
                    places = f"{first} and {second}"
                    if what == "features":
                        places += f" ({_differ(self.features[first][name], self.features[second][name])})"
                    raise ToposcopeError(f"{what} of two runs called {name!r}: {places}; remove one of them")

    def declaration(self, folder: Path) -> Declaration:
        """Return the study: runs with features in the order of their file, then the other series."""
        places = {name: place for place, name in self.series.items()}
        files = {name: path for path, runs in self.features.items() for name in runs}
        declared = [
            DeclaredSeries(name=name, path=str(places.get(name, "")), features=str(files.get(name, "")))
            for name in dict.fromkeys([*files, *sorted(places)])
        ]
        runs = [(name, run) for of_file in self.features.values() for name, run in of_file.items()]
        finals = {name: float(run.log.values["loss"][-1]) for name, run in runs}  # of the last batch
        known = {name: loss for name, loss in finals.items() if np.isfinite(loss)}
        phases = {run for name in ("largest_change", "diminishing_returns") for run in self.results.get(name, ())}
        lengths = {name: max(run.features) for name, run in runs if name in phases}  # where no share of them is stated
        lengths |= self.results.get("training_steps", {})
        results = {**self.results, "source": folder.name, "final_loss": known, "training_steps": lengths}
        published = Published(**results)
        if absent := [run for run in published.runs() if run not in {*files, *places}]:
            self.notes.append(f"results of {', '.join(absent)}: nothing else of these runs is here")

        return Declaration(
            name=re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).lstrip("-._") or "imported",
            series=declared,
            probes=[*DEFAULT_PROBES, CLOUD],
            published=msgspec.to_builtins(published),
        )


def _renamed(runs: dict[str, PublishedRun]) -> list[tuple[str, PublishedRun]]:
    """Return the runs that have another name in the file, except for ``owner/name``, which is shortened."""
    return [(n, run) for n, run in runs.items() if run.written != n and not _HUB_NAME.fullmatch(run.written)]


def _differ(first: PublishedRun, second: PublishedRun) -> str:
    """Return the first number that two sets of features of a run have differently; empty if there is none."""
    others = _numbers(second)
    for place, value in _numbers(first).items():
        if place in others and not math.isclose(value, others[place], rel_tol=SAME):
            return f"step {place[0]}: {place[1]} is {value:.6g} in one and {others[place]:.6g} in the other"
    known = _numbers(first).keys()
    if not (known <= others.keys() or others.keys() <= known):
        return "each has values that the other lacks"
    return ""


def _numbers(run: PublishedRun) -> dict[tuple[int, str], float]:
    """Return all defined numbers of a run, by step and name, those of its log too."""
    found = {(step, name): value for step, values in run.features.items() for name, value in values.items()}
    for name, values in run.log.values.items():
        steps = run.log.steps.tolist()
        found |= {(step, name): value for step, value in zip(steps, values.tolist(), strict=True) if value == value}
    return found
