"""The cooled twins of runs: at their checkpoints the average of those shortly before, which stands for a cool-down.

A twin is measured like a run, under a name of its own that no analysis of the study's runs reads: it is no run more.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toposcope.checkpoints import Checkpoint, Series
from toposcope.checkpoints.merging import merge
from toposcope.checkpoints.sources import is_remote
from toposcope.engine.pool import Engine, TaskFailure
from toposcope.family import Run
from toposcope.logs import LogTable
from toposcope.progress import Progress
from toposcope.study.corpora import OtherCorporaTask, StudyCorpora, other_corpora_task
from toposcope.study.kinds import COOLED, COOLED_SUFFIX
from toposcope.study.store import Store
from toposcope.study.tuning import COOLED_WINDOW, MAX_RATE_CHANGE, MIN_MERGED, MIN_WARM_UPS
from toposcope.typing import Steps, Vector

NO_RATES, REMOTE = "no learning rate is logged", "the checkpoints are not on this machine"
NEVER = (
    f"at no checkpoint was the learning rate constant over the last {COOLED_WINDOW:.0%} of the steps, {MIN_WARM_UPS} "
    f"warm-ups from the start, with {MIN_MERGED} checkpoints in them"
)
STAGE = "cooled losses"


class Twin(NamedTuple):
    """The cooled twin of a run: averages of its checkpoints, by step; where there are none, why."""

    run: str
    checkpoints: dict[int, Checkpoint]
    reason: str = ""

    @property
    def name(self) -> str:
        """Under which it is measured."""
        return self.run + COOLED_SUFFIX

    def recipe(self, corpus_sha256: str) -> str:
        """Return the SHA-256 of what its losses follow from: its checkpoints as they are, and the text."""
        made = (f"{step}\x1f{c.location}\x1f{c.fingerprint()}" for step, c in self.checkpoints.items())
        return hashlib.sha256("\x1e".join([corpus_sha256, *made]).encode()).hexdigest()


def cooled_twin(run: str, series: Series, log: LogTable | None) -> Twin:
    """Average, at each checkpoint of a run, the checkpoints of the last tenth of the steps, as a linear decay does.

    Only where the rate was constant over them: an average stands for a cool-down there alone (WSM, arXiv 2507.17634).
    """
    if is_remote(series.spec):
        return Twin(run, {}, REMOTE)
    known = np.isfinite(log.values["learning_rate"]) if log is not None else np.zeros(0, bool)
    if log is None or not known.any():
        return Twin(run, {}, NO_RATES)
    steps, rates = log.steps[known], log.values["learning_rate"][known]
    found: dict[int, Checkpoint] = {}
    for step in series.steps:
        inside = [each for each in series.steps if step - COOLED_WINDOW * step <= each <= step]
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


def cooled_twins(
    series: Mapping[str, Series], logs: Mapping[str, LogTable | None], names: Sequence[str], store: Store
) -> list[Twin]:
    """Return the twins of runs, and declare them in the store; why a run has none is a fact there."""
    twins = [cooled_twin(name, opened, logs[name]) for name, opened in series.items()]
    for twin in twins:
        store.set_meta(f"no twin {twin.run}", twin.reason)
        if twin.checkpoints:
            store.put_run(twin.name, len(names) + names.index(twin.run), COOLED, None, series[twin.run].spec)
            store.set_status(twin.name, "complete", max(twin.checkpoints))
        else:
            store.drop_checkpoints(twin.name, store.checkpoint_steps(twin.name))
    return [twin for twin in twins if twin.checkpoints]


def measure_losses(
    twins: Sequence[Twin],
    runs: Mapping[str, Run],
    corpora: StudyCorpora,
    store: Store,
    engine: Engine,
    progress: Progress,
) -> Iterator[tuple[str, str]]:
    """Store the validation losses of the twins of runs trained here as their logs; yield each failure by its run."""
    tasks: dict[str, OtherCorporaTask] = {}
    recipes: dict[str, str] = {}
    for twin in twins:
        run = runs.get(twin.run)
        if run is None:
            continue
        recipe = twin.recipe(corpora.sha256.get(run.corpus, ""))
        if store.meta(f"recipe {twin.name}") != recipe:
            recipes[twin.run] = recipe
            text = {"validation_loss": corpora.path(run.corpus)}
            tasks[twin.run] = OtherCorporaTask(run, Path(), tuple(twin.checkpoints.values()), text)
    names = {twin.run: twin.name for twin in twins}
    for done, (task, result) in enumerate(engine.run(other_corpora_task, tasks.values()), 1):
        progress(STAGE, done, len(tasks))
        name = task.run.name
        if isinstance(result, TaskFailure):
            yield name, result.message
            continue
        rows = {step: {column: loss} for column, losses in result.items() for step, loss in losses.items()}
        store.put_log(names[name], LogTable.from_rows(rows))
        store.set_meta(f"recipe {names[name]}", recipes[name])
