"""Runs a study: trains, reads and measures what is missing; a failure of one part does not stop the rest."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from errno import ENOSPC
from functools import partial
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from toposcope.checkpoints import Access, Checkpoint, Series, series
from toposcope.checkpoints.sources import is_remote
from toposcope.engine.cluster import engine_named
from toposcope.engine.pool import Engine, TaskFailure, Workers, processors
from toposcope.errors import ToposcopeError
from toposcope.extras import require
from toposcope.family import FamilyRun
from toposcope.family.run_folder import finished
from toposcope.files import write_bytes, write_text
from toposcope.integrity import CheckpointSummary, n_parameters
from toposcope.integrity.diagnosis import places_beside
from toposcope.logs import LogTable, find_log, read_log, read_logs
from toposcope.models import Origin
from toposcope.models.texts import read_saved_text, text_key
from toposcope.probes.needs import RunContext, needs_of
from toposcope.progress import Progress, silent
from toposcope.study.corpora import STAGE as OTHER_CORPORA
from toposcope.study.corpora import StudyCorpora, measure_missing, stored_losses
from toposcope.study.declaration import Declaration, DeclaredSeries, check_declaration, load_declaration
from toposcope.study.kinds import PUBLISHED
from toposcope.study.publication import PublishedRun, needed_reader
from toposcope.study.store import Store
from toposcope.study.survey import Survey
from toposcope.study.tables import Unit
from toposcope.study.tasks import DOCTOR, Examined, ExamineTask, examine_task
from toposcope.study.training import StudyTraining
from toposcope.version import __version__

GRID_CHECKS = ("missing steps", "extra steps")
MANY_CHECKPOINTS = 500  # from so many on, the doctor is worth the start of further processes
MAX_NAMED = 5  # steps, or damaged groups of rows, that a note names; the rest are counted
WHOLE_RUN = -1  # the step under which an error of a whole run is stored


def run_study(
    declaration: Declaration,
    directory: str | Path,
    *,
    workers: int | None = None,
    engine: str = "pool",
    access: Access | None = None,
    opened: Mapping[str, Series] | None = None,
    measured: bool = True,
    progress: Progress = silent,
) -> dict[Unit, str]:
    """Run a study in a directory, or continue it.

    Parameters
    ----------
    declaration : Declaration
    directory : str or Path
        Made if absent. A rerun does only what is missing.
    workers : int, optional
        Number of processes; all processors by default. Results do not depend on it.
    engine : str
        ``pool``: processes on this machine. ``ray`` or ``ray://address``: checkpoints are read and measured on a Ray
        cluster, whose nodes must see the same paths; training, and probes that compare diagrams, stay on this machine.
    access : Access, optional
        How remote bytes are fetched, and how many of them are kept.
    opened : mapping, optional
        Series that are open already, by their declared names.
    measured : bool
        Whether the probes measure; otherwise checkpoints are only read and examined.
    progress : callable
        Called with the name of a run or ``compare`` (counts), ``read`` (bytes), or ``measure`` (expected
        milliseconds).

    Returns
    -------
    dict
        What failed, with the reason in one line; also in the store.

    Raises
    ------
    ToposcopeError
        If another process runs the study, the disk is full, the declaration is not one that can be run, or a library
        that it needs is not installed.
    """
    check_declaration(declaration)
    directory = Path(directory)
    _require_extras(declaration, directory)
    with locked(directory):
        refuse_another(directory, declaration)
        write_text(directory / "study.toml", declaration.to_toml())
        store = Store(directory / "study.db")
        try:
            with Workers(workers or processors()) as pool, engine_named(engine, pool) as task_engine:
                return _Runner(
                    declaration,
                    directory,
                    store,
                    pool,
                    task_engine,
                    access or Access(),
                    opened or {},
                    measured,
                    progress,
                ).go()
        finally:
            store.close()


def _require_extras(declaration: Declaration, directory: Path) -> None:
    """Refuse what needs a library that is not installed before anything is written; what is done needs none."""
    for run in declaration.resolved_runs():
        if finished(run, directory / "runs" / run.name) is None:
            require("torch", f"training {run.name}")
            break
    if (directory / "study.db").exists():
        return
    for probe in declaration.resolved_probes():
        if any(need.reads_text for need in needs_of(probe)):
            require("torch", f"probe {probe.name()}")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a study's directory; the error of a second runner names the process that holds it."""
    holder = directory / "study.lock.pid"
    lock = FileLock(directory / "study.lock", timeout=0)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        holder.write_text(f"{os.getpid()}\n")
    except Timeout:
        who = holder.read_text().strip() if holder.exists() else "unknown"
        other = "this process already runs" if who == str(os.getpid()) else f"another process (pid {who}) is running"
        raise ToposcopeError(f"{directory}: {other} this study; wait for it, or stop it") from None
    except OSError as error:
        lock.release()
        hint = "free some space, or choose another directory" if error.errno == ENOSPC else "choose another directory"
        raise ToposcopeError(f"{directory}: cannot be used: {error.strerror or error}; {hint}") from error
    try:
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def refuse_another(directory: Path, declaration: Declaration) -> None:
    """Refuse a directory that holds a study of another name: the new declaration would hide its rows."""
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
    engine: Engine
    access: Access
    opened: Mapping[str, Series]
    measured: bool
    progress: Progress
    errors: dict[Unit, str] = field(default_factory=dict)
    checkpoints: dict[str, dict[int, Checkpoint]] = field(default_factory=dict)
    series: dict[str, Series] = field(default_factory=dict)  # in which they are
    logs: dict[str, LogTable | None] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    text_sha256: str = ""
    runs: dict[str, FamilyRun] = field(init=False)
    corpora: StudyCorpora = field(init=False)

    def __post_init__(self) -> None:
        runs = self.declaration.resolved_runs()
        self.runs = {run.name: run for run in runs}
        self.corpora = StudyCorpora.of(self.directory, self.declaration.corpus, runs)

    @property
    def text_path(self) -> Path:
        return self.directory / "text.txt"

    def go(self) -> dict[Unit, str]:
        self.store.clear_errors()
        self.store.set_meta("toposcope", __version__)
        self.store.set_meta("dropped", _first_of(self.store.dropped))
        self._train()
        self._find_series()
        self._measure_on_other_corpora()
        self._save_text()
        self._survey()
        self.store.drop_unused_diagrams()
        with self.store.one_transaction():
            self._examine()
        return self.errors

    def _train(self) -> None:
        population = self.declaration.population
        training = StudyTraining(
            runs=self.runs,
            corpora=self.corpora,
            device=population.device if population else None,
            together=frozenset(list(self.runs)[len(self.declaration.runs) :]),
            directory=self.directory,
            store=self.store,
            pool=self.pool,
            progress=self.progress,
        )
        for name, message in training.go().items():
            self._fail_run(name, "train", message)

    def _measure_on_other_corpora(self) -> None:
        """Measure the validation loss of every checkpoint on the corpora of other runs."""
        runs = [
            (run, self.run_directory(name), self.checkpoints[name])
            for name, run in self.runs.items()
            if name in self.checkpoints
        ]
        for name, error in measure_missing(runs, self.corpora, self.pool, self.progress):
            if error:
                self._fail(name, OTHER_CORPORA, error)
            else:
                self._put_log(name, self.logs[name], None)

    def _save_text(self) -> None:
        """Save the text that models read; if it cannot be read, use the saved copy of the same text."""
        needed = any(need.reads_text for need in needs_of(*self.declaration.resolved_probes()))
        if not (self.measured and needed and self.checkpoints):
            return
        text, corpus = self.declaration.text, self.declaration.corpus
        declared = msgspec.json.encode([text] if text.source else [text, corpus]).decode()
        try:
            content = text.read(corpus, self.corpora.sha256.get(corpus, ""))
            write_bytes(self.text_path, content.encode(errors="surrogatepass"))
            self.store.set_meta("text", declared)
        except ToposcopeError as error:
            if not self.text_path.exists() or self.store.meta("text") != declared:
                for name in self.series:
                    self._fail(name, "text", str(error))
                return
            content = read_saved_text(self.text_path)
        self.text_sha256 = text_key(content)
        self.store.set_meta("text_sha256", self.text_sha256)

    def run_directory(self, name: str) -> Path:
        return self.directory / "runs" / name

    def _find_series(self) -> None:
        """List the checkpoints of every run, and store its training log."""
        declared = {name: s for name, s in self.declaration.named_series().items() if not s.live}
        specs = {name: str(self.run_directory(name)) for name in self.runs} | {n: s.path for n, s in declared.items()}
        # What is fetched is stored as it comes.
        is_slow = any(is_remote(spec) for spec in specs.values())
        with nullcontext() if is_slow else self.store.one_transaction():
            self._find_each(declared, specs)

    def _find_each(self, declared: Mapping[str, DeclaredSeries], specs: Mapping[str, str]) -> None:
        for position, (name, spec) in enumerate(specs.items()):
            published = self._published(declared[name]) if name in declared else None
            if name in declared:
                kind = "series" if spec else PUBLISHED
                size = published.n_parameters if published else None
                self.store.put_run(name, position, kind, size, spec or declared[name].features)
                self.store.set_meta(f"unreachable {name}", "")
            elif not (self.run_directory(name) / "checkpoints").is_dir():
                continue  # its training failed before the first checkpoint, which is reported
            if not spec:
                self._store_published_run(name, published)
                continue
            try:
                named = name in declared
                opened = (self.opened.get(name) or declared[name].open(self.access)) if named else series(spec)
            except (ToposcopeError, OSError) as error:
                if name in declared and declared[name].optional:
                    self._leave_out(name, str(error), published)
                    continue
                self._put_log(name, None, published)
                self._fail_run(name, "read", str(error))
                continue
            self._store_log(name, declared[name].log if name in declared else "", opened, published)
            self.checkpoints[name] = {c.step: c for c in opened}
            self.series[name] = opened
            tokenizer = declared[name].tokenizer if name in declared else ""
            corpus = self.corpora.path(self.runs[name].corpus) if name in self.runs else None
            self.origins[name] = Origin(opened.source, tokenizer, corpus, self.access)
            self.store.set_meta(f"chosen {name}", "\n".join(opened.notes))
            if name in declared:
                self.store.set_meta(f"absent {name}", _absent_steps(declared[name], opened))
                self.store.set_status(name, "running", opened.steps[-1])

    def _published(self, declared: DeclaredSeries) -> PublishedRun | None:
        """Store the published features of a run; those of a file that cannot be read any more are deleted."""
        name, published = declared.resolved_name(), None
        if declared.features:
            try:
                published = needed_reader("published features").read_run(Path(declared.features), name)
            except ToposcopeError as error:
                self._fail(name, PUBLISHED, str(error))
        self.store.put_published(name, published.key if published else "", published.features if published else {})
        return published

    def _store_published_run(self, name: str, published: PublishedRun | None) -> None:
        """Store a run that has published features and no checkpoints."""
        self.store.drop_checkpoints(name, self.store.checkpoints(name))
        self.store.put_findings(name, [])
        for fact in ("examined", "doctor"):
            self.store.set_meta(f"{fact} {name}", "")
        self.store.set_meta(f"chosen {name}", published.assumed if published else "")
        self._put_log(name, None, published)
        last = max(published.features) if published else None
        self.store.set_status(name, "complete" if published else "failed", last)

    def _leave_out(self, name: str, reason: str, published: PublishedRun | None) -> None:
        """Continue without an optional series; its earlier measurements stay."""
        self.store.set_meta(f"unreachable {name}", reason)
        evidence = self.store.evidence(name)
        if evidence:
            self._put_n_parameters(name, evidence)
        else:
            self._put_log(name, None, published)
        self.store.set_status(name, "unreachable", max(evidence, default=None))

    def _store_log(self, name: str, declared_log: str, opened: Series, published: PublishedRun | None) -> None:
        """Store the training log; if it cannot be read, the checkpoints are measured all the same."""
        try:
            if declared_log:
                logs = read_logs(declared_log).logs  # of several runs, the one of that name
                self.logs[name] = (logs[0] if len(logs) == 1 else read_log(declared_log, run=name)).table
            else:
                self.logs[name] = find_log(opened.source, opened.axis) if opened.source else None
        except ToposcopeError as error:
            self.logs[name] = None
            self._fail(name, "log", str(error))
        self._put_log(name, self.logs[name], published)

    def _put_log(self, name: str, log: LogTable | None, published: PublishedRun | None) -> None:
        """Store a training log, completed with the columns published with the features."""
        if published:
            log = log.filled_from(published.log) if log else published.log
        if name in self.runs and log:
            log = log.filled_from(stored_losses(self.run_directory(name), self.corpora.digests(self.runs[name].corpus)))
        self.store.put_log(name, log)

    def _survey(self) -> None:
        """Read and measure what is missing."""
        probes = self.declaration.resolved_probes() if self.measured else []
        if not self.text_sha256:
            needs = {probe: needs_of(probe, probe.source(probes)) for probe in probes}
            probes = [probe for probe in probes if not any(need.reads_text for need in needs[probe])]
        survey = Survey(
            store=self.store,
            checkpoints=self.checkpoints,
            sources={probe: probe.source(probes) for probe in probes},
            engine=self.engine,
            here=self.pool,
            keep=self.access.keep,
            contexts={name: self._context(name) for name in self.checkpoints},
            fail=self._put_errors,
            progress=self.progress,
        )
        survey.go()

    def _context(self, name: str) -> RunContext:
        run = self.runs.get(name)
        return RunContext(
            origin=self.origins[name],
            text=partial(read_saved_text, self.text_path),
            text_sha256=self.text_sha256,
            directory=self.run_directory(name) if run else None,
            corpus_sha256=self.corpora.sha256.get(run.corpus, "") if run else "",
        )

    def _examine(self) -> None:
        """Examine each series by the summaries made while it was read; steps that were not selected are not missing."""
        declared = self.declaration.named_series()
        n_checkpoints = sum(map(len, self.series.values()))
        keys: dict[str, str] = {}
        # A doctor of seconds shows its progress: of one series its rules, of several how many are done.
        is_long = n_checkpoints >= MANY_CHECKPOINTS
        within = self.progress if is_long and len(self.series) == 1 else silent
        with nullcontext(self.pool) if is_long else Workers(1) as workers:
            results = workers.run(examine_task, self._examine_tasks(keys), within)
            for done, (task, examined) in enumerate(results, start=1):
                self._keep_examined(task.run, keys[task.run], examined)
                if is_long and within is silent:
                    self.progress(DOCTOR, done, len(self.series))
        for name in self.series:
            if name in declared and Unit(name, WHOLE_RUN, "", "doctor", "") not in self.errors:
                self.store.set_status(name, "complete", max(self.checkpoints[name]))

    def _examine_tasks(self, keys: dict[str, str]) -> Iterator[ExamineTask]:
        """Yield the series whose findings are not those that are stored; add what they follow from to `keys`."""
        declared = self.declaration.named_series()
        for name in self.series:
            evidence = self.store.evidence(name)
            if name in declared and evidence:
                self._put_n_parameters(name, evidence)
            self.store.set_meta(f"examined {name}", str(len(evidence)))
            is_selection = name in declared and declared[name].is_selection()
            beside = {} if is_selection else places_beside(self.series[name])
            task = ExamineTask(name, [*evidence.values()], self.logs[name], beside)
            keys[name] = f"{task.key()} {is_selection}"
            if self.store.meta(f"doctor {name}") != f"{keys[name]} {self.store.n_findings(name)}":
                yield task

    def _put_n_parameters(self, name: str, evidence: Mapping[int, bytes]) -> None:
        read = (msgspec.msgpack.decode(evidence[s], type=CheckpointSummary) for s in sorted(evidence, reverse=True))
        if whole := next((summary for summary in read if not summary.error), None):
            self.store.set_n_parameters(name, n_parameters(whole))

    def _keep_examined(self, name: str, key: str, examined: Examined | TaskFailure) -> None:
        """Store what the doctor found in a series, with what it follows from."""
        if isinstance(examined, TaskFailure):
            self._fail(name, "doctor", examined.message)
            return
        declared = self.declaration.named_series().get(name)
        found, coverage, remarks = examined
        if coverage:
            self.store.set_meta(f"coverage {name}", msgspec.json.encode(coverage).decode())
        self.store.set_meta(f"remarks {name}", "\n".join(remarks))
        ignored = GRID_CHECKS if declared is not None and declared.is_selection() else ()
        self.store.put_findings(name, [finding for finding in found if finding.check not in ignored])
        self.store.set_meta(f"doctor {name}", f"{key} {self.store.n_findings(name)}")

    def _fail(self, name: str, stage: str, message: str) -> None:
        self._put_errors({Unit(name, WHOLE_RUN, "", stage, ""): message})

    def _put_errors(self, errors: Mapping[Unit, str]) -> None:
        self.errors.update(errors)
        self.store.put_errors(errors)

    def _fail_run(self, name: str, stage: str, message: str) -> None:
        self.store.set_status(name, "failed", None)
        self._fail(name, stage, message)


def _absent_steps(declared: DeclaredSeries, opened: Series) -> str:
    """Name the steps that were asked of an optional series and are not there."""
    if not declared.optional or declared.every or declared.log_spaced:
        return ""
    return _first_of([str(step) for step in sorted(set(declared.steps) - set(opened.steps))])


def _first_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
