"""The corpora of a study's runs: a file of tokens each, and a name."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from toposcope.errors import ToposcopeError
from toposcope.family import Corpus, Run
from toposcope.family import corpus as corpora
from toposcope.family.corpus import BUILT_IN
from toposcope.logs.columns import target_of

OWN_FILE = "corpus.safetensors"
"""Tokens of the corpus under ``[corpus]``."""


@dataclass
class StudyCorpora:
    """The corpora that the runs of a study are trained on.

    Attributes
    ----------
    directory : Path
        The study's.
    own : Corpus
        The one under ``[corpus]``.
    used : list of Corpus
        Those of the runs, each once, in the order of the runs.
    sha256 : dict
        Of the texts of those whose tokens exist.
    errors : dict
        Why the tokens of the others do not.
    """

    directory: Path
    own: Corpus
    used: list[Corpus]
    sha256: dict[Corpus, str] = field(default_factory=dict)
    errors: dict[Corpus, str] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: Path, own: Corpus, runs: Sequence[Run]) -> "StudyCorpora":
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
    name = (
        source if source in BUILT_IN else source.removeprefix("hf:") if source.startswith("hf:") else Path(source).stem
    )
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:40] or "corpus"


def _digest(corpus: Corpus) -> str:
    """Return eight letters and digits that tell a corpus from others of its name."""
    return hashlib.sha256(msgspec.json.encode(corpus)).hexdigest()[:8]
