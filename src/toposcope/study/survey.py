"""Reads and measures the checkpoints of a study: only what is missing, by workers; what they find is written here."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.sources import is_remote
from toposcope.engine.cluster import ClusterLostError
from toposcope.engine.pool import Engine, Result, TaskFailure, Workers
from toposcope.errors import ToposcopeError
from toposcope.probes import Failure, Measurement, Probe
from toposcope.probes.feature import NETWORK
from toposcope.probes.needs import Input, RunContext, needs_of
from toposcope.progress import Progress, silent
from toposcope.study.diagrams import Source, StoredContent, diagram_bytes, diagram_file, read_diagrams, read_states
from toposcope.study.missing import Pending, missing
from toposcope.study.store import Store, write_large_diagrams
from toposcope.study.tables import CheckpointRow, MeasurementRow, Unit
from toposcope.study.tasks import (
    Hashed,
    Measured,
    MeasureTask,
    Read,
    ReadTask,
    measure_task,
    measure_tasks,
    or_failure,
    read_tasks,
)
from toposcope.study.work import (
    CheckpointSize,
    WorkProgress,
    batches,
    checkpoint_size,
    cut,
    longest_task,
    milliseconds,
)

Task = TypeVar("Task", ReadTask, MeasureTask)
RunStep = tuple[str, int]  # a run and a step

# How work is divided: starting, sending and writing a task costs about a millisecond.
LONG_TASK_MS = 10_000  # a task that takes longer starts before all others, so that it does not run alone at the end
MAX_GROUPED = 64  # tasks that a process gets at once, and whose results are written in one transaction
MAX_GROUP_MS = 1000  # their expected milliseconds; a task that takes longer is handed out by itself
GROUPS_PER_WORKER = 8  # groups of tasks for each process, at least, so that the processes finish together
BYTES_READ_PER_MS = 100_000  # read, hashed and summarised for the doctor
OPENING_MS = 2  # to open a checkpoint, and for each probe on it, whatever its size
START_SECONDS = 2.0  # to start processes, each with its imports
OPENING_THREADS = 8  # remote checkpoints whose headers are fetched side by side: servers refuse many more


@dataclass
class Survey:
    """Reads and measures the checkpoints of a study."""

    store: Store
    checkpoints: Mapping[str, Mapping[int, Checkpoint]]  # by run, then by step
    sources: Mapping[Probe, Probe | None]  # every probe, with the probe whose diagrams it compares
    engine: Engine  # what reads and measures checkpoints
    here: Workers  # what does the work that needs this machine's files; often the same
    keep: int | None  # bytes of fetched checkpoints that may lie on this disk (see `Access`)
    contexts: Mapping[str, RunContext]  # what inputs are made from, by run
    fail: Callable[[Mapping[Unit, str]], None]  # takes what failed, with the reason
    progress: Progress = silent
    rows: dict[str, dict[int, CheckpointRow]] = field(default_factory=dict)
    """Checkpoints that could be read, as the store has them, by run and step."""
    _sizes: dict[RunStep, CheckpointSize] = field(init=False, default_factory=dict)

    def go(self) -> None:
        """Read and measure what is missing."""
        self._open()
        stale, alone = self._stale(), dict.fromkeys(probe for probe, source in self.sources.items() if source is None)
        if self.engine is self.here and self._is_quick(stale):
            self.engine = self.here = Workers(1)
        reading = WorkProgress("read", sum(self._sizes[place].stored for place in stale), self.progress)
        shapes = [size.shapes for size in self._sizes.values()]
        expected = sum(milliseconds(probe, each) for probe in alone for each in shapes)
        longest = max((longest_task(probe, each) for probe in alone for each in shapes), default=0)
        at_once = min(self.engine.n_workers, expected / max(longest, 1))
        measuring = WorkProgress("measure", expected, self.progress, at_once)

        def fetched(place: RunStep) -> int:
            return self._sizes[place].stored if self._is_remote(place) else 0

        # What a portion fetches is still on this disk when it is measured.
        for portion in cut(list(self._sizes), fetched, math.inf if self.keep is None else self.keep // 2):
            try:
                self._read([place for place in portion if place in stale], reading)
                self._measure(portion, alone, measuring)
            except ClusterLostError as error:
                undone = {(each.row.run, each.row.step) for each in self._missing(self._sizes, alone)}
                done = {(run, step) for run, rows in self.rows.items() for step in rows} - undone
                what = f"{len(done)} of {len(self._sizes)} checkpoints are done and kept; run the same command again"
                raise ToposcopeError(f"{error}; {what}") from error
        self._measure(
            list(self._sizes), {probe: source for probe, source in self.sources.items() if source is not None}
        )

    def _open(self) -> None:
        """Open every checkpoint's header; what cannot be opened has no size, and is reported when it is read."""
        places = [(run, step) for run, checkpoints in self.checkpoints.items() for step in sorted(checkpoints)]
        checkpoints = [self.checkpoints[run][step] for run, step in places]
        is_slow = any(map(self._is_remote, places))
        with ThreadPoolExecutor(OPENING_THREADS) as threads:
            sizes = (threads.map if is_slow else map)(checkpoint_size, checkpoints)
            for place, size in zip(places, sizes, strict=True):
                self._sizes[place] = size
                if is_slow:
                    self.progress("open", len(self._sizes), len(places))

    def _is_remote(self, place: RunStep) -> bool:
        run, step = place
        return is_remote(self.checkpoints[run][step].location)

    def _stale(self) -> set[RunStep]:
        """Return the checkpoints that are new or have changed; what is gone is forgotten."""
        stale = set()
        for run, checkpoints in self.checkpoints.items():
            known, summarised = self.store.checkpoints(run), set(self.store.evidence(run))
            self.store.drop_checkpoints(run, sorted((set(known) | summarised) - set(checkpoints)))
            self.rows[run] = {step: row for step, row in known.items() if step in checkpoints}
            for step, checkpoint in checkpoints.items():
                row = known.get(step)
                if row is None or step not in summarised or _is_changed(checkpoint, row):
                    stale.add((run, step))
        return stale

    def _is_quick(self, stale: Collection[RunStep]) -> bool:
        """Return whether to start other processes would take longer than they save.

        Probes of other packages, and models that are brought to life, get processes all the same: what kills one of
        these does not end the study.
        """
        shipped = all(type(probe).__module__.startswith("toposcope.") for probe in self.sources)
        if self.here.has_started or not shipped or needs_of(*self.sources) or any(map(self._is_remote, stale)):
            return False
        opened = len(stale) + len(self.sources) * len(self._sizes)
        expected = (sum(map(self._reading_ms, stale)) + OPENING_MS * opened) / 1000
        expected += sum(probe.expected_seconds(size.shapes) for probe in self.sources for size in self._sizes.values())
        return expected * (1 - 1 / self.here.n_workers) < START_SECONDS

    def _read(self, portion: Sequence[RunStep], work: WorkProgress) -> None:
        """Read and hash checkpoints."""
        tasks = [ReadTask(place[0], self.checkpoints[place[0]][place[1]], self._reading_ms(place)) for place in portion]
        for finished in run_groups(self.engine, read_tasks, groups(tasks, self.engine.n_workers), work.add_running):
            self._keep_read(finished)
            for task, _ in finished:
                work.add(self._sizes[task.run, task.checkpoint.step].stored)

    def _reading_ms(self, place: RunStep) -> int:
        """Return the expected milliseconds of reading a checkpoint; what is fetched is read by itself."""
        return LONG_TASK_MS if self._is_remote(place) else self._sizes[place].stored // BYTES_READ_PER_MS

    def _keep_read(self, finished: Sequence[tuple[ReadTask, Read | TaskFailure]]) -> None:
        """Keep what was read of several checkpoints."""
        whole = []
        with self.store.one_transaction():
            for task, result in finished:
                run, step = task.run, task.checkpoint.step
                row, evidence = (None, None) if isinstance(result, TaskFailure) else result
                if row is not None:
                    whole.append((row, evidence))
                    self.rows[run][step] = row
                    continue
                self.store.drop_checkpoints(run, [step])
                self.rows[run].pop(step, None)
                message = result.message if isinstance(result, TaskFailure) else result[1].error
                self.fail({Unit(run, step, "", "read", ""): message})
                if evidence is not None:
                    self.store.put_evidence(run, step, evidence)
            self.store.put_checkpoints(whole)

    def _measure(
        self, places: Sequence[RunStep], probes: Mapping[Probe, Probe | None], work: WorkProgress | None = None
    ) -> None:
        """Measure what is missing; comparisons, which have no `work` of their own, are counted."""
        pending = {(each.row.run, each.row.step, each.probe): each for each in self._missing(places, probes)}
        tasks = [task for each in pending.values() for task in self._tasks(each)]
        counts = work is None
        if work is None:
            work = WorkProgress("compare", len(tasks), self.progress)
        else:
            expected = sum(milliseconds(probe, self._sizes[place].shapes) for place in places for probe in probes)
            work.add(expected - sum(task.milliseconds for task in tasks))
        # The files of runs trained here, and diagrams, lie on this machine.
        is_here = [probes[task.probe] is not None or self._reads_training(task) for task in tasks]
        here, anywhere = (
            [task for task, stays in zip(tasks, is_here, strict=True) if stays is x] for x in (True, False)
        )
        anywhere.sort(key=lambda task: max(task.milliseconds, LONG_TASK_MS), reverse=True)
        parts = Counter(task.place for task in tasks)
        for engine, of_engine in ((self.engine, anywhere), (self.here, here)):
            waiting = (
                [self._with_stored(task, pending[task.place]) for task in group]
                for group in groups(of_engine, engine.n_workers)
            )
            for finished in run_groups(engine, measure_tasks, waiting, silent if counts else work.add_running):
                self._keep(finished)
                for task, _ in finished:
                    work.add(1 if counts else task.milliseconds)
                    parts[task.place] -= 1
                    wanted = pending[task.place].wanted
                    if NETWORK in wanted and NETWORK not in task.wanted and not parts[task.place]:
                        network = replace(task, wanted={NETWORK: wanted[NETWORK]})
                        network = replace(self._with_stored(network, pending[task.place]), first=None, previous=None)
                        self._keep([(network, measure_task(network))])

    def _reads_training(self, task: MeasureTask) -> bool:
        return self.contexts[task.run].directory is not None and any(n.of_training for n in needs_of(task.probe))

    def _missing(self, places: Iterable[RunStep], probes: Mapping[Probe, Probe | None]) -> list[Pending]:
        """Return what is declared at some places and not stored, run by run."""
        steps_of: dict[str, set[int]] = {}
        for run, step in places:
            steps_of.setdefault(run, set()).add(step)
        found = []
        for run, only in steps_of.items():
            # A probe that compares looks at earlier checkpoints too.
            steps = sorted(self.rows[run] if any(probes.values()) else self.rows[run].keys() & only)
            keys = {need.name: self._keys_of(need, run, steps) for need in needs_of(*probes, *probes.values())}
            found += missing(self.store, run, self.rows[run], sorted(self.checkpoints[run]), only, probes, keys)
        return found

    def _keys_of(self, need: Input, run: str, steps: Sequence[int]) -> dict[int, str] | None:
        """Return the keys of an input by step, if the run can have it; where there is none, it is an error."""
        are_trained = any(context.directory is not None for context in self.contexts.values())
        if self.contexts[run].directory is None and (need.trained_here or (need.of_training and are_trained)):
            return None
        keys = {}
        for step in steps:
            key = or_failure(need.key)(self.checkpoints[run][step], self.contexts[run])
            if isinstance(key, TaskFailure):
                self.fail({Unit(run, step, "", need.name, ""): key.message})
            else:
                keys[step] = key
        return keys

    def _tasks(self, each: Pending) -> Iterator[MeasureTask]:
        """Yield the tasks of one checkpoint and probe: batches of layers, where these can be measured apart."""
        # By what was hashed: the header this process has seen may be that of a file that was replaced since.
        row, probe, layers, parts = each.row, each.probe, each.row.shapes, [list(each.wanted)]
        if probe.by_layer() and each.source is None:
            layers = {name: layers[name] for name in each.wanted if name != NETWORK}
            if len(made := list(batches(probe, layers))) > 1:
                parts = made
        for names in parts:
            part = {name: layers[name] for name in names if name in layers} if len(parts) > 1 else layers
            # One that needs the states of many checkpoints is handed out by itself.
            is_large = "states" in probe.REQUIRES
            yield MeasureTask(
                run=row.run,
                checkpoint=self.checkpoints[row.run][row.step],
                fingerprint=row.fingerprint,
                probe=probe,
                wanted={name: each.wanted[name] for name in names},
                is_part=each.is_begun or len(parts) > 1,
                context=self.contexts[row.run] if needs_of(probe) else None,
                milliseconds=MAX_GROUP_MS if is_large else milliseconds(probe, part),
                n_bytes=probe.expected_bytes(part),
            )

    def _with_stored(self, task: MeasureTask, each: Pending) -> MeasureTask:
        """Return a task with what is stored of other layers and checkpoints, which is read when it is handed out."""
        row, first, previous, source, requires = each.row, each.first, each.previous, each.source, each.probe.REQUIRES
        given, earlier = dict[str, Any](), list[Hashed]()
        if task.is_part and NETWORK in task.wanted:  # statistics of layers, to combine for the network
            given["known"] = self.store.statistics(row.run, row.step, task.probe.name(), task.probe.options())
        if "earlier" in requires:
            given["content"] = row.content()
            earlier = [self._hashed(other)._replace(content=other.content()) for other in each.earlier]

        def stored(other: CheckpointRow | None, read: Callable[[Source], Mapping[str, Any]]) -> dict[str, Any]:
            """Return what a probe stored, nothing where it cannot be read; the probe that compares reports that."""
            place = self.store.diagrams(diagram_file(other.run, other.step, source)) if other and source else None
            try:
                return dict(read(place)) if place is not None else {}
            except ToposcopeError:
                return {}

        if "diagrams" in requires:
            given |= {"diagrams": stored(row, read_diagrams), "previous_diagrams": stored(previous, read_diagrams)}
        if "states" in requires:
            given |= {"first_step": first and first.step, "previous_step": previous and previous.step}
            whole = {other.step for other in (row, first, previous) if other}
            given["states"] = {
                other.step: stored(other, partial(read_states, only="" if other.step in whole else NETWORK))
                for other in (*each.earlier, row)
            }
        return replace(
            task,
            given=given,
            first=self._hashed(first) if first and "first" in requires else None,
            previous=self._hashed(previous) if previous and "previous" in requires else None,
            earlier=tuple(earlier),
        )

    def _hashed(self, row: CheckpointRow) -> Hashed:
        return Hashed(self.checkpoints[row.run][row.step], row.fingerprint)

    def _keep(self, finished: Sequence[tuple[MeasureTask, Measured | TaskFailure]]) -> None:
        """Write what was measured: diagrams, then the rows that point to them."""
        contents: dict[str, bytes] = {}
        standing: dict[str, set[str]] = {}  # layers whose rows stand, by the file of their diagrams
        rows, errors = list[MeasurementRow](), dict[Unit, str]()
        for task, found in finished:
            results = [Failure(n, found.message) for n in task.wanted] if isinstance(found, TaskFailure) else found
            measured = [result for result in results if isinstance(result, Measurement)]
            of_task = Unit(task.run, task.checkpoint.step, "", task.probe.name(), task.probe.options())
            file = diagram_file(task.run, task.checkpoint.step, task.probe)
            if file not in standing:
                standing[file] = self.store.measured_layers(of_task) if task.is_part else set()
            diagrams = {result.layer: result.diagrams for result in measured if result.diagrams}
            states = {result.layer: result.states for result in measured if result.states is not None}
            before: Source | None = None
            if file in contents:
                before = StoredContent(file, contents[file])
            elif standing[file] or not diagrams:
                before = self.store.diagrams(file)
            if diagrams or before is not None:
                # Also without new ones: diagrams of a layer that now fails must go.
                contents[file] = diagram_bytes(diagrams, states, before, standing[file])
            standing[file] |= {result.layer for result in measured}
            for result in measured:
                unit = of_task._replace(layer=result.layer)
                rows.append((unit, task.wanted[result.layer], result, file if result.diagrams else ""))
            errors |= {of_task._replace(layer=r.layer): r.message for r in results if isinstance(r, Failure)}
        write_large_diagrams(self.store.path.parent, contents)
        with self.store.one_transaction():
            self.store.put_diagrams(contents)
            self.store.put_measurements(rows)
            self.fail(errors)


def groups(tasks: Sequence[Task], n_workers: int) -> Iterator[list[Task]]:
    """Group tasks that are too small to be handed out, and their results to be written, one at a time.

    Every worker gets several groups, so that the workers finish together.
    """
    size = max(1, min(MAX_GROUPED, len(tasks) // (GROUPS_PER_WORKER * n_workers)))
    return cut(tasks, lambda task: task.milliseconds, MAX_GROUP_MS, size)


def run_groups(
    engine: Engine,
    function: Callable[[Sequence[Task]], Sequence[Result]],
    waiting: Iterable[list[Task]],
    progress: Progress,
) -> Iterator[list[tuple[Task, Result | TaskFailure]]]:
    """Run groups of tasks; the tasks of one that killed its process are run again one by one."""
    apart: list[list[Task]] = []
    for group, results in engine.run(function, waiting, progress, lambda group: max(task.n_bytes for task in group)):
        if not isinstance(results, TaskFailure):
            yield list(zip(group, results, strict=True))
        elif len(group) == 1:
            yield [(group[0], results)]
        else:
            apart += [[task] for task in group]
    if apart:
        yield from run_groups(engine, function, apart, progress)


def _is_changed(checkpoint: Checkpoint, row: CheckpointRow) -> bool:
    """Return whether a checkpoint differs from the stored one, or its layers have other roles."""
    try:
        roles = [(layer.name, layer.role) for layer in checkpoint.analysed()]
        known = [(layer.layer, layer.role) for layer in row.layers]
        return (row.path, known, row.fingerprint) != (checkpoint.location, roles, checkpoint.fingerprint())
    except ToposcopeError:  # reported when it is read
        return True
