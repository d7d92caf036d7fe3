"""Attention maps of a fixed text as graphs (see ``docs/methods/attention.md``)."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.homology.attention_maps import attention_map_statistics
from toposcope.models import attention_maps, windows
from toposcope.probes.attention_circuits import BY_HEAD, by_head, shared_means
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.hidden_states import count_blocks, hidden
from toposcope.probes.probe import HIDDEN, Failure, Measurement, Probe, ProbeInput, Shape, Value, lowered


class AttentionMapsProbe(Probe, frozen=True, tag="attention_maps"):
    """H0 and H1 of the attention of each head, and entropy, distance, first token, diagonal and peak next to them.

    The row ``hidden.01`` is the first block, and so on, with the means over heads and texts; those of a head end in
    ``@head.03``. See `attention_map_statistics`.
    """

    KIND: ClassVar[Kind] = "control"
    KINDS: ClassVar[Mapping[str, Kind]] = {"H0.total": "topology", "H1.total": "topology"}
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"model"})
    SCALE_FREE: ClassVar[bool] = True
    LEAST: ClassVar[Mapping[str, int]] = {"texts": 1, "length": 2}

    texts: int = 16  # windows of the text, at even distances
    length: int = 64  # tokens of a window; at most the model's context

    @classmethod
    def kind(cls, statistic: str) -> Kind:
        """Return the kind of a statistic, that of a head included."""
        return super().kind(statistic.partition(BY_HEAD)[0])

    def covers(self, layers: Sequence[str]) -> list[str]:
        """Return the pseudo-layers of the blocks, by the numbers in the layers' names, and the network."""
        return [*(hidden(k + 1) for k in range(count_blocks(layers))), NETWORK]

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of maps of heads of 64 dimensions, and of reading the text."""
        width, n = min((min(shape) for shape in shapes.values()), default=0), sum(a * b for a, b in shapes.values())
        maps, size = self.texts * count_blocks(shapes) * max(1, width // 64), float(self.length)
        return 1e-3 * maps * math.pow(size / 64, 2.5) + 3e-11 * self.texts * size * n

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the wanted blocks of a checkpoint."""
        reader = subject.text_reader(self.name())
        if not subject.wanted.intersection(self.covers([layer.name for layer in subject.layers])):
            return
        model = reader.model()
        sequences = windows(reader.text(), reader.tokenizer(), self.texts, min(self.length, model.context))
        found: dict[str, list[list[dict[str, float]]]] = defaultdict(list)
        for blocks in attention_maps(model, sequences):
            for k, maps in enumerate(blocks):
                if not np.isfinite(maps).all():
                    raise ToposcopeError(f"{model.location}: attention that is not finite; the model has diverged")
                found[hidden(k + 1)] += [[attention_map_statistics(one) for one in heads] for heads in maps]
        less = lowered(texts=(self.texts, len(sequences)), tokens_in_a_text=(self.length, model.context))
        rows = {
            layer: by_head([shared_means(head) for head in zip(*texts, strict=True)]) for layer, texts in found.items()
        }
        for layer, row in rows.items():
            if layer in subject.wanted:
                yield Measurement(layer, HIDDEN, row, flag=less)
        if NETWORK in subject.wanted:
            whole = {name: float(value) for name, value in self.combine([*rows.values()]).items()}
            yield Measurement(NETWORK, NETWORK, whole, flag=less)

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Take means over blocks, heads apart."""
        return shared_means(rows)
