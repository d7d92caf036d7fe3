"""The corpora of a study's runs: their tokens and names, and the losses of runs on the corpora of others."""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import msgspec

from toposcope.checkpoints import Checkpoint
from toposcope.engine.pool import Engine, TaskFailure
from toposcope.errors import ToposcopeError
from toposcope.family import Corpus, FamilyRun
from toposcope.family import corpus as corpora
from toposcope.family.corpus import BUILT_IN
from toposcope.files import write_bytes
from toposcope.logs import LogTable
from toposcope.logs.columns import target_of
from toposcope.progress import Progress
from toposcope.study.tasks import or_failure

OWN_FILE = "corpus.safetensors"  # tokens of the corpus under ``[corpus]``
FILE = "other_corpora.json"
STAGE = "other corpora"


@dataclass
class StudyCorpora:
    """The corpora that the runs of a study are trained on."""

    directory: Path  # the study's
    own: Corpus  # the one under ``[corpus]``
    used: list[Corpus]  # those of the runs, each once, in the order of the runs
    sha256: dict[Corpus, str] = field(default_factory=dict)  # of the texts of those whose tokens exist
    errors: dict[Corpus, str] = field(default_factory=dict)  # why the tokens of the others do not

    @classmethod
    def of(cls, directory: Path, own: Corpus, runs: Sequence[FamilyRun]) -> "StudyCorpora":
        """Return the corpora of some runs."""
        return cls(directory, own, list(dict.fromkeys(run.corpus for run in runs)))

    def path(self, corpus: Corpus) -> Path:
        """Return the file of a corpus's tokens."""
        if corpus == self.own:
            return self.directory / OWN_FILE
        return self.directory / "corpora" / f"{_short_name(corpus)}-{_digest(corpus)}.safetensors"

    def prepare(self, corpus: Corpus) -> None:
        """Tokenize a corpus unless that is done."""
        self.path(corpus).parent.mkdir(parents=True, exist_ok=True)
        try:
            self.sha256[corpus] = corpora.prepare(corpus, self.path(corpus))
        except ToposcopeError as error:
            self.errors[corpus] = str(error)

    def load_digest(self, corpus: Corpus) -> None:
        """Look up the text that the existing tokens of a corpus were made from, without reading that text."""
        try:
            self.sha256[corpus] = corpora.text_digest(self.path(corpus))
        except ToposcopeError as error:
            self.errors[corpus] = str(error)

    def others(self, corpus: Corpus) -> dict[str, Corpus]:
        """Return the corpora that models of one corpus can be judged on too, by the name of that loss.

        Those are texts cut into the same tokens: a trained tokenizer belongs to its corpus.
        """
        if corpus.tokenizer != "characters":
            return {}
        return {
            self._target(other): other
            for other in self.used
            if other != corpus and other.tokenizer == corpus.tokenizer and other in self.sha256
        }

    def digests(self, corpus: Corpus) -> dict[str, str]:
        """Return the SHA-256 of the text of each of the `others`, by the name of the loss."""
        return {name: self.sha256[other] for name, other in self.others(corpus).items()}

    def _target(self, corpus: Corpus) -> str:
        names = [_short_name(other) for other in self.used]
        name = _short_name(corpus)
        target = f"validation_loss_{name if names.count(name) == 1 else f'{name}-{_digest(corpus)}'}"
        # A corpus called accuracy.txt or bits.txt would give its loss another meaning.
        plain = target_of(target) == target_of("validation_loss")._replace(name=target)
        return target if plain else f"validation_loss_{_digest(corpus)}"


def _short_name(corpus: Corpus) -> str:
    """Return a readable name that can be part of a file's."""
    source = corpus.source
    name = source.removeprefix("hf:") if source in BUILT_IN or source.startswith("hf:") else Path(source).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:40] or "corpus"


def _digest(corpus: Corpus) -> str:
    """Return eight letters and digits that distinguish a corpus from others of its name."""
    return hashlib.sha256(msgspec.json.encode(corpus)).hexdigest()[:8]


class OtherLosses(msgspec.Struct, frozen=True):
    """The content of ``other_corpora.json`` in the folder of a run."""

    sha256: str  # of the text of the corpus
    losses: dict[int, float | None]  # in nats per token, by step; None where it is not finite


@dataclass(frozen=True)
class OtherCorporaTask:
    """Measure the losses of some checkpoints of a run on corpora by name."""

    run: FamilyRun
    directory: Path
    checkpoints: tuple[Checkpoint, ...]
    tokens: dict[str, Path]


@or_failure
def other_corpora_task(task: OtherCorporaTask) -> dict[str, dict[int, float]]:
    """Return the losses by name of the corpus and step."""
    from toposcope.family.evaluation import validation_losses

    tokens = list(map(_loaded, task.tokens.values()))
    losses = {c.step: validation_losses(task.run, c.tensors(), tokens) for c in task.checkpoints}
    return {name: {step: each[k] for step, each in losses.items()} for k, name in enumerate(task.tokens)}


def stored_losses(directory: Path, sha256: Mapping[str, str]) -> LogTable:
    """Return the losses in the folder of a run, on corpora of some texts, by their names."""
    rows: dict[int, dict[str, float]] = {}
    for name, losses in _read(directory, sha256).items():
        for step, loss in losses.items():
            rows.setdefault(step, {})[name] = math.nan if loss is None else loss
    return LogTable.from_rows(rows)


def measure_missing(
    runs: Iterable[tuple[FamilyRun, Path, Mapping[int, Checkpoint]]],
    study_corpora: StudyCorpora,
    engine: Engine,
    progress: Progress,
) -> Iterator[tuple[str, str]]:
    """Measure and store what is missing; yield each run for which something was, with the error or an empty text."""
    tasks = []
    for run, directory, checkpoints in runs:
        others = study_corpora.others(run.corpus)
        stored = _read(directory, study_corpora.digests(run.corpus))
        steps = {s for s in checkpoints if any(s not in stored.get(name, {}) for name in others)}
        if steps:
            paths = {name: study_corpora.path(corpus) for name, corpus in others.items()}
            missing = tuple(checkpoints[step] for step in sorted(steps))
            tasks.append(OtherCorporaTask(run, directory, missing, paths))
    for done, (task, result) in enumerate(engine.run(other_corpora_task, tasks), 1):
        progress(STAGE, done, len(tasks))
        if isinstance(result, TaskFailure):
            yield task.run.name, result.message
        else:
            digests = study_corpora.digests(task.run.corpus)
            stored = _read(task.directory, digests)
            content = {n: OtherLosses(digests[n], stored.get(n, {}) | dict(losses)) for n, losses in result.items()}
            write_bytes(task.directory / FILE, msgspec.json.encode(content))
            yield task.run.name, ""


def _read(directory: Path, sha256: Mapping[str, str]) -> dict[str, dict[int, float | None]]:
    try:
        content = msgspec.json.decode((directory / FILE).read_bytes(), type=dict[str, OtherLosses])
    except (OSError, msgspec.MsgspecError):  # none yet, or damaged: measured again
        return {}
    return {name: known.losses for name, known in content.items() if known.sha256 == sha256.get(name)}


_loaded = lru_cache(8)(corpora.load)
