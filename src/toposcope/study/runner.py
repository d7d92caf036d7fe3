"""Runs a study: trains, reads and measures what is missing; a failure of one part does not stop the rest."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from toposcope.checkpoints import Access, Checkpoint, Series, series
from toposcope.engine.cluster import engine_named
from toposcope.engine.pool import Engine, TaskFailure, Workers, processors
from toposcope.errors import ToposcopeError
from toposcope.family import Run
from toposcope.family import corpus as corpora
from toposcope.family.run_folder import finished
from toposcope.files import write_bytes, write_text
from toposcope.integrity import diagnose, n_parameters
from toposcope.logs import LogTable, log_beside
from toposcope.models import Origin
from toposcope.models.texts import read_saved_text, text_key
from toposcope.probes import Probe
from toposcope.probes.needs import RunContext, needs_of
from toposcope.progress import Progress, silent
from toposcope.study.declaration import Declaration, DeclaredSeries, check, load_declaration
from toposcope.study.feature_file import PublishedRun, features_of_run, read_features
from toposcope.study.kinds import PUBLISHED
from toposcope.study.store import Store, Unit
from toposcope.study.survey import Survey
from toposcope.study.tasks import TrainTask, import_training, train_task
from toposcope.version import __version__

GRID_CHECKS = ("missing steps", "extra steps")
MAX_DROPPED_NAMED = 5
"""Damaged groups of rows that a note names; the rest are counted."""
WHOLE_RUN = -1
"""The step under which an error of a whole run is stored."""


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
        Called with the name of a run or ``compare`` (counts), ``read`` or ``measure`` (bytes).

    Returns
    -------
    dict
        What failed, with the reason in one line; also in the store.

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
    logs: dict[str, LogTable | None] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    corpus_sha256: str = ""
    text_sha256: str = ""

    @property
    def corpus_path(self) -> Path:
        return self.directory / "corpus.safetensors"

    @property
    def text_path(self) -> Path:
        return self.directory / "text.txt"

    def go(self) -> dict[Unit, str]:
        self.store.clear_errors()
        self.store.set_meta("toposcope", __version__)
        self.store.set_meta("dropped", ", ".join(self.store.dropped[:MAX_DROPPED_NAMED]) + self._more_dropped())
        self._train()
        self._find_series()
        self._save_text()
        self._survey()
        self._examine()
        return self.errors

    def _more_dropped(self) -> str:
        more = len(self.store.dropped) - MAX_DROPPED_NAMED
        return f" and {more} more" if more > 0 else ""

    def _train(self) -> None:
        runs = self.declaration.resolved_runs()
        for position, run in enumerate(runs):
            self.store.put_run(run.name, position, "family", run.size.n_parameters, str(self.run_directory(run.name)))
        if not runs:
            return
        try:
            self._prepare_corpus(runs)
        except ToposcopeError as error:
            if self.corpus_path.exists():  # measurements that used it stay valid
                self.corpus_sha256 = self.store.meta("corpus_sha256") or ""
            for run in runs:
                if not self._store_outcome(run):
                    self._fail_run(run.name, "train", str(error))
            return
        unfinished = [run for run in runs if not self._store_outcome(run)]
        # The longest first, so that the processors finish together.
        ordered = sorted(unfinished, key=lambda r: -r.size.n_parameters * r.training.steps * r.training.batch_size)
        for run in ordered:
            self.progress(run.name, 0, run.training.steps)
        tasks = [TrainTask(run, self.corpus_path, self.run_directory(run.name)) for run in ordered]
        for task, result in self.pool.run(train_task, tasks, self.progress):
            if isinstance(result, TaskFailure):
                self._fail_run(task.run.name, "train", result.message)
            else:
                self._store_outcome(task.run)

    def _prepare_corpus(self, runs: list[Run]) -> None:
        """Tokenize the corpus; where nothing is left to train, use the stored tokens."""
        if not self.corpus_path.exists() or not all(self._is_finished(run) for run in runs):
            self.pool.start(import_training)
            self.progress("corpus", 0, 1)
            self.corpus_sha256 = corpora.prepare(self.declaration.corpus, self.corpus_path)
            self.progress("corpus", 1, 1)
        else:
            self.corpus_sha256 = corpora.load(self.corpus_path).sha256
        self.store.set_meta("corpus_sha256", self.corpus_sha256)

    def _save_text(self) -> None:
        """Save the text that models read; if it cannot be read, use the saved copy of the same text."""
        needed = any(need.reads_text for need in needs_of(*self.declaration.resolved_probes()))
        if not (self.measured and needed and self.checkpoints):
            return
        text, corpus = self.declaration.text, self.declaration.corpus
        declared = msgspec.json.encode([text] if text.source else [text, corpus]).decode()
        try:
            content = text.read(corpus, self.corpus_sha256)
            write_bytes(self.text_path, content.encode(errors="surrogatepass"))
            self.store.set_meta("text", declared)
        except ToposcopeError as error:
            if not self.text_path.exists() or self.store.meta("text") != declared:
                self._fail({Unit(name, WHOLE_RUN, "", "text", ""): str(error) for name in self.checkpoints})
                return
            content = read_saved_text(self.text_path)
        self.text_sha256 = text_key(content)
        self.store.set_meta("text_sha256", self.text_sha256)

    def _is_finished(self, run: Run) -> bool:
        return finished(run, self.run_directory(run.name)) is not None

    def _store_outcome(self, run: Run) -> bool:
        """Store the status of a run if it is finished; return whether it is."""
        outcome = finished(run, self.run_directory(run.name))
        if outcome is not None:
            self.store.set_status(run.name, outcome.status, outcome.step)
        return outcome is not None

    def run_directory(self, name: str) -> Path:
        return self.directory / "runs" / name

    def _find_series(self) -> None:
        """List the checkpoints of every run, and store its training log."""
        runs = [run.name for run in self.declaration.resolved_runs()]
        declared = {name: s for name, s in self.declaration.named_series().items() if not s.live}
        specs = {name: str(self.run_directory(name)) for name in runs} | {n: s.path for n, s in declared.items()}
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
                opened = self._open(declared[name]) if name in declared else series(spec)
            except (ToposcopeError, OSError) as error:
                if name in declared and declared[name].optional:
                    self._leave_out(name, str(error), published)
                    continue
                self._put_log(name, None, published)
                self._fail_run(name, "read", str(error))
                continue
            self._store_log(name, opened, published)
            self.checkpoints[name] = {c.step: c for c in opened}
            tokenizer = declared[name].tokenizer if name in declared else ""
            self.origins[name] = Origin(
                opened.source, tokenizer, self.corpus_path if name in runs else None, self.access
            )
            self.store.set_meta(f"ignored {name}", ", ".join(opened.ignored))
            if name in declared:
                self.store.set_status(name, "running", opened.steps[-1])

    def _published(self, declared: DeclaredSeries) -> PublishedRun | None:
        """Store the published features of a run; those of a file that cannot be read any more are deleted."""
        name, published = declared.resolved_name(), None
        if declared.features:
            path = Path(declared.features)
            try:
                published = features_of_run(read_features(path), name, path)
            except ToposcopeError as error:
                self._fail({Unit(name, WHOLE_RUN, "", PUBLISHED, ""): str(error)})
        self.store.put_published(name, published.key if published else "", published.features if published else {})
        return published

    def _store_published_run(self, name: str, published: PublishedRun | None) -> None:
        """Store a run that has published features and no checkpoints."""
        self.store.drop_checkpoints(name, self.store.checkpoints(name))
        self.store.put_findings(name, [])
        for fact in ("examined", "ignored"):
            self.store.set_meta(f"{fact} {name}", "")
        self._put_log(name, None, published)
        last = max(published.features) if published else None
        self.store.set_status(name, "complete" if published else "failed", last)

    def _leave_out(self, name: str, reason: str, published: PublishedRun | None) -> None:
        """Continue without an optional series; its earlier measurements stay."""
        self.store.set_meta(f"unreachable {name}", reason)
        evidence = self.store.evidence(name)
        if evidence:
            self.store.set_n_parameters(name, n_parameters(evidence[max(evidence)]))
        else:
            self._put_log(name, None, published)
        self.store.set_status(name, "unreachable", max(evidence, default=None))

    def _open(self, declared: DeclaredSeries) -> Series:
        return self.opened.get(declared.resolved_name()) or declared.open(self.access)

    def _store_log(self, name: str, opened: Series, published: PublishedRun | None) -> None:
        """Store the training log; if it cannot be read, the checkpoints are measured all the same."""
        try:
            self.logs[name] = log_beside(opened.source) if opened.source else None
        except ToposcopeError as error:
            self.logs[name] = None
            self._fail({Unit(name, WHOLE_RUN, "", "log", ""): str(error)})
        self._put_log(name, self.logs[name], published)

    def _put_log(self, name: str, log: LogTable | None, published: PublishedRun | None) -> None:
        """Store a training log, completed with the columns published beside the features."""
        if published:
            log = log.filled_from(published.log) if log else published.log
        self.store.put_log(name, log)

    def _survey(self) -> None:
        """Read and measure what is missing."""
        probes = self.declaration.resolved_probes() if self.measured else []
        if not self.text_sha256:
            probes = [probe for probe in probes if not _reads_text(probe, probes)]
        survey = Survey(
            store=self.store,
            directory=self.directory,
            checkpoints=self.checkpoints,
            sources={probe: probe.source(probes) for probe in probes},
            engine=self.engine,
            here=self.pool,
            keep=self.access.keep,
            contexts={name: self._context(name) for name in self.checkpoints},
            progress=self.progress,
        )
        self.errors.update(survey.go())

    def _context(self, name: str) -> RunContext:
        trained_here = any(run.name == name for run in self.declaration.resolved_runs())
        return RunContext(
            origin=self.origins[name],
            text=partial(read_saved_text, self.text_path),
            text_sha256=self.text_sha256,
            directory=self.run_directory(name) if trained_here else None,
            corpus_sha256=self.corpus_sha256,
        )

    def _examine(self) -> None:
        """Examine each series by the summaries made while it was read; steps that were not selected are not missing."""
        declared = self.declaration.named_series()
        for name in self.checkpoints:
            evidence = self.store.evidence(name)
            if name in declared and evidence:
                self.store.set_n_parameters(name, n_parameters(evidence[max(evidence)]))
            findings = diagnose(list(evidence.values()), self.logs[name])
            self.store.set_meta(f"examined {name}", str(len(evidence)))
            if name in declared and declared[name].is_selection():
                findings = [finding for finding in findings if finding.check not in GRID_CHECKS]
            self.store.put_findings(name, findings)
            if name in declared:
                self.store.set_status(name, "complete", max(self.checkpoints[name]))

    def _fail(self, errors: dict[Unit, str]) -> None:
        self.errors.update(errors)
        self.store.put_errors(errors)

    def _fail_run(self, name: str, stage: str, message: str) -> None:
        self.store.set_status(name, "failed", None)
        self._fail({Unit(name, WHOLE_RUN, "", stage, ""): message})


def _reads_text(probe: Probe, probes: list[Probe]) -> bool:
    return any(need.reads_text for need in needs_of(probe, probe.source(probes)))
