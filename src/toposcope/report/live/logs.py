"""Logs that nobody monitors, as the live page follows them: a thread reads what has changed; nothing is written."""

import re
import shlex
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.analysis.health import Health, health
from toposcope.analysis.health.check import DIVERGED, FAILED, FINISHED
from toposcope.analysis.health.monitored import silent_at
from toposcope.errors import ToposcopeError
from toposcope.forecasting.forecast_report import forecast
from toposcope.forecasting.headline import kind_of
from toposcope.forecasting.siblings import is_same_run, merged, siblings_nearby, without_itself
from toposcope.logs import LogTable, Run, read_logs
from toposcope.logs.finding import STORE, FoundLogs, LogSource, Version, find_sources
from toposcope.logs.formats import format_of
from toposcope.logs.formats.console import PATTERN_HINT
from toposcope.logs.raw import one_line
from toposcope.logs.reading import console_hint
from toposcope.logs.schedules.schedule import UnknownEndError, planned
from toposcope.logs.watched import Watched
from toposcope.report.live.status import LOGGED, Status, ended_at, goes_on, in_sweep, recent_loss
from toposcope.report.live.stores import LOG_COLUMNS, MAX_NEW, MAX_VALUE, SILENT_SECONDS, Line, New
from toposcope.report.naming import LOG
from toposcope.wording import counted

MAX_LOGS = 1 << 12  # logs of a folder that are read, the last written ones
MAX_SIBLINGS, MAX_SIBLING_ROWS = 128, 1500  # logs whose complete runs a forecast may use, and rows of each
MAX_FORECASTS = 32  # runs in training that one look forecasts, those written last, of a tenth of a second each
MAX_WITH_SIBLINGS = 8  # runs in training that one look forecasts with siblings, of half a second each; more are without
MAX_SHARE = 0.1  # of the time: a log that takes a second to read is read every ten seconds at most
MAX_PAUSE = 60.0  # seconds between two looks, however long they take
MAYBE_LOGS = (".txt", ".err", ".json")  # endings of files most of which are no log
# without advice and examples
REASON = re.compile(r"(?:cannot be read as [^:]*: )?(?:log [^:]*: )?(.*?)\.?(?:[;:(]|, as in |$)")
N_NAMED = 2  # refused logs that are named
STATUS = {FINISHED: "complete", DIVERGED: "diverged", FAILED: "failed"}
COMPARED = ("loss", "learning_rate", "grad_norm", "weight_norm")  # columns by which a log is known to be continued
FORECAST_SHARE = 0.01  # of the planned steps, by which the log grows from one forecast to the next
MAX_FORECAST_ROWS = 1000  # of a log; a longer one is averaged over blocks: 0.1 s in place of 6 s for 100,000 rows
MIN_SEEN = 0.05  # of the planned steps, before which an interval holds nearly everything
N_TIMES = 32  # writes by which the time of a step is known


@dataclass(eq=False)
class LoggedRun:
    """One run: the log as it was last read, and what was noticed so far."""

    log: Run
    path: Path
    seq: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # of the rows, in order of reading
    times: "deque[tuple[float, int]]" = field(default_factory=lambda: deque(maxlen=N_TIMES))  # of writes, and steps
    health: Health = field(default_factory=lambda: Health(""))
    judge_at: float = 0.0  # time from which on the run may be silent
    watched: Watched = field(default_factory=Watched)  # when it was written
    forecast: Mapping[str, Any] | None = None  # the last one, as `Status` has it
    last_step: int | None = None  # that is planned
    no_forecast: str = ""
    borrowed: str = ""  # what the last forecast took from siblings, a clause

    def read(self, log: Run, written: float, last: int) -> bool:
        """Take the log as it is now, number its new rows after the last one; return whether it is another one."""
        is_other = not _is_continued(self.log.table, log.table)
        if is_other:
            self.seq, self.forecast, self.times = self.seq[:0], None, deque(maxlen=N_TIMES)
        self.seq = _numbers(self.log.table, self.seq, log.table, last)
        if not self.times or log.last_seen > self.times[-1][1]:
            self.times.append((written, log.last_seen))
        self.log, self.last_step = log, log.last_step
        if log.diverged is None:
            with suppress(ToposcopeError):  # the forecast says why there is none
                self.last_step = planned(log).last_step
        return is_other

    def judge(self, written: float) -> None:
        """Judge the run with the plan that its own log gives."""
        now, self.watched = time.time(), Watched(updated=written, step_seconds=self.step_seconds())
        run = replace(self.log, last_step=self.last_step, watched=self.watched)
        self.health, self.judge_at = health(run, now), max(silent_at(run), now + SILENT_SECONDS)

    def step_seconds(self) -> float | None:
        """Return the usual time of a step between the writes that were seen; None before there are two."""
        rates = [(b - a) / (last - first) for (a, first), (b, last) in pairwise(self.times) if b > a]
        return median(rates) if rates else None

    def predict(self, siblings: Sequence[Run]) -> None:
        """Forecast the run where its log has grown enough since the last time; remember why there is no forecast."""
        if self.health.word in STATUS or not self._forecast_is_due():
            return
        log, self.borrowed = self.log, ""
        try:
            others = without_itself(log, siblings_nearby(log, siblings))
            report = forecast(log.thinned(MAX_FORECAST_ROWS), siblings=others)
            last_step = report.schedule.last_step
            if log.last_seen < MIN_SEEN * last_step:
                self.no_forecast = f"No forecast yet: the first comes when {MIN_SEEN:.0%} of the run is logged."
            elif report.default is None:
                self.no_forecast = f"No forecast: by the plan of other runs it ended at step {last_step:,}."
            elif log.unit != "nats":
                self.no_forecast = f"No forecast here: the loss is in {log.unit}. See `toposcope forecast {self.path}`."
            else:
                low, high = report.interval
                self.no_forecast, self.borrowed = "", report.borrowed
                self.forecast = {
                    **{"step": log.last_seen, "last_step": last_step, "loss": report.loss, "low": low, "high": high},
                    **{"advice": "", "target": f"{kind_of(log)} loss"},
                }
        except UnknownEndError as error:
            self.no_forecast = error.on_page(self.path)
        except ToposcopeError as error:
            self.no_forecast = f"No forecast: {str(error).removeprefix(f'{log.name}: ').rstrip('.')}."

    def _forecast_is_due(self) -> bool:
        """Return whether there is none, the log has grown, or it may have come to its end."""
        every, seen = FORECAST_SHARE * (self.last_step or 0), self.log.last_seen
        is_near_end = self.last_step is not None and seen > self.last_step - every
        return is_near_end or self.forecast is None or seen >= self.forecast["step"] + every

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """Return what is logged and can be drawn, by column."""
        assert self.log.table is not None
        values = self.log.table.values
        names = [*LOG_COLUMNS, *sorted(self.log.table.further_targets)]
        return {name: values[name] for name in names if not np.isnan(values[name]).all()}

    def lines(self, shown: str, after: int, until: int) -> Iterator[Line]:
        """Yield the rows that have such numbers."""
        assert self.log.table is not None
        new = (self.seq > after) & (self.seq <= until)
        for name, values in {**self.columns(), "tokens": self.log.table.values["tokens"]}.items():
            rows = new & (np.abs(values) <= MAX_VALUE)
            if rows.any():
                few = [float(f"{value:.6g}") for value in values[rows].tolist()]
                yield Line(f"{LOG} {name}", shown, "", self.log.table.steps[rows].tolist(), few)

    def status(self, shown: str, written: float) -> Status:
        """Return the status of the run."""
        table = self.log.table
        assert table is not None
        lost = set(table.nan_steps.get("loss", ()))
        recent = [
            (step, None if loss != loss and step not in lost else loss)
            for step, loss in zip(table.steps[:-101:-1].tolist(), table.values["loss"][:-101:-1].tolist(), strict=True)
        ]
        validated = np.flatnonzero(np.isfinite(losses := table.values["validation_loss"]))
        best = validated[np.argmin(losses[validated])] if len(validated) else None
        status, step = STATUS.get(self.health.word, "running"), int(table.steps[-1])
        rate = self.step_seconds()
        return Status(
            name=shown,
            health=self.health,
            kind=LOGGED,
            status=status,
            step=step,
            last_step=self.last_step
            or (self.forecast and self.forecast["last_step"])
            or (step if status != "running" else None),
            axis=self.log.axis,
            unit=self.log.unit,
            loss=recent_loss(recent) if (ended := ended_at(self.log, self.health)) is None else ended,
            validation=float(losses[validated[-1]]) if len(validated) else None,
            validated=int(table.steps[validated[-1]]) if len(validated) else None,
            best=None if best is None else (int(table.steps[best]), float(losses[best])),
            forecast=self.forecast if goes_on(status, self.health) else None,
            borrowed=self.borrowed,
            no_forecast=self.no_forecast,
            seconds_left=rate * max(0, self.last_step - step) if rate and self.last_step else None,
            updated=round(written, 1),
            written=written,
        )


def _is_continued(old: LogTable | None, new: LogTable | None) -> bool:
    """Return whether a table has the rows of another, the last of which may have grown, and no value is gone."""
    assert old is not None
    assert new is not None
    n = len(old.steps)
    if not np.array_equal(old.steps, new.steps[:n]):
        return False
    pairs = {name: (values, new.values.get(name, np.full(n, np.nan))[:n]) for name, values in old.values.items()}
    return not any((np.isnan(after) & ~np.isnan(before)).any() for before, after in pairs.values()) and all(
        np.array_equal(before[:-1], after[:-1], equal_nan=True) for before, after in (pairs[name] for name in COMPARED)
    )


def _numbers(old: LogTable | None, seq: NDArray[np.int64], new: LogTable | None, last: int) -> NDArray[np.int64]:
    """Return numbers of rows: those that are as they were keep theirs, the others count on from the last."""
    assert old is not None
    assert new is not None
    n = min(len(seq), len(new.steps))
    same = np.zeros(len(new.steps), bool)
    same[:n] = old.steps[:n] == new.steps[:n]
    for name, values in new.values.items():
        before = old.values.get(name, np.full(len(old.steps), np.nan))[:n]
        same[:n] &= (before == values[:n]) | (np.isnan(before) & np.isnan(values[:n]))
    numbers = np.empty(len(new.steps), np.int64)
    numbers[same] = seq[:n][same[:n]]
    numbers[~same] = last + 1 + np.arange((~same).sum())
    return numbers


@dataclass(eq=False)
class ReadLog:
    """What is known of one log."""

    source: LogSource
    version: Version = ()
    logs: tuple[Run, ...] = ()
    fault: str = ""
    next_time: float = 0.0  # before which it is not read again
    written: float = 0.0
    runs: dict[str, LoggedRun] = field(default_factory=dict)
    # another one when what was read before does not count, as by a server that was started again
    identity: int = field(default_factory=lambda: int(1000 * time.time()))
    last: int = 0  # number of the last row
    n_changes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)  # of the four above

    @property
    def is_refused(self) -> bool:
        """Whether it has the name of a log, and holds none that can be shown."""
        is_named = self.source.is_certain or self.source.path.suffix.lower() not in MAYBE_LOGS
        return not self.runs and bool(self.fault) and is_named and any(size for _, size, _ in self.version)

    @property
    def is_shown(self) -> bool:
        """Whether a fault of it concerns the reader: it is a log for certain, or was read before."""
        return bool(self.fault) and (self.source.is_certain or bool(self.logs))

    def take(self, logs: Sequence[Run], written: float, siblings: Callable[[], Sequence[Run]] | None) -> None:
        """Take the runs as they are now; a page is answered with the earlier ones until all is known of them.

        Without `siblings` they are not forecast.
        """
        runs, last = dict[str, LoggedRun](), self.last
        is_other = bool(self.runs.keys() - {log.name for log in logs})
        for log in logs:
            empty = LoggedRun(replace(log, table=LogTable.from_rows({})), self.source.path)
            run = runs[log.name] = replace(self.runs.get(log.name, empty))
            is_other |= run.read(log, written, last)
            last = max(last, int(run.seq.max(initial=0)))
            run.judge(written)
            if siblings is not None:
                run.predict(siblings())
        with self.lock:
            self.runs, self.last, self.written = runs, last, written
            self.identity += is_other
            self.n_changes += 1

    def judge(self) -> None:
        """Judge again the runs that may have fallen silent."""
        for run in self.runs.values():
            if time.time() > run.judge_at:
                run.judge(self.written)
                self.n_changes += 1

    def in_sweep(self, last_step: int | None) -> list[tuple[Run, bool]]:
        """Return every run as it was logged, and whether it goes on."""
        return [in_sweep(run.log, run.health, run.watched, last_step) for run in self.runs.values()]

    def new(self, known: Sequence[int], names: Mapping[str, str]) -> New:
        """Return what a page does not have; names are those on the page."""
        with self.lock:
            runs, identity, last = self.runs, self.identity, self.last
        is_anew = len(known) != 2 or known[0] != identity
        after = 0 if is_anew else known[1]
        until = min(last, after + MAX_NEW)
        lines = [line for name, run in runs.items() if name in names for line in run.lines(names[name], after, until)]
        return New(lines, [identity, until], is_anew, until < last)

    def statuses(self, names: Mapping[str, str]) -> list[Status]:
        """Return the status of every run."""
        return [run.status(names[name], self.written) for name, run in self.runs.items() if name in names]


@dataclass(frozen=True)
class FoundRuns:
    """What was found so far."""

    logs: Mapping[str, ReadLog] = field(default_factory=dict)  # by name
    faults: Sequence[str] = ()
    refused: str = ""  # why the file that was named is none that can be shown
    not_shown: str = ""  # a sentence on the logs of a folder that are refused
    reasons: Sequence[str] = ()  # why each of them is


class LogScan:
    """The logs of a file or folder, read when asked to look."""

    def __init__(self, target: Path, *, forecasts: bool = True) -> None:
        self.target, self._forecasts = target, forecasts
        self.found: FoundRuns | None = None
        self._known: dict[Path, ReadLog] = {}
        self._next_search = 0.0
        self._sources = FoundLogs()

    def ask(self) -> FoundRuns:
        """Look, and return what is found."""
        self.look()
        return self.found or FoundRuns()

    def look(self) -> None:
        """Read what has changed, and then forecast the runs in training, those written last."""
        for read in self._to_read():
            if not self._read(read):
                read.judge()
        in_training = [
            (read, run)
            for read in sorted(self._known.values(), key=lambda read: -read.written)
            for run in read.runs.values()
            if run.health.word not in STATUS
        ]
        for place, (read, run) in enumerate(in_training if self._forecasts else ()):
            if place < MAX_FORECASTS:
                run.predict(self._siblings(read) if len(in_training) <= MAX_WITH_SIBLINGS else ())
            elif run.forecast is None:
                run.no_forecast = (
                    f"Not forecast with {len(in_training):,} runs in training; "
                    f"`toposcope check {shlex.quote(str(run.path))}` does."
                )
        self._sum_up()

    def _to_read(self) -> list[ReadLog]:
        """Return the logs, searched anew from time to time; none where there is a study."""
        if (self.target / STORE).is_file():
            return []
        if time.monotonic() >= self._next_search:
            self._search()
        return sorted(self._known.values(), key=lambda read: read.source.is_text)

    def _search(self) -> None:
        """Find the logs: those that are ones for certain first, then the last written."""
        begin = time.monotonic()
        self._sources = find_sources(self.target)
        sources = sorted(self._sources.sources, key=_rank)
        kept = {source.path: source for source in sources[:MAX_LOGS]}
        self._known = {path: self._known.get(path) or ReadLog(source) for path, source in kept.items()}
        if left_out := len(sources) - len(kept):
            which = counted(left_out, "file or folder", "files and folders")
            self._sources.cut = (
                f"{which} not read, of {len(sources)} that may be logs; show a folder in it to see them."
            )
        end = time.monotonic()
        self._next_search = end + (end - begin) / MAX_SHARE

    def _read(self, read: ReadLog) -> bool:
        """Read a log if it has changed and its time has come; return whether anything is new."""
        version, written = read.source.version()
        if version == read.version or time.monotonic() < read.next_time:
            return False
        begin = time.thread_time()
        read.version, read.written = version, written
        if not any(size for _, size, _ in version):
            read.fault = f"{read.source.path}: empty so far"
            return True
        try:
            read.logs, read.fault = read_logs(read.source.path).logs, ""
            self._take(read)
        except (ToposcopeError, OSError, sqlite3.Error) as error:
            read.fault = one_line(str(error).removesuffix(PATTERN_HINT), 500)  # the page has no such option
        except Exception as error:  # noqa: BLE001 - whatever one log does, the page and the others go on
            read.fault = f"{read.source.path}: reading it failed ({one_line(f'{type(error).__name__}: {error}', 200)})"
        read.next_time = time.monotonic() + (time.thread_time() - begin) / MAX_SHARE
        return True

    def _take(self, read: ReadLog) -> None:
        """Take the runs of a log; what others say of the same run is in one place with it."""
        owner = next((one for one in self._known.values() if _one_run(one.source, one.logs, read) is not None), read)
        logs, written = owner.logs, owner.written
        for part in self._known.values():
            if (one := _one_run(owner.source, logs, part)) is not None:
                logs, written = (one,), max(written, part.written)
                part.runs = {}
        owner.take(logs, written, self._lender(owner))

    def _lender(self, _owner: ReadLog) -> Callable[[], Sequence[Run]] | None:
        """Return what gives the siblings of a log that is forecast as soon as it is read; None of one that is not."""
        return None

    def _siblings(self, owner: ReadLog) -> list[Run]:
        """Return the complete runs of the other logs."""
        others = [other for other in self._known.values() if other is not owner and other.runs]
        return [
            run.log.thinned(MAX_SIBLING_ROWS)
            for other in others[:MAX_SIBLINGS]
            for run in other.runs.values()
            if run.log.is_complete
        ]

    def _sum_up(self) -> None:
        """Put together what was found."""
        shown = [read for read in self._known.values() if read.runs]
        names = run_names(self.target, [read.source.path for read in shown])
        faulty = [read for read in self._known.values() if read.is_shown]
        if not shown and not faulty:  # nothing is a log: why, of what might have been one
            faulty = [read for read in self._known.values() if read.fault and not read.source.is_text]
        refused = self._refused() if self.target.is_dir() else []
        named = [path for path, _ in refused[:N_NAMED]] if shown else []
        faults = [f"Not shown: {fault}" for path, fault in self._sources.faults.items() if path not in named]
        faults += [
            f"{'Shown as it was' if read.runs else 'Not shown'}: {read.fault}"
            for read in faulty
            if str(read.source.path) not in named
        ]
        unread = sum(not read.version for read in self._known.values())
        notes = [f"{counted(unread, 'file')} still to be read."] if unread else []
        has_studies = any(any(self.target.glob(f"{depth}{STORE}")) for depth in ("", "*/"))
        if not (shown or faults or refused or unread or has_studies) and self.target.is_dir():
            notes = [f"no training log yet{console_hint(self.target)}."]
        self.found = FoundRuns(
            logs=dict(sorted(zip(names, shown, strict=True), key=lambda pair: pair[0])),
            faults=[*faults, *notes, *([self._sources.cut] if self._sources.cut else [])],
            refused="" if shown else self._refusal(),
            not_shown=_not_shown([reason for _, reason in refused], len(shown)),
            reasons=[f"{Path(path).parent}/{reason}" for path, reason in refused],
        )

    def _refused(self) -> list[tuple[str, str]]:
        """Return path and reason of what has the name of a log in a folder, and holds none that can be shown."""
        reads = sorted(self._known.values(), key=lambda read: not read.source.is_text)
        faults = {str(read.source.path): read.fault for read in reads if read.is_refused} | self._sources.faults
        reasons = {path: REASON.match(fault.removeprefix(path).partition(": ")[2]) for path, fault in faults.items()}
        return [(path, f"{Path(path).name}: {one_line(found[1], 70)}") for path, found in reasons.items() if found]

    def _refusal(self) -> str:
        """Return why a file that was named cannot be shown, now or later; empty if it can."""
        if not self.target.is_file() or not self.target.stat().st_size:
            return ""
        try:
            if format_of(self.target, look=True) is None:
                read_logs(self.target)
        except ToposcopeError as error:
            return str(error)
        return ""


class LogReader(LogScan):
    """The same for a page: a thread looks whenever it is asked to, and each log is known as soon as it is read."""

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        self._asked = threading.Event()
        self._looked = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()

    def ask(self) -> FoundRuns:
        """Have the thread look again, and return what it had found before."""
        self._asked.set()
        return self.found or FoundRuns()

    def first(self, seconds: float) -> FoundRuns:
        """Wait until it is known which logs there are, `seconds` at most, and return what was found."""
        self._asked.set()
        self._looked.wait(seconds)
        return self.found or FoundRuns()

    def _follow(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            begin = time.monotonic()
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - the page says so, and the next look may succeed
                fault = f"{self.target}: looking for logs failed ({type(error).__name__}: {one_line(str(error), 200)})"
                self.found = replace(self.found or FoundRuns(), faults=[fault])
            time.sleep(min(MAX_PAUSE, time.monotonic() - begin))

    def look(self) -> None:
        """Read what has changed."""
        reads = self._to_read()
        self._sum_up()
        self._looked.set()
        for read in reads:
            if self._read(read):
                self._sum_up()
            else:
                read.judge()

    def _lender(self, owner: ReadLog) -> Callable[[], Sequence[Run]]:
        return partial(self._siblings, owner)


def _not_shown(reasons: Sequence[str], n_shown: int) -> str:
    """Return a sentence on the logs that are refused; empty if none is."""
    if not reasons:
        return ""
    n, more = len(reasons), f"; and {len(reasons) - N_NAMED} more" if len(reasons) > N_NAMED else ""
    of = f"{n} of {counted(n + n_shown, 'file')} {'is' if n == 1 else 'are'} not shown"
    return f"{of}: {'; '.join(reasons[:N_NAMED])}{more}."


def _rank(source: LogSource) -> tuple[bool, bool, float]:
    """Return the place of a log among others; most files of JSON are none."""
    return not source.is_certain, source.path.suffix == ".json", -source.version()[1]


def _one_run(whole: LogSource, logs: Sequence[Run], part: ReadLog) -> Run | None:
    """Return one log of a run, and of the events below its folder or a text in its folder or above; None if not one."""
    if len(logs) != 1 or len(part.logs) != 1 or whole.is_text or whole == part.source:
        return None
    (log,), (other,) = logs, part.logs
    if whole.path in part.source.path.parents:
        other = replace(other, name=log.name)  # to agree is enough
    elif not (part.source.is_text and part.source.path.parent in whole.path.parents):
        return None
    return merged(log, other) if is_same_run(log, other) else None


def run_names(root: Path, paths: Sequence[Path]) -> list[str]:
    """Return the name of each log in a folder: of the highest folder that holds no other, else its own."""
    names = []
    n_below = Counter(place for path in paths for place in (path, *path.parents))
    for path in paths:
        name = path
        while name != root and n_below[name.parent] == 1:
            name = name.parent
        if name == root:
            names.append(root.resolve().name if root.is_dir() else root.stem)
        else:
            name = name.relative_to(root)
            names.append((name.with_suffix("") if (root / name).is_file() else name).as_posix())
    twice = {name for name, count in Counter(names).items() if count > 1}
    return [
        path.relative_to(root).as_posix() if name in twice else name for name, path in zip(names, paths, strict=True)
    ]
