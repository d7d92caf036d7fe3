"""The answer of the live page as data: of each run whether it needs a person, why, and where its loss ends."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from toposcope.errors import ToposcopeError
from toposcope.logs.raw import one_line
from toposcope.report.live.assets import Assets
from toposcope.report.live.feed import Feed
from toposcope.report.live.logs import FoundRuns, LogScan
from toposcope.report.live.status import Status
from toposcope.report.live.words import answer_of, progress_of, seconds_left, words
from toposcope.wording import described

SCHEMA = "toposcope.check/1"
WATCH_SECONDS = 1.0  # between two looks
MAX_FAULTS, MAX_FAULT_LENGTH = 3, 1000  # faults that an error names, and characters of a sentence
NO_CHARTS = Assets({}, "", {}, {}, [], 0)


class End(msgspec.Struct, frozen=True):
    """Where the loss of a run ends, by its forecast."""

    loss: Annotated[float, described("predicted final loss, in the unit of the run")]
    low: Annotated[float, described("lower end of its 90% interval")]
    high: Annotated[float, described("upper end of its 90% interval")]
    last_step: Annotated[int, described("step at which it ends")]
    target: Annotated[str, described("which loss: training loss or validation loss")]


class CheckedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    name: Annotated[str, described("of the run, as on the live page: a path below the folder, or of a study")]
    needs_person: Annotated[bool, described("whether somebody should look at it")]
    health: Annotated[str, described("one of the words of methods/health.md, such as Healthy, Finished or Diverged")]
    reason: Annotated[str, described("why, a sentence; empty where the word says all")]
    answer: Annotated[str, described("the first sentences of the live page on the run")]
    in_training: Annotated[bool, described("whether it goes on, as far as its log shows")]
    step: Annotated[int | None, described("last step; null before anything is logged")]
    last_step: Annotated[int | None, described("planned or estimated step; null where neither is known")]
    axis: Annotated[str, described("what both count: step, epoch, row, sample or token")]
    loss: Annotated[
        float | None, described("last loss, of training a mean of the last rows; null if NaN or not logged")
    ]
    loss_name: Annotated[str, described("which loss that is: training loss or validation loss")]
    unit: Annotated[str, described("of all losses of the run: nats, bits, bits per byte and so on, per token")]
    end: Annotated[End | None, described("its forecast; null where there is none")]
    no_forecast: Annotated[str, described("why there is none, in sentences; empty where there is one or the run ended")]
    seconds_left: Annotated[float | None, described("seconds of training that are left; null where unknown")]
    written: Annotated[float | None, described("when its log was last written, in seconds since 1970")]
    alerts: Annotated[int, described("alerts of its monitor")]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `toposcope check` on a run or folder."""

    schema: Annotated[str, described(f"{SCHEMA}: the number rises when a field changes its meaning or leaves")]
    path: Annotated[str, described("what was checked")]
    status: Annotated[int, described("0: no run needs a person; 1: at least one does")]
    answer: Annotated[str, described("the first sentences of the live page")]
    runs: Annotated[list[CheckedRun], described("the most urgent first")]
    not_read: Annotated[list[str], described("what could not be read, and why; and what is left to read")]

    @property
    def states(self) -> dict[str, tuple[bool, bool]]:
        """Of each run whether it needs a person, and whether it goes on."""
        return {run.name: (run.needs_person, run.in_training) for run in self.runs}


class Checks:
    """Looks at a run or folder again and again; only what was written since is read."""

    def __init__(self, path: Path) -> None:
        self.path, self._scan = path, LogScan(path)
        self._feed: Feed | None = None

    def now(self) -> Check:
        """Return the answer; a `ToposcopeError` where there is nothing to read."""
        if not self.path.exists():
            raise ToposcopeError(f"{self.path}: no such file or folder")
        if self._feed is None:
            self._feed = Feed(self.path, NO_CHARTS, self._scan)
        else:
            self._feed.discover()
        statuses, faults = self._feed.statuses()
        found = self._scan.found or FoundRuns()
        not_read = reasons_not_read(faults, found)
        if not statuses:
            raise ToposcopeError(found.refused or "; ".join([f"{self.path}: no run to read", *not_read[:MAX_FAULTS]]))
        now = time.time()
        page = words(
            statuses, {}, self._feed.left_out, now, {}, stoppable=[printable(name) for name in self._feed.stoppable()]
        )
        runs = [_run(status, now) for status in sorted(statuses, key=lambda s: (s.health.rank, s.name))]
        return Check(
            schema=SCHEMA,
            path=str(self.path),
            status=int(any(run.needs_person for run in runs)),
            answer=" ".join(filter(None, (page["answer"], page["rest"], page["second"]))),
            runs=runs,
            not_read=not_read,
        )

    def changed(self, sleep: Callable[[float], None] = time.sleep) -> Check:
        """Wait until a run comes to need a person or no longer does, ends or appears; at once where no run goes on."""
        before: Check | None = None
        while True:
            try:
                answer = self.now()
            except ToposcopeError:  # nothing is there yet, or just replaced
                answer = None
            if answer is not None and not any(run.in_training for run in answer.runs):
                return answer
            if answer is not None and before is not None and answer.states != before.states:
                return answer
            before = answer or before
            sleep(WATCH_SECONDS)


def printable(name: str) -> str:
    """Return the name of a run, whole, as it may stand in a sentence."""
    return one_line(name, len(name))


def reasons_not_read(faults: Mapping[str, str], found: FoundRuns) -> list[str]:
    """Return what could not be read and why, each once: studies, by name, and logs."""
    said = [each.removeprefix("Not shown: ") for each in (*faults.values(), *found.faults)]
    paths = [Path(each.partition(": ")[0]) for each in said]
    known = {str(path) for each in paths for path in (each, each.parent)}
    reasons = sorted([*said, *(each for each in found.reasons if each.partition(": ")[0] not in known)])
    return [one_line(each, MAX_FAULT_LENGTH) for each in reasons]


def _run(status: Status, now: float) -> CheckedRun:
    word, _, rest = answer_of(status)
    end = None
    if (forecast := status.forecast) is not None:
        last_step, loss, low, high = (forecast[name] for name in ("last_step", "loss", "low", "high"))
        end = End(float(loss), float(low), float(high), int(last_step), status.target)
    return CheckedRun(
        name=one_line(status.name),
        needs_person=status.health.needs_person,
        health=status.health.words,
        reason=one_line(status.health.reason, MAX_FAULT_LENGTH),
        answer=one_line(" ".join(filter(None, (word, rest, progress_of(status, now)))), MAX_FAULT_LENGTH),
        in_training=status.is_training,
        step=status.step,
        last_step=status.last_step,
        axis=status.axis,
        loss=status.last_loss,
        loss_name=status.loss_name,
        unit=status.unit,
        end=end,
        no_forecast=status.no_forecast if status.is_training and end is None else "",
        seconds_left=seconds_left(status, now),
        written=status.updated or status.written or None,
        alerts=status.n_alerts,
    )
