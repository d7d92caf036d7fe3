"""How well a model predicts a fixed text: what its representations are good for."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from toposcope.errors import ToposcopeError
from toposcope.models import token_losses
from toposcope.models.texts import passage
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.probe import Failure, Measurement, Probe, Subject, Value


class LanguageModellingProbe(Probe, frozen=True, tag="language_modelling"):
    """``loss`` (nats a token), ``perplexity``, ``bits_per_byte``, ``n_tokens`` and ``n_bytes`` of the fixed text.

    The text is cut into consecutive windows; every token but the first is predicted once, from those before it in its
    window. Bytes are those of the predicted text in UTF-8, so ``bits_per_byte`` compares models of different
    tokenizers, as loss and perplexity do not.

    Attributes
    ----------
    length : int
        Most tokens of a window; the model's context, if that is less.
    """

    VERSION: ClassVar[int] = 1
    KIND: ClassVar[Kind] = "loss"
    NEEDS: ClassVar[frozenset[str]] = frozenset({"model"})

    length: int = 512

    def __post_init__(self) -> None:
        if self.length < 2:
            raise ValueError(f"length is {self.length}; it must be at least 2")

    def covers(self, layers: Sequence[str]) -> list[str]:
        """Return the network alone."""
        return [NETWORK]

    def measure(self, subject: Subject) -> Iterator[Measurement | Failure]:
        """Measure what is wanted of a checkpoint."""
        if NETWORK not in subject.wanted:
            return
        if subject.reader is None:
            raise ToposcopeError("language_modelling: needs a model and a text to read; declare them in a study")
        model = subject.reader.model()
        read = passage(subject.reader.text(), subject.reader.tokenizer(), min(self.length, model.context))
        losses = token_losses(model, read.sequences)
        loss = losses.total / losses.n_tokens
        statistics = {
            "loss": loss,
            "bits_per_byte": losses.total / math.log(2) / read.n_bytes,
            "n_tokens": float(losses.n_tokens),
            "n_bytes": float(read.n_bytes),
        }
        if loss < math.log(1e300):
            statistics["perplexity"] = math.exp(loss)
        yield Measurement(NETWORK, NETWORK, statistics, flag=f"batch halved to {losses.batch}" if losses.batch else "")

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Return nothing: a loss is of the whole model."""
        return {}

    def degree(self, statistic: str) -> int:
        """Return 0."""
        return 0
