"""A declared run, and what it inherits from its study."""

from typing import Any, TypeVar

import msgspec

from toposcope.errors import ToposcopeError
from toposcope.family import Corpus, ModelSize, Run, TrainingOptions
from toposcope.family.corpus import CHARACTERS
from toposcope.family.sizes import find_size
from toposcope.study.field_errors import readable

Fields = TypeVar("Fields", Corpus, TrainingOptions)


class DeclaredRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run to train.

    Attributes
    ----------
    size : str or ModelSize
        A name of the family, or its dimensions.
    name : str
        Its folder under ``runs/``; by default the name of the size.
    corpus : str or dict
        The source of its corpus, or the fields of `Corpus` that differ from the study's.
    training : dict
        Fields of `TrainingOptions` that differ from the study's.
    """

    size: str | ModelSize
    name: str = ""
    corpus: str | dict[str, Any] = msgspec.field(default_factory=dict)
    training: dict[str, Any] = msgspec.field(default_factory=dict)

    def resolve(self, corpus: Corpus, training: TrainingOptions, place: str = "runs") -> Run:
        """Return the run with what it inherits from a study filled in; `place` is where it is declared.

        Raises
        ------
        ToposcopeError
            Naming the run and the wrong field.
        """
        name = self.name or (self.size if isinstance(self.size, str) else "")
        if not name:
            raise ToposcopeError("runs: a run with a size of its own needs a name")
        own = {"source": self.corpus} if isinstance(self.corpus, str) else self.corpus
        corpus = _merged(corpus, own, f"{place}: {name}", "[corpus]")
        training = _merged(training, self.training, f"{place}: {name}", "[training]")
        if isinstance(self.size, ModelSize) and self.size.vocabulary not in (CHARACTERS, corpus.vocabulary):
            raise ToposcopeError(
                f"{place}: {name}: vocabulary is {self.size.vocabulary}, that of the corpus {corpus.vocabulary}; "
                "declare it with the corpus alone"
            )
        size = msgspec.structs.replace(find_size(self.size), vocabulary=corpus.vocabulary)
        return Run(name=name, size=size, corpus=corpus, training=training)


def _merged(inherited: Fields, own: dict[str, Any], place: str, whole: str) -> Fields:
    if not own:
        return inherited
    try:
        return msgspec.convert({**msgspec.to_builtins(inherited), **own}, type(inherited))
    except msgspec.ValidationError as error:
        raise ToposcopeError(f"{place}: {readable(error, type(inherited), whole)}") from error
