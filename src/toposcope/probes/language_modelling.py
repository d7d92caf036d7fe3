"""The loss of a model on a fixed text."""

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

from toposcope.models import token_losses
from toposcope.models.texts import passage
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.probe import Failure, Measurement, Probe, ProbeInput, lowered


class LanguageModellingProbe(Probe, frozen=True, tag="language_modelling"):
    """``loss`` (nats per token), ``perplexity``, ``bits_per_byte``, ``n_tokens`` and ``n_bytes`` of the fixed text.

    The text is cut into consecutive windows; every token but the first is predicted once, from those before it in its
    window. Bytes are those of the predicted text in UTF-8, so ``bits_per_byte``, unlike loss and
    perplexity, compares models with different tokenizers.
    """

    VERSION: ClassVar[int] = 1
    KIND: ClassVar[Kind] = "loss"
    NETWORK_ONLY: ClassVar[bool] = True
    SCALE_FREE: ClassVar[bool] = True
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"model"})
    LEAST: ClassVar[Mapping[str, int]] = {"length": 2}

    length: int = 512  # longest window in tokens; at most the model's context

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the wanted layers of a checkpoint."""
        if NETWORK not in subject.wanted:
            return
        reader = subject.text_reader(self.name())
        model = reader.model()
        text = passage(reader.text(), reader.tokenizer(), min(self.length, model.context))
        less = lowered(tokens_in_a_window=(self.length, model.context))
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
        flags = f"batch halved to {losses.batch}" if losses.batch else "", less
        yield Measurement(NETWORK, NETWORK, statistics, flag=", ".join(filter(None, flags)))
