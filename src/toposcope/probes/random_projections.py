"""Random projections of the weights (see ``docs/methods/controls.md``)."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from toposcope.checkpoints import Layer
from toposcope.kernels.sign_projections import WORD_BITS, add_sign_projections
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.probe import Failure, Measurement, Probe, ProbeInput, Shape, guarded
from toposcope.probes.row_blocks import BLOCK_BYTES, Rows, Widening
from toposcope.seeds import derive_seed
from toposcope.typing import Vector

DEFAULT_COUNT = 30
"""As many as there are statistics of the network by `neural_persistence` and `rips` with their defaults."""


class RandomProjectionsProbe(Probe, frozen=True, tag="random_projections"):
    """``projection_1``, ``projection_2``, ...: sums of all weights of the network, each with a random sign.

    The signs of a layer are derived from its name and shape: they are the same at every checkpoint, and in every run
    with such a layer. As many numbers as topology gives, linear in the weights and chosen blindly: what topology knows
    should be more. The mean square of a projection over the signs is the squared norm of the weights (Achlioptas 2003).
    """

    KIND: ClassVar[Kind] = "control"
    ROWS: ClassVar[bool] = True
    NETWORK_ONLY: ClassVar[bool] = True
    SCALE_FREE: ClassVar[bool] = True
    LEAST: ClassVar[Mapping[str, int]] = {"count": 1}

    count: int = DEFAULT_COUNT  # projections; the first are the same for every count
    seed: int = 42

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of a pass over the entries for every 64 projections."""
        return 7e-9 * -(-self.count // WORD_BITS) * sum(m * n for m, n in shapes.values())

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the expected memory of a few blocks of rows, or of a layer that has to be read at once."""
        return 3 * BLOCK_BYTES + max((8 * m * n for m, n in shapes.values()), default=0)

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the network, if it is wanted."""

        def measure_network() -> Measurement:
            sums = np.sum([sign_projections(layer, self.count, self.seed) for layer in subject.layers], axis=0)
            return Measurement(NETWORK, NETWORK, {f"projection_{k}": float(value) for k, value in enumerate(sums, 1)})

        if NETWORK in subject.wanted:
            yield guarded(NETWORK, measure_network)


def sign_projections(layer: Layer, count: int, seed: int) -> Vector:
    """Return the projections of one layer on directions of random signs, read a few rows at a time."""
    m, n = layer.shape
    neurons = (n, m) if layer.transposed else (m, n)
    # The position of an entry is that in the matrix with one neuron a row, however it is stored.
    steps = (1, m) if layer.transposed else (n, 1)
    seeds = [derive_seed(seed, "projections", layer.name, *neurons, word) for word in range(-(-count // WORD_BITS))]
    sums = np.zeros((len(seeds), WORD_BITS))
    stored, widened = Rows(layer), Widening(1.0)
    for start, stop in stored.blocks():
        W = widened(stored.read(start, stop))
        for word, word_seed in enumerate(seeds):
            add_sign_projections(W, start * steps[0], *steps, np.uint64(word_seed), sums[word])
    return sums.reshape(-1)[:count]
