"""The data of a report: a study, read once, and the tables computed from it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis.adjustment import Method
from toposcope.analysis.correlations import study_trajectories
from toposcope.analysis.trajectory import Trajectory
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram
from toposcope.logs import Run, read_log
from toposcope.progress import Progress, silent
from toposcope.report.section import ComputedOnce, ReportSection, Tables, makers_of
from toposcope.study import Study
from toposcope.study.declaration import Declaration
from toposcope.study.study import ALERT_SCHEMA, FORECAST_SCHEMA, TIME_SCHEMA

MANY_CHECKPOINTS = 500
"""Checkpoints of a study from which a stage of its report takes seconds, and shows its progress."""

ONLY_SERIES = ("controls", "distances", "neural_persistence", "rips")
"""Probes that sections read as series of the trajectories; their rows, often millions, are not held."""


READ = ("runs", "findings", "errors", "examined", "alerts", "times", "forecasts", "population", "targets")
"""Methods of a study whose result the data hold under the same name."""


def _no_log() -> Run:
    raise ToposcopeError("no loss is logged")


@dataclass(frozen=True, eq=False)
class StudyData(ComputedOnce):
    """The data of a study's report.

    Attributes
    ----------
    declaration : Declaration
        Of all runs.
    declarations : mapping of str to Declaration
        Of each study, by its name.
    directory : Path, optional
        Of the study; none of several.
    trajectories : list of Trajectory
        Of the runs with a measured checkpoint.
    frame, labels, log, runs, findings, errors, alerts, times, forecasts, population, targets : polars.DataFrame
        From the methods of `Study` of those names; `frame` without the probes `ONLY_SERIES`.
    diagrams : callable
        ``(run, step, probe label) -> layer -> name -> Diagram``, as `Study.diagrams`; reads a file when called.
    states : callable
        ``(run, step, probe label) -> layer -> points``, as `Study.states`; empty where there are none.
    read_log : callable
        ``() -> Run``: the log of a study of one run, as `toposcope.logs.read_log` reads it.
    examined, notes : list of str
        `Study.examined` and `Study.notes`.
    corpus : str
        SHA-256 of the corpus, or an empty text.
    adjust : "holm", "bonferroni" or "bh"
        How p-values are adjusted for the number of rows.
    tables : mapping of str to polars.DataFrame
        The tables that the sections compute, by name.
    workers : int
        Processes for the tables that take minutes; they do not depend on it.
    progress : callable
        Called by what takes long where there are `MANY_CHECKPOINTS`.
    """

    declaration: Declaration
    trajectories: list[Trajectory]
    frame: pl.DataFrame
    labels: pl.DataFrame
    log: pl.DataFrame
    runs: pl.DataFrame
    findings: pl.DataFrame
    errors: pl.DataFrame
    diagrams: Callable[[str, int, str], dict[str, dict[str, Diagram]]]
    states: Callable[[str, int, str], Mapping[str, NDArray[np.float32]]] = lambda _run, _step, _label: {}
    read_log: Callable[[], Run] = _no_log
    examined: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    corpus: str = ""
    adjust: Method = "holm"
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    alerts: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=ALERT_SCHEMA))
    times: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=TIME_SCHEMA))
    forecasts: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=FORECAST_SCHEMA))
    population: pl.DataFrame = field(default_factory=pl.DataFrame)
    targets: pl.DataFrame = field(default_factory=pl.DataFrame)
    declarations: Mapping[str, Declaration] = field(default_factory=dict)
    directory: Path | None = None
    workers: int = 1
    progress: Progress = silent
    _computed: dict[str, Any] = field(default_factory=dict, init=False)

    @property
    def is_own_run(self) -> bool:
        """Whether it is somebody's own run: there is one, and it publishes no numbers to be examined."""
        published = self.declaration.published or any(series.features for series in self.declaration.series)
        return len(self.runs) == 1 and len(self.declarations) < 2 and not published

    @classmethod
    def of(
        cls,
        study: Study,
        sections: "Sequence[ReportSection[StudyData]]",
        adjust: Method = "holm",
        workers: int = 1,
        progress: Progress = silent,
    ) -> "StudyData":
        """Read a study; its tables are computed when they are first read."""
        if study.runs().get_column("n_checkpoints").sum() < MANY_CHECKPOINTS:
            progress = silent
        declared = study.declaration
        rows = list[pl.DataFrame]()

        def parts() -> Iterator[pl.DataFrame]:
            for part in study.frames(progress):
                rows.append(part.filter(~pl.col("probe").is_in(ONLY_SERIES)))
                yield part

        data = cls(
            declaration=declared,
            declarations=study.declarations(),
            directory=study.directory if len(study.declarations()) == 1 else None,
            trajectories=study_trajectories(study, parts()),
            frame=pl.concat(rows),
            labels=study.labels(),
            log=study.log(),
            diagrams=study.diagrams,
            states=study.states,
            read_log=lambda: read_log(study.directory),
            notes=[*study.notes(), *filter(None, [study.coverage()])],
            corpus=study.meta("corpus_sha256"),
            adjust=adjust,
            **{name: getattr(study, name)() for name in READ},
            workers=workers,
            progress=progress,
        )
        object.__setattr__(data, "tables", Tables(data, makers_of(sections)))
        return data
