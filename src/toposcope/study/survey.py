"""Reading and measuring checkpoints: by bytes in flight, a portion at a time, only what is missing."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.sources import is_remote
from toposcope.engine.cluster import ClusterLostError
from toposcope.engine.pool import Engine, TaskFailure, Workers
from toposcope.errors import ToposcopeError
from toposcope.probes import Failure, Measurement, Probe
from toposcope.probes.compiling import compile_ahead, is_compiled
from toposcope.probes.feature import NETWORK
from toposcope.probes.needs import Input, RunContext, needs_of
from toposcope.probes.probe import States
from toposcope.progress import Progress, silent
from toposcope.study import tuning
from toposcope.study.diagrams import Source, diagram_bytes, diagram_file, is_readable, read_diagrams, read_states
from toposcope.study.plan import InputKeys, Planned, plan
from toposcope.study.store import Store, write_large_diagrams
from toposcope.study.tables import CheckpointRow, Unit
from toposcope.study.tasks import (
    Hashed,
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
    RunStep,
    WorkProgress,
    WriteGroup,
    batches,
    checkpoint_size,
    longest_task,
    milliseconds,
    portions,
    run_in_groups,
    seconds,
)


@dataclass
class Survey:
    """Reads and measures the checkpoints of a study."""

    store: Store
    directory: Path  # the study's
    checkpoints: Mapping[str, Mapping[int, Checkpoint]]  # by run, then by step
    sources: Mapping[Probe, Probe | None]  # every probe, with the probe whose diagrams it compares
    engine: Engine  # what reads and measures checkpoints
    here: Workers  # what does the work that needs this machine's files; often the same
    keep: int | None  # bytes of fetched checkpoints that may lie on this disk (see `Access`)
    contexts: Mapping[str, RunContext]  # what inputs are made from, by run
    progress: Progress = silent
    errors: dict[Unit, str] = field(default_factory=dict)
    rows: dict[str, dict[int, CheckpointRow]] = field(default_factory=dict)
    """Checkpoints that could be read, as the store has them, by run and step."""
    _n_vertices: int = field(init=False, default=0)
    _is_compiling: bool = field(init=False, default=False)
    _has_to_compile: bool = field(init=False, default=False)

    def go(self) -> dict[Unit, str]:
        """Read and measure what is missing; return what failed."""
        sizes = self._sizes()
        stale = self._stale()
        self._n_vertices = max((sum(shape) for size in sizes.values() for shape in size.shapes.values()), default=0)
        if self.engine is self.here and self._is_quick(sizes, stale):
            self.engine = self.here = Workers(1)
        reading = WorkProgress("read", sum(sizes[place].stored for place in stale), self.progress)
        alone = [probe for probe, source in self.sources.items() if source is None]
        expected = sum(milliseconds(probe, size.shapes) for probe in alone for size in sizes.values())
        longest = max((longest_task(probe, size.shapes) for probe in alone for size in sizes.values()), default=0)
        measuring = WorkProgress(
            "measure", expected, self.progress, min(self.engine.n_workers, expected / max(longest, 1))
        )
        fetched = {place: size.stored if self._is_remote(place) else 0 for place, size in sizes.items()}
        for portion in portions(self._places(), fetched, self.keep):
            try:
                self._read([place for place in portion if place in stale], sizes, reading)
                self._measure(portion, alone, sizes, measuring)
            except ClusterLostError as error:
                missing = {(run, each.step) for run, each in self._planned(self._places(), dict.fromkeys(alone))}
                done = {(run, step) for run, rows in self.rows.items() for step in rows} - missing
                what = f"{len(done)} of {len(self._places())} checkpoints are done and kept; run the same command again"
                raise ToposcopeError(f"{error}; {what}") from error
            if self._has_to_compile:
                self.progress("compile", tuning.COMPILE_MS, tuning.COMPILE_MS)
                self._has_to_compile = False
        self._compare()
        return self.errors

    def _is_quick(self, sizes: Mapping[RunStep, CheckpointSize], stale: Collection[RunStep]) -> bool:
        """Return whether to start other processes would take longer than they save.

        Probes of other packages, and models that are brought to life, get processes all the same: what kills one of
        these does not end the study.
        """
        shipped = all(type(probe).__module__.startswith("toposcope.") for probe in self.sources)
        if self.here.has_started or not shipped or needs_of(*self.sources) or any(map(self._is_remote, stale)):
            return False
        expected = sum(self._reading_ms(place, sizes) + tuning.OPENING_MS for place in stale) / 1000
        expected += tuning.OPENING_MS * len(self.sources) * len(sizes) / 1000
        expected += sum(probe.expected_seconds(size.shapes) for probe in self.sources for size in sizes.values())
        if expected * (1 - 1 / self.here.n_workers) >= tuning.START_SECONDS:
            return False
        # What has to be compiled first is shared out too.
        return not stale or is_compiled({probe.name() for probe in self.sources}, self._n_vertices)

    def _places(self) -> list[RunStep]:
        return [(run, step) for run, checkpoints in self.checkpoints.items() for step in sorted(checkpoints)]

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

    def _sizes(self) -> dict[RunStep, CheckpointSize]:
        """Open every checkpoint's header; what cannot be opened has no size, and is reported when it is read."""
        places = self._places()
        checkpoints = [self.checkpoints[run][step] for run, step in places]
        if not any(is_remote(checkpoint.location) for checkpoint in checkpoints):
            return dict(zip(places, map(checkpoint_size, checkpoints), strict=True))
        sizes: dict[RunStep, CheckpointSize] = {}
        with ThreadPoolExecutor(tuning.OPENING_THREADS) as threads:
            for place, size in zip(places, threads.map(checkpoint_size, checkpoints), strict=True):
                sizes[place] = size
                self.progress("open", len(sizes), len(places))
        return sizes

    def _read(self, portion: Sequence[RunStep], sizes: Mapping[RunStep, CheckpointSize], work: WorkProgress) -> None:
        """Read and hash checkpoints."""
        tasks = [
            ReadTask(run, self.checkpoints[run][step], self._reading_ms((run, step), sizes)) for run, step in portion
        ]
        if tasks:
            self._compile_ahead()
        with WriteGroup(self._keep_read) as group:
            for task, result in run_in_groups(self.engine, read_tasks, tasks, work.add_running, group.flush):
                work.add(sizes[task.run, task.checkpoint.step].stored)
                group.add((task, result))

    def _reading_ms(self, place: RunStep, sizes: Mapping[RunStep, CheckpointSize]) -> int:
        """Return the expected milliseconds of reading a checkpoint; what is fetched is read by itself."""
        return tuning.LONG_TASK_MS if self._is_remote(place) else sizes[place].stored // tuning.BYTES_READ_PER_MS

    def _keep_read(self, results: Sequence[tuple[ReadTask, Read | TaskFailure]]) -> None:
        """Keep what was read of several checkpoints."""
        with self.store.one_transaction():
            whole = [(r.row, r.evidence) for _, r in results if isinstance(r, Read) and r.row is not None]
            self.store.put_checkpoints(whole)
            for row, _ in whole:
                self.rows[row.run][row.step] = row
            for task, result in results:
                run, step = task.run, task.checkpoint.step
                if isinstance(result, Read) and result.row is not None:
                    continue
                self.store.drop_checkpoints(run, [step])
                self.rows[run].pop(step, None)
                message = result.evidence.error if isinstance(result, Read) else result.message
                self._fail({Unit(run, step, "", "read", ""): message})
                if isinstance(result, Read):
                    self.store.put_evidence(run, step, result.evidence)

    def _measure(
        self,
        portion: Sequence[RunStep],
        probes: Sequence[Probe],
        sizes: Mapping[RunStep, CheckpointSize],
        work: WorkProgress,
    ) -> None:
        """Measure what is missing with probes that look at checkpoints alone."""
        tasks: list[MeasureTask] = []
        pending: dict[tuple[RunStep, Probe], _Pending] = {}
        for run, planned in self._planned(portion, dict.fromkeys(probes)):
            place = run, planned.step
            made = list(self._tasks(run, planned))
            pending[place, planned.probe] = _Pending(planned, len(made))
            tasks += made
        expected = sum(milliseconds(probe, sizes[place].shapes) for place in portion for probe in probes)
        work.add(expected - sum(task.milliseconds for task in tasks))
        # The files of runs trained here lie on this machine.
        local = {probe for probe in probes if any(need.trained_here for need in needs_of(probe))}
        if tasks:
            self._compile_ahead()
        here = [task for task in tasks if task.probe in local]
        anywhere = [task for task in tasks if task.probe not in local]
        anywhere.sort(key=lambda task: max(task.milliseconds, tuning.LONG_TASK_MS), reverse=True)
        with WriteGroup(self._store) as group:
            for engine, engine_tasks in ((self.engine, anywhere), (self.here, here)):
                for task, result in run_in_groups(engine, measure_tasks, engine_tasks, work.add_running, group.flush):
                    work.add(task.milliseconds)
                    self._keep(task, result, pending[(task.run, task.checkpoint.step), task.probe], group)

    def _compile_ahead(self) -> None:
        """Have the processes of this machine compile what no process of it has compiled yet."""
        if isinstance(self.engine, Workers) and not self._is_compiling:
            names = frozenset(probe.name() for probe in self.sources)
            if self.engine.n_workers > 1 and not is_compiled(names, self._n_vertices):
                self.progress("compile", 0, tuning.COMPILE_MS)
                self._has_to_compile = True
            self.engine.start(partial(compile_ahead, names, self._n_vertices))
            self._is_compiling = True

    def _compare(self) -> None:
        """Measure with probes that compare the diagrams of others."""
        portion = self._places()
        compared = {probe: source for probe, source in self.sources.items() if source is not None}
        planned = list(self._planned(portion, compared))

        def tasks() -> Iterator[MeasureTask]:
            for run, missing in planned:
                source = compared[missing.probe]
                assert source is not None
                (task,) = self._tasks(run, missing)
                yield self._with_findings(task, run, missing, source)

        pending = {(run, missing.step, missing.probe): _Pending(missing, 1) for run, missing in planned}
        with WriteGroup(self._store) as group:
            for done, (task, result) in enumerate(self.here.run(measure_task, tasks(), idle=group.flush), 1):
                self._keep(task, result, pending[task.run, task.checkpoint.step, task.probe], group)
                self.progress("compare", done, len(planned))

    def _planned(
        self, portion: Iterable[RunStep], probes: Mapping[Probe, Probe | None]
    ) -> Iterator[tuple[str, Planned]]:
        """Yield what is missing, and forget what no longer stands."""
        steps_of: dict[str, set[int]] = {}
        for run, step in portion:
            steps_of.setdefault(run, set()).add(step)
        for run, only in steps_of.items():
            rows, measured = self.rows[run], self.store.measured(run, only)
            steps, inputs = sorted(self.checkpoints[run]), self._input_keys(run, probes, only)
            missing = [
                planned
                for probe, source in probes.items()
                for planned in plan(rows, steps, only, probe, source, measured, self._is_readable, inputs)
            ]
            self.store.drop_measurements(unit for planned in missing for unit in planned.stale)
            # Checkpoint by checkpoint, so that each is opened once, by the process that measures it, for all probes.
            yield from ((run, planned) for planned in sorted(missing, key=lambda p: p.step) if planned.wanted)

    def _is_readable(self, file: str) -> bool:
        stored = self.store.diagrams(file)
        return stored is not None and is_readable(stored)

    def _input_keys(self, run: str, probes: Mapping[Probe, Probe | None], only: Iterable[int]) -> InputKeys:
        """Return what the inputs of probes depend on; only the inputs that a probe needs are looked at."""
        needs = needs_of(*probes, *probes.values())
        is_trained_here = self.contexts[run].directory is not None
        inapplicable = frozenset(need.name for need in needs if need.trained_here and not is_trained_here)
        # A probe that compares looks at earlier checkpoints too.
        steps = sorted(self.rows[run] if any(probes.values()) else self.rows[run].keys() & set(only))
        keys = {need.name: self._keys_of(need, run, steps) for need in needs if need.name not in inapplicable}
        return InputKeys(keys, inapplicable)

    def _keys_of(self, need: Input, run: str, steps: Sequence[int]) -> dict[int, str]:
        """Return the keys of an input by step; where there is none, it is an error of the study."""
        keys = {}
        for step in steps:
            key = or_failure(need.key)(self.checkpoints[run][step], self.contexts[run])
            if isinstance(key, TaskFailure):
                self._fail({Unit(run, step, "", need.name, ""): key.message})
            else:
                keys[step] = key
        return keys

    def _with_findings(self, task: MeasureTask, run: str, planned: Planned, source: Probe) -> MeasureTask:
        """Return a task with what another probe measured: diagrams, or states."""

        def stored(step: int | None, read: Callable[[Source], Mapping[str, Any]]) -> dict[str, Any]:
            """Return what a probe stored, nothing where it cannot be read; the probe that compares reports that."""
            place = self.store.diagrams(diagram_file(run, step, source)) if step is not None else None
            try:
                return dict(read(place)) if place is not None else {}
            except ToposcopeError:
                return {}

        if "diagrams" in task.probe.REQUIRES:
            now, before = (stored(step, read_diagrams) for step in (planned.step, planned.previous))
            return replace(task, diagrams=now, previous_diagrams=before)
        whole = {planned.step, planned.first, planned.previous}
        states: dict[int, States] = {
            step: stored(step, partial(read_states, only="" if step in whole else NETWORK))
            for step in (*planned.earlier, planned.step)
        }
        return replace(task, states=states, first_step=planned.first, previous_step=planned.previous)

    def _tasks(self, run: str, planned: Planned) -> Iterator[MeasureTask]:
        """Yield the tasks of one checkpoint and probe: batches of layers, where these can be measured apart."""
        checkpoints, probe = self.checkpoints[run], planned.probe
        first, previous = (
            self._hashed(run, step) if need in probe.REQUIRES and step is not None else None
            for need, step in (("first", planned.first), ("previous", planned.previous))
        )
        whole = MeasureTask(
            run=run,
            checkpoint=checkpoints[planned.step],
            fingerprint=planned.fingerprint,
            probe=probe,
            wanted=planned.wanted,
            known=self._known(run, planned) if planned.current else {},
            first=first,
            previous=previous,
            context=self.contexts[run] if needs_of(probe) else None,
        )
        if "earlier" in probe.REQUIRES:
            contents = {step: self.rows[run][step].content() for step in (planned.step, *planned.earlier)}
            before = (self._hashed(run, step)._replace(content=contents[step]) for step in planned.earlier)
            whole = replace(whole, content=contents[planned.step], earlier=tuple(before))
        if probe.REQUIRES & {"diagrams", "states"}:
            yield whole
            return
        # By what was hashed: the header this process has seen may be that of a file that was replaced since.
        shapes = {layer.layer: (layer.n_rows, layer.n_columns) for layer in self.rows[run][planned.step].layers}
        if not probe.by_layer():
            yield replace(whole, milliseconds=milliseconds(probe, shapes), n_bytes=probe.expected_bytes(shapes))
            return
        layers = {name: shapes[name] for name in planned.wanted if name != NETWORK}
        parts: list[list[str]] = []
        if seconds(probe, layers) > tuning.BATCH_SECONDS:
            parts = list(batches({name: seconds(probe, {name: shape}) for name, shape in layers.items()}))
        for names in parts if len(parts) > 1 else [list(planned.wanted)]:
            part = {name: layers[name] for name in names if name in layers}
            yield replace(
                whole,
                wanted={name: planned.wanted[name] for name in names},
                milliseconds=milliseconds(probe, part),
                n_bytes=probe.expected_bytes(part),
            )

    def _hashed(self, run: str, step: int) -> Hashed:
        return Hashed(self.checkpoints[run][step], self.rows[run][step].fingerprint)

    def _known(self, run: str, planned: Planned) -> dict[str, dict[str, float]]:
        """Return the stored statistics of layers that are still valid, to combine for the network."""
        return self.store.statistics(run, planned.step, planned.probe.name(), planned.probe.options())

    def _keep(
        self,
        task: MeasureTask,
        result: list[Measurement | Failure] | TaskFailure,
        pending: "_Pending",
        group: "WriteGroup[_Finished]",
    ) -> None:
        """Store measurements; once all layers are measured, those of the network."""
        if isinstance(result, TaskFailure):
            result = [Failure(name, result.message) for name in task.wanted]
        group.add(_Finished(task, result, pending))
        if pending.n_parts > 1:  # the next part is added to the diagrams of this one, and the last asks for its rows
            group.flush()
        pending.done += 1
        if pending.done == pending.n_parts and NETWORK in pending.planned.wanted and NETWORK not in task.wanted:
            known = self._known(task.run, pending.planned)
            wanted = {NETWORK: pending.planned.wanted[NETWORK]}
            closing = replace(task, wanted=wanted, known=known, first=None, previous=None)
            group.add(_Finished(replace(closing, known={}), measure_task(closing), pending))

    def _store(self, finished: Sequence["_Finished"]) -> None:
        """Write diagrams, then the rows that point to them."""
        contents: dict[str, bytes] = {}
        for work in finished:
            diagrams = {r.layer: r.diagrams for r in work.measurements if r.diagrams}
            states = {r.layer: r.states for r in work.measurements if r.states is not None}
            keep = work.pending.current
            before = None if diagrams and not keep else self.store.diagrams(work.file)
            if diagrams or before is not None:
                # Also without new ones: diagrams of a layer that now fails must go.
                contents[work.file] = diagram_bytes(diagrams, states, before, keep)
        write_large_diagrams(self.directory, contents)
        with self.store.one_transaction():
            self.store.put_diagrams(contents)
            self.store.put_measurements(
                (work.unit(r.layer), work.task.wanted[r.layer], r, work.file if r.diagrams else "")
                for work in finished
                for r in work.measurements
            )
            for work in finished:
                work.pending.current.update(r.layer for r in work.measurements)
                self._fail({work.unit(r.layer): r.message for r in work.results if isinstance(r, Failure)})

    def _fail(self, errors: dict[Unit, str]) -> None:
        self.errors.update(errors)
        self.store.put_errors(errors)


def _is_changed(checkpoint: Checkpoint, row: CheckpointRow) -> bool:
    """Return whether a checkpoint differs from the stored one, or its layers have other roles."""
    try:
        roles = [(layer.name, layer.role) for layer in checkpoint.analysed()]
        known = [(layer.layer, layer.role) for layer in row.layers]
        return (row.path, known, row.fingerprint) != (checkpoint.location, roles, checkpoint.fingerprint())
    except ToposcopeError:  # reported when it is read
        return True


@dataclass
class _Pending:
    """One checkpoint and probe under way: tasks that are still out, and layers whose rows stand."""

    planned: Planned
    n_parts: int
    done: int = 0

    @cached_property
    def current(self) -> set[str]:
        return set(self.planned.current)


@dataclass(frozen=True)
class _Finished:
    """What a task measured, on its way to the disk."""

    task: MeasureTask
    results: Sequence[Measurement | Failure]
    pending: _Pending

    @cached_property
    def measurements(self) -> list[Measurement]:
        return [result for result in self.results if isinstance(result, Measurement)]

    @cached_property
    def file(self) -> str:
        return diagram_file(self.task.run, self.task.checkpoint.step, self.task.probe)

    @cached_property
    def _whole(self) -> Unit:
        return Unit(self.task.run, self.task.checkpoint.step, "", self.task.probe.name(), self.task.probe.options())

    def unit(self, layer: str) -> Unit:
        return self._whole._replace(layer=layer)
