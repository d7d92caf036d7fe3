"""Training the runs of a study: their corpora first, then what is not finished."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from toposcope.engine.pool import TaskFailure, Workers, report
from toposcope.family import FamilyRun
from toposcope.family.run_folder import Outcome, finished
from toposcope.progress import Progress
from toposcope.study.corpora import StudyCorpora
from toposcope.study.store import Store
from toposcope.study.tasks import or_failure

NO_GPU = 'device = "cuda" under [population], and this machine has no GPU that torch can use; leave device out'


@dataclass(frozen=True)
class TrainTask:
    """Train one run, or go on with it."""

    run: FamilyRun
    corpus: Path
    directory: Path


@dataclass(frozen=True)
class PackTask:
    """Train runs of one shape as one model, or go on with them; `folder` holds the packs of the study."""

    runs: tuple[FamilyRun, ...]
    corpora: tuple[Path, ...]
    directories: tuple[Path, ...]
    folder: Path
    device: str


def import_training() -> None:
    """Import what training needs: seconds, where nothing of it is in the memory of the machine yet."""
    import toposcope.family.training  # noqa: F401


@or_failure
def train_task(task: TrainTask) -> Outcome:
    """Train a run."""
    from toposcope.family import train

    return train(task.run, task.corpus, task.directory, report)


@or_failure
def pack_task(task: PackTask) -> list[Outcome]:
    """Train runs as one model."""
    from toposcope.family.batched import train_pack

    return train_pack(task.runs, task.corpora, task.directories, task.folder, device=task.device, progress=report)


@dataclass
class StudyTraining:
    """The runs that a study trains."""

    runs: Mapping[str, FamilyRun]  # by name
    corpora: StudyCorpora
    device: str | None  # where the runs of a population are trained; None if there is none
    # the runs of the population: they train as one model where that is quicker. The others train one by one
    together: Collection[str]
    directory: Path  # the study's
    store: Store
    pool: Workers
    progress: Progress
    errors: dict[str, str] = field(default_factory=dict)  # why runs could not be trained, by their names

    def run_directory(self, name: str) -> Path:
        """Return the folder of a run."""
        return self.directory / "runs" / name

    def go(self) -> dict[str, str]:
        """Train what is not finished; return what failed."""
        with self.store.one_transaction():
            for position, run in enumerate(self.runs.values()):
                place = str(self.run_directory(run.name))
                self.store.put_run(run.name, position, "family", run.size.n_parameters, place)
            unfinished = [run for run in self.runs.values() if not self._store_outcome(run)]
        self._prepare_corpora(unfinished)
        ready = [run for run in unfinished if run.corpus not in self.corpora.errors]
        self.errors.update({r.name: self.corpora.errors[r.corpus] for r in unfinished if r not in ready})
        for run in ready:
            self.progress(run.name, 0, run.training.last_step)
        alone = [run for run in ready if run.name not in self.together]
        self._train_alone(alone + self._train_packs([run for run in ready if run.name in self.together]))
        return self.errors

    def _train_packs(self, unfinished: Sequence[FamilyRun]) -> list[FamilyRun]:
        """Train the runs of the population together; return those that are quicker alone, or failed together."""
        if not unfinished:
            return []
        device = self.device or "cpu"
        if device == "cuda":
            import torch

            if not torch.cuda.is_available():
                self.errors.update(dict.fromkeys((run.name for run in unfinished), NO_GPU))
                return []
        from toposcope.family.batched import group_runs
        from toposcope.family.batched.packs import begun_packs

        def packs(runs: Sequence[FamilyRun]) -> list[list[FamilyRun]]:
            return [[runs[i] for i in group] for group in group_runs(runs, device, self.pool.n_workers)]

        everyone = [run for run in self.runs.values() if run.name in self.together]
        waiting = {run.name for run in unfinished}
        begun = begun_packs(everyone, self.corpora.sha256, self.directory / "packs")
        groups = [[everyone[i] for i in group] for group in begun]
        groups = [group for group in groups if waiting.intersection(run.name for run in group)]
        for group in groups:
            waiting -= {run.name for run in group}
        # By all runs, so that a pack that was stopped before its first state is the same again; where some runs of it
        # are finished, as when the population has grown, by the others.
        for group in packs(everyone):
            if all(run.name in waiting for run in group):
                groups.append(group)
                waiting -= {run.name for run in group}
        groups += packs([run for run in unfinished if run.name in waiting])
        alone = [run for group in groups if len(group) == 1 and device == "cpu" for run in group]
        tasks = [self._pack_task(group, device) for group in groups if len(group) > 1 or device != "cpu"]
        tasks.sort(key=lambda task: -sum(map(_work, task.runs)))
        with nullcontext(self.pool) if device == "cpu" else Workers(1) as workers:  # one process has the GPU
            for task, result in workers.run(pack_task, tasks, self.progress):
                if isinstance(result, TaskFailure) and device == "cpu":
                    alone += task.runs  # one of them may be at fault
                elif isinstance(result, TaskFailure):
                    self.errors.update({run.name: result.message for run in task.runs})
                else:
                    for run in task.runs:
                        self._store_outcome(run)
        return alone

    def _pack_task(self, runs: Sequence[FamilyRun], device: str) -> PackTask:
        paths = tuple(self.corpora.path(run.corpus) for run in runs)
        directories = tuple(self.run_directory(run.name) for run in runs)
        return PackTask(tuple(runs), paths, directories, self.directory / "packs", device)

    def _train_alone(self, runs: Sequence[FamilyRun]) -> None:
        # The longest first, so that the processors finish together.
        tasks = [
            TrainTask(run, self.corpora.path(run.corpus), self.run_directory(run.name))
            for run in sorted(runs, key=lambda run: -_work(run))
        ]
        for task, result in self.pool.run(train_task, tasks, self.progress):
            if isinstance(result, TaskFailure):
                self.errors[task.run.name] = result.message
            else:
                self._store_outcome(task.run)

    def _prepare_corpora(self, unfinished: list[FamilyRun]) -> None:
        """Tokenize the corpora; where nothing is left to train on one, use the stored tokens."""
        to_train = {run.corpus for run in unfinished}
        for done, corpus in enumerate(self.corpora.used):
            if corpus not in to_train and self.corpora.path(corpus).exists():
                self.corpora.load_digest(corpus)
                continue
            self.pool.start(import_training)
            self.progress("corpus", done, len(self.corpora.used))
            self.corpora.prepare(corpus)
            self.progress("corpus", done + 1, len(self.corpora.used))
        for corpus in self.corpora.used:
            key = f"corpus_sha256 {self.corpora.path(corpus).stem}".removesuffix(" corpus")
            if corpus in self.corpora.sha256:
                self.store.set_meta(key, self.corpora.sha256[corpus])
            elif self.corpora.path(corpus).exists() and (known := self.store.meta(key)):
                self.corpora.sha256[corpus] = known  # measurements that used it stay valid

    def _store_outcome(self, run: FamilyRun) -> bool:
        """Store the status of a run if it is finished; return whether it is."""
        outcome = finished(run, self.run_directory(run.name))
        if outcome is not None:
            self.store.set_status(run.name, outcome.status, outcome.step)
        return outcome is not None


def _work(run: FamilyRun) -> int:
    return run.size.n_parameters * run.training.last_step * run.training.batch_size
