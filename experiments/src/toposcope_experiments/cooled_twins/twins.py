"""The cooled twins of runs: at their checkpoints the average of those shortly before, which stands for a cool-down.

A twin is measured like a run, in a study of its own inside that of the runs: it is no run more.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl

from toposcope import merge
from toposcope.checkpoints import Checkpoint, Series, series
from toposcope.engine import TaskFailure, Workers, processors
from toposcope.extend import (
    DeclaredSeries,
    OtherCorporaTask,
    Progress,
    Steps,
    StudyCorpora,
    Trajectory,
    Vector,
    other_corpora_task,
    silent,
    to_csv,
    trajectories,
    write_bytes,
)
from toposcope.family import FamilyRun
from toposcope.logs import LogTable, find_log
from toposcope.study import Declaration, Study, run_study

FOLDER = "cooled"  # of the twins' study, in that of the runs
LOSS = "validation_loss"
STAGE = "cooled losses"

# the choices of docs/methods/cool-down.md, which were measured on hundreds of real cool-downs
WINDOW = 0.1  # of the steps so far, that are averaged
MIN_MERGED = 3  # checkpoints in it
MAX_RATE_CHANGE = 0.05  # of the learning rate within it
MIN_WARM_UPS = 10  # steps so far, in warm-ups

NO_RATES = "no learning rate is logged"
NEVER = (
    f"at no checkpoint was the learning rate constant over the last {WINDOW:.0%} of the steps, {MIN_WARM_UPS} "
    f"warm-ups from the start, with {MIN_MERGED} checkpoints in them"
)


class Twin(NamedTuple):
    """The cooled twin of a run: averages of its checkpoints, by step; where there are none, why."""

    run: str
    checkpoints: dict[int, Checkpoint]
    reason: str = ""

    def recipe(self, corpus_sha256: str) -> str:
        """Return the SHA-256 of what its losses follow from: its checkpoints as they are, and the text."""
        made = (f"{step}\x1f{c.location}\x1f{c.fingerprint()}" for step, c in self.checkpoints.items())
        return hashlib.sha256("\x1e".join([corpus_sha256, *made]).encode()).hexdigest()


def cooled_twin(run: str, series: Series, log: LogTable | None) -> Twin:
    """Average, at each checkpoint of a run, the checkpoints of the last tenth of the steps, as a linear decay does.

    Only where the rate was constant over them: an average stands for a cool-down there alone (WSM, arXiv 2507.17634).
    """
    known = np.isfinite(log.values["learning_rate"]) if log is not None else np.zeros(0, bool)
    if log is None or not known.any():
        return Twin(run, {}, NO_RATES)
    steps, rates = log.steps[known], log.values["learning_rate"][known]
    found: dict[int, Checkpoint] = {}
    for step in series.steps:
        inside = [each for each in series.steps if step - WINDOW * step <= each <= step]
        if len(inside) >= MIN_MERGED and _is_held(steps, rates, inside[0], step):
            found[step] = merge(series, window=(inside[0], step))
    return Twin(run, found, "" if found else NEVER)


def _is_held(steps: Steps, rates: Vector, first: int, last: int) -> bool:
    """Return whether the rate was constant from a step to another, long after it had warmed up."""
    rates, steps = rates[steps <= last], steps[steps <= last]
    if not len(steps) or steps[-1] < first:
        return False  # not known
    inside = rates[max(int(np.searchsorted(steps, first, side="right")) - 1, 0) :]
    if np.ptp(inside) > MAX_RATE_CHANGE * inside.max():
        return False
    warm = int(np.argmax(rates >= (1 - MAX_RATE_CHANGE) * rates.max()))
    return warm == 0 or bool(steps[warm] <= first and last >= MIN_WARM_UPS * steps[warm])


def measure_twins(study: Study, workers: int | None = None, progress: Progress = silent) -> Iterator[str]:
    """Measure the cooled twins of the runs that a study trained, or what is missing; yield what there is to say.

    Their study is the folder ``cooled`` of the study: the same probes, the runs under their names.
    """
    runs = {run.name: run for run in study.declaration.resolved_runs()}
    twins = [_twin_of(study, name) for name in runs]
    for reason in dict.fromkeys(twin.reason for twin in twins if twin.reason):
        without = ", ".join(twin.run for twin in twins if twin.reason == reason)
        yield f"no cooled twin of {without}: {reason}"
    twins = [twin for twin in twins if twin.checkpoints]
    if not twins:
        return
    folder = study.directory.resolve() / FOLDER
    yield from _measure_losses(twins, runs, study, workers, progress)
    declared, text = study.declaration, study.declaration.text
    declaration = Declaration(
        name=f"{declared.name}-{FOLDER}",
        text=text if text.source else msgspec.structs.replace(text, source=declared.corpus.source),
        series=[
            DeclaredSeries(path=str(_place(study, twin.run)), name=twin.run, log=str(_log_file(folder, twin.run)))
            for twin in twins
        ],
        probes=declared.probes,
        protocol=declared.protocol,
    )
    opened = {
        twin.run: Series(twin.run, str(_place(study, twin.run)), tuple(twin.checkpoints.values())) for twin in twins
    }
    errors = run_study(declaration, folder, workers=workers, opened=opened, progress=progress)
    yield from (f"{unit.run}: {message}" for unit, message in errors.items())


def _place(study: Study, run: str) -> Path:
    return study.directory.resolve() / "runs" / run


def _twin_of(study: Study, run: str) -> Twin:
    opened = series(_place(study, run))
    return cooled_twin(run, opened, find_log(opened.source) if opened.source else None)


def _log_file(folder: Path, run: str) -> Path:
    return folder / "logs" / f"{run}.csv"


def _measure_losses(
    twins: Sequence[Twin], runs: dict[str, FamilyRun], study: Study, workers: int | None, progress: Progress
) -> Iterator[str]:
    """Write the validation losses of twins as their logs; yield each failure."""
    folder = study.directory.resolve() / FOLDER
    corpora = StudyCorpora.of(study.directory, study.declaration.corpus, list(runs.values()))
    tasks: list[OtherCorporaTask] = []
    recipes: dict[str, str] = {}
    for twin in twins:
        run, file = runs[twin.run], _log_file(folder, twin.run)
        corpora.load_digest(run.corpus)
        recipe = twin.recipe(corpora.sha256.get(run.corpus, ""))
        known = file.with_suffix(".recipe")
        if not (file.exists() and known.exists() and known.read_text() == recipe):
            recipes[twin.run] = recipe
            checkpoints = tuple(twin.checkpoints.values())
            tasks.append(OtherCorporaTask(run, Path(), checkpoints, {LOSS: corpora.path(run.corpus)}))
    with Workers(workers or processors()) as engine:
        for done, (task, result) in enumerate(engine.run(other_corpora_task, tasks), 1):
            progress(STAGE, done, len(tasks))
            if isinstance(result, TaskFailure):
                yield f"{task.run.name}: {result.message}"
                continue
            rows = pl.DataFrame(list(result[LOSS].items()), schema=["step", LOSS], orient="row")
            file = _log_file(folder, task.run.name)
            write_bytes(file, to_csv(rows))
            write_bytes(file.with_suffix(".recipe"), recipes[task.run.name].encode())


def trajectories_of_twins(directory: Path | None) -> list[Trajectory]:
    """Return the measured twins of a study's runs, each under the name of its run; empty if it has none."""
    if directory is None or not (directory / FOLDER / "study.db").exists():
        return []
    twins = Study.load(directory / FOLDER)
    return trajectories(twins.frames(), twins.labels(), twins.log())
