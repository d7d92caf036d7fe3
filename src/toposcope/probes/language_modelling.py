"""The loss of a model on a fixed text."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from toposcope.errors import ToposcopeError
from toposcope.models import token_losses
from toposcope.models.texts import passage
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.probe import Failure, Measurement, Probe, Subject, Value


class LanguageModellingProbe(Probe, frozen=True, tag="language_modelling"):
    """``loss`` (nats per token), ``perplexity``, ``bits_per_byte``, ``n_tokens`` and ``n_bytes`` of the fixed text.

    The text is cut into consecutive windows; every token but the first is predicted once, from those before it in its
    window. Bytes are those of the predicted text in UTF-8, so ``bits_per_byte``, unlike loss and
    perplexity, compares models with different tokenizers.

    Attributes
    ----------
    length : int
        Longest window in tokens; at most the model's context.
    """

    VERSION: ClassVar[int] = 1
    KIND: ClassVar[Kind] = "loss"
    NEEDS: ClassVar[frozenset[str]] = frozenset({"model"})

    length: int = 512

    def __post_init__(self) -> None:
        if self.length < 2:
            raise ValueError(f"length is {self.length}; it must be at least 2")

    def covers(self, layers: Sequence[str]) -> list[str]:
        """Return only the network."""
        return [NETWORK]

    def measure(self, subject: Subject) -> Iterator[Measurement | Failure]:
        """Measure the wanted layers of a checkpoint."""
        if NETWORK not in subject.wanted:
            return
        if subject.reader is None:
            raise ToposcopeError("language_modelling: needs a model and a text to read; declare them in a study")
        model = subject.reader.model()
        text = passage(subject.reader.text(), subject.reader.tokenizer(), min(self.length, model.context))
        losses = token_losses(model, text.sequences)
        loss = losses.total / losses.n_tokens
        statistics = {
            "loss": loss,
            "bits_per_byte": losses.total / math.log(2) / text.n_bytes,
            "n_tokens": float(losses.n_tokens),
            "n_bytes": float(text.n_bytes),
        }
        if loss < math.log(1e300):
            statistics["perplexity"] = math.exp(loss)
        yield Measurement(NETWORK, NETWORK, statistics, flag=f"batch halved to {losses.batch}" if losses.batch else "")

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Return nothing: the loss belongs to the whole model."""
        return {}

    def degree(self, statistic: str) -> int:
        """Return 0: losses do not depend on the scale."""
        return 0
