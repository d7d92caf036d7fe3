"""Running a study: train, read, measure; only what is missing, and nothing that fails stops the rest."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from filelock import FileLock, Timeout

from toposcope.checkpoints import Checkpoint, Series, series
from toposcope.checkpoints.logs import read_log
from toposcope.errors import ToposcopeError
from toposcope.family import Run
from toposcope.family import corpus as corpora
from toposcope.family.training import finished
from toposcope.files import write_text
from toposcope.probes import Failure, Measurement, Probe
from toposcope.probes.probe import Need
from toposcope.progress import Progress, silent
from toposcope.study.declaration import Declaration, check, load_declaration
from toposcope.study.diagrams import diagram_file, write_diagrams
from toposcope.study.plan import Planned, plan
from toposcope.study.pool import Workers
from toposcope.study.store import CheckpointRow, Store, Unit
from toposcope.study.tasks import Failed, MeasureTask, ReadTask, TrainTask, measure_task, read_task, train_task
from toposcope.version import __version__

WHOLE_RUN = -1
"""The step under which an error of a whole run is kept."""


def run_study(
    declaration: Declaration, directory: str | Path, *, workers: int | None = None, progress: Progress = silent
) -> dict[Unit, str]:
    """Run a study in a directory, or go on with it.

    Parameters
    ----------
    declaration : Declaration
    directory : str or Path
        Made if absent. A rerun does only what is missing.
    workers : int, optional
        Processes; all processors if left out. Results do not depend on it.
    progress : callable
        Called with the name of a run, ``read`` or ``measure``.

    Returns
    -------
    dict
        What failed, and why in one line; also kept in the store.

    Raises
    ------
    ToposcopeError
        If another process runs the study, the disk is full, or the declaration is not one that can be run.
    """
    check(declaration)
    directory = Path(directory)
    with locked(directory):
        refuse_another(directory, declaration)
        write_text(directory / "study.toml", declaration.to_toml())
        store = Store(directory / "study.db")
        try:
            with Workers(workers or _processors()) as pool:
                return _Runner(declaration, directory, store, pool, progress).go()
        finally:
            store.close()


def _selected(found: Series, steps: list[int]) -> Series:
    """Keep the steps a declaration names."""
    missing = sorted(set(steps) - set(found.steps))
    if missing:
        raise ToposcopeError(
            f"{found.path}: no checkpoint at step {missing[0]}; it has {found.steps[0]} to {found.steps[-1]}"
        )
    kept = tuple(c for c in found if not steps or c.step in set(steps))
    return replace(found, checkpoints=kept)


def _processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a study's directory; a second runner is told who has it."""
    holder = directory / "study.lock.pid"
    lock = FileLock(directory / "study.lock", timeout=0)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        holder.write_text(f"{os.getpid()}\n")
    except Timeout:
        who = holder.read_text().strip() if holder.exists() else "unknown"
        raise ToposcopeError(
            f"{directory}: another process (pid {who}) is running this study; wait for it, or stop it"
        ) from None
    except OSError as error:
        lock.release()
        raise ToposcopeError(
            f"{directory}: cannot be used: {error.strerror or error}; free some space or choose another directory"
        ) from error
    try:
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def refuse_another(directory: Path, declaration: Declaration) -> None:
    """Refuse a directory that holds a study of another name: its rows would be hidden by this one's declaration."""
    path = directory / "study.toml"
    if path.exists() and (name := load_declaration(path).name) != declaration.name:
        raise ToposcopeError(f"{directory}: holds the study {name!r}, not {declaration.name!r}; use another directory")


@dataclass
class _Runner:
    """The stages of one run of a study."""

    declaration: Declaration
    directory: Path
    store: Store
    pool: Workers
    progress: Progress
    errors: dict[Unit, str] = field(default_factory=dict)
    checkpoints: dict[str, dict[int, Checkpoint]] = field(default_factory=dict)
    corpus_sha256: str = ""

    @property
    def corpus_path(self) -> Path:
        return self.directory / "corpus.safetensors"

    def go(self) -> dict[Unit, str]:
        self.store.clear_errors()
        self.store.set_meta("toposcope", __version__)
        self._train()
        self._find_series()
        self._read()
        probes = self.declaration.resolved_probes()
        sources = {probe: probe.source(probes) for probe in probes}
        self._measure({p: s for p, s in sources.items() if s is None})
        self._measure({p: s for p, s in sources.items() if s is not None})
        return self.errors

    def _train(self) -> None:
        runs = self.declaration.resolved_runs()
        for position, run in enumerate(runs):
            self.store.put_run(run.name, position, "family", run.size.n_parameters, self.run_directory(run.name))
        if not runs:
            return
        try:
            self._prepare_corpus(runs)
        except ToposcopeError as error:
            if self.corpus_path.exists():  # what was measured on it stays valid
                self.corpus_sha256 = self.store.meta("corpus_sha256") or ""
            for run in runs:
                if not self._keep_outcome(run):
                    self._fail_run(run.name, "train", str(error))
            return
        unfinished = [run for run in runs if not self._keep_outcome(run)]
        # The longest first, so that the processors finish together.
        ordered = sorted(unfinished, key=lambda r: -r.size.n_parameters * r.training.steps * r.training.batch_size)
        for run in ordered:
            self.progress(run.name, 0, run.training.steps)
        tasks = [TrainTask(run, self.corpus_path, self.run_directory(run.name)) for run in ordered]
        for task, result in self.pool.run(train_task, tasks, self.progress):
            if isinstance(result, Failed):
                self._fail_run(task.run.name, "train", result.message)
            else:
                self._keep_outcome(task.run)

    def _prepare_corpus(self, runs: list[Run]) -> None:
        """Tokenize the corpus; where nothing is left to train, take the tokens that were trained on as they are."""
        if not self.corpus_path.exists() or not all(self._is_finished(run) for run in runs):
            self.progress("corpus", 0, 1)
            corpora.prepare(self.declaration.corpus, self.corpus_path)
            self.progress("corpus", 1, 1)
        self.corpus_sha256 = corpora.load(self.corpus_path).sha256
        self.store.set_meta("corpus_sha256", self.corpus_sha256)

    def _is_finished(self, run: Run) -> bool:
        return finished(run, self.run_directory(run.name)) is not None

    def _keep_outcome(self, run: Run) -> bool:
        """Keep where a finished run stands; tell whether it is finished."""
        outcome = finished(run, self.run_directory(run.name))
        if outcome is not None:
            self.store.set_status(run.name, outcome.status, outcome.step)
        return outcome is not None

    def run_directory(self, name: str) -> Path:
        return self.directory / "runs" / name

    def _find_series(self) -> None:
        """List the checkpoints of every run, and keep its training log."""
        runs = [run.name for run in self.declaration.resolved_runs()]
        declared = self.declaration.named_series()
        places = {name: self.run_directory(name) for name in runs} | {n: Path(s.path) for n, s in declared.items()}
        for position, (name, path) in enumerate(places.items()):
            if name in declared:
                self.store.put_run(name, position, "series", None, path)
            if name in runs and not (path / "checkpoints").is_dir():
                continue  # its training failed before the first checkpoint, and said so
            try:
                found = _selected(series(path), declared[name].steps if name in declared else [])
            except (ToposcopeError, OSError) as error:
                self.store.put_log(name, None)
                self._fail_run(name, "read", str(error))
                continue
            self._keep_log(name, path)
            self.checkpoints[name] = {c.step: c for c in found}
            self.store.set_meta(f"ignored {name}", ", ".join(path.name for path in found.ignored))
            if name in declared:
                self._keep_size(name, position, found)
                self.store.set_status(name, "complete", found.steps[-1])

    def _keep_size(self, name: str, position: int, found: Series) -> None:
        """Keep how many parameters a series has, by its last checkpoint; one that cannot be read is told when it is."""
        try:
            self.store.put_run(name, position, "series", found[-1].n_parameters(), found.path)
        except ToposcopeError:
            self.store.put_run(name, position, "series", None, found.path)

    def _keep_log(self, name: str, path: Path) -> None:
        """Keep the training log as it is now; one that cannot be read keeps no checkpoint from being measured."""
        try:
            self.store.put_log(name, read_log(path))
        except ToposcopeError as error:
            self.store.put_log(name, None)
            self._fail({Unit(name, WHOLE_RUN, "", "log", ""): str(error)})

    def _read(self) -> None:
        """Hash the layers of every checkpoint that is new or has changed."""
        tasks = []
        for name, checkpoints in self.checkpoints.items():
            known = self.store.checkpoints(name)
            evaluable = self._evaluable(name)
            self.store.drop_checkpoints(name, sorted(set(known) - set(checkpoints)))
            for step, checkpoint in checkpoints.items():
                row = known.get(step)
                if row is None or row.fingerprint != checkpoint.fingerprint() or row.path != str(checkpoint.path):
                    tasks.append(ReadTask(name, checkpoint, evaluable))
        for done, (task, result) in enumerate(self.pool.run(read_task, tasks, self.progress), 1):
            if isinstance(result, CheckpointRow):
                self.store.put_checkpoint(result)
            else:
                self.store.drop_checkpoints(task.run, [task.checkpoint.step])
                self._fail({Unit(task.run, task.checkpoint.step, "", "read", ""): result.message})
            self.progress("read", done, len(tasks))

    def _evaluable(self, name: str) -> bool:
        return name not in self.declaration.named_series()

    def _measure(self, sources: dict[Probe, Probe | None]) -> None:
        """Measure what is missing with some probes."""
        tasks = []
        for name in self.checkpoints:
            rows = self.store.checkpoints(name)
            steps = sorted(self.checkpoints[name])
            measured = self.store.measured(name)
            for probe, source in sources.items():
                for planned in plan(rows, steps, probe, source, measured, self.directory, self.corpus_sha256):
                    self.store.drop_measurements(planned.stale)
                    if planned.wanted:
                        tasks.append(self._task(name, planned, source))
        for done, (task, results) in enumerate(self.pool.run(measure_task, tasks, self.progress), 1):
            self._keep(task, results)
            self.progress("measure", done, len(tasks))

    def _task(self, name: str, planned: Planned, source: Probe | None) -> MeasureTask:
        checkpoints, probe = self.checkpoints[name], planned.probe

        def needed(need: Need, step: int | None) -> Checkpoint | None:
            return checkpoints[step] if need in probe.NEEDS and step is not None else None

        def diagrams(step: int | None) -> Path | None:
            return None if source is None or step is None else self.directory / diagram_file(name, step, source)

        return MeasureTask(
            run=name,
            checkpoint=checkpoints[planned.step],
            probe=probe,
            wanted=planned.wanted,
            current=planned.current,
            known=self._known(name, planned),
            first=needed("first", planned.first),
            previous=needed("previous", planned.previous),
            diagrams=diagrams(planned.step),
            previous_diagrams=diagrams(planned.previous),
            run_directory=self.run_directory(name) if "gradients" in probe.NEEDS else None,
            corpus=self.corpus_path,
        )

    def _known(self, name: str, planned: Planned) -> dict[str, dict[str, float]]:
        """Return the statistics of layers that stand, for what is said of the network."""
        if not planned.current:
            return {}
        return self.store.statistics(name, planned.step, planned.probe.name(), planned.probe.options())

    def _keep(self, task: MeasureTask, results: list[Measurement | Failure]) -> None:
        """Write diagrams, then the rows that point to them."""
        probe, step = task.probe, task.checkpoint.step

        def unit(layer: str) -> Unit:
            return Unit(task.run, step, layer, probe.name(), probe.options())

        found = [r for r in results if isinstance(r, Measurement)]
        file = diagram_file(task.run, step, probe)
        diagrams = {r.layer: r.diagrams for r in found if r.diagrams}
        if diagrams or (self.directory / file).exists():
            # Also without new ones: diagrams of a layer that now fails must go.
            write_diagrams(self.directory / file, diagrams, task.current)
        self.store.put_measurements((unit(r.layer), task.wanted[r.layer], r, file if r.diagrams else "") for r in found)
        self._fail({unit(r.layer): r.message for r in results if isinstance(r, Failure)})

    def _fail(self, errors: dict[Unit, str]) -> None:
        self.errors.update(errors)
        self.store.put_errors(errors)

    def _fail_run(self, name: str, stage: str, message: str) -> None:
        self.store.set_status(name, "failed", None)
        self._fail({Unit(name, WHOLE_RUN, "", stage, ""): message})
