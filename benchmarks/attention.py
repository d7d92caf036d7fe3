"""Attention by head: the time of GPT-2 small, and how far a change of basis moves what is measured of W_Q alone.

    python benchmarks/attention.py [SERIES...]

A basis A of a head, W_Q -> A^-T W_Q and W_K -> A W_K, changes nothing that the model computes. Per head: the largest
change of W_Q's own H0 total and neural persistence over 20 random bases, orthogonal or of condition 10, and of the
circuit's. Ranges are over the heads of the last checkpoint of each series.
"""

import sys
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import toposcope as ts
from toposcope.checkpoints.attention import CircuitLayer, attention_circuits
from toposcope.homology import neural_persistence, rips
from toposcope.homology.circuits import Circuit, circuit_statistics
from toposcope.models import Origin
from toposcope.models.loading import attention_facts

BASES, WIDTH, HEAD, LAYERS = 20, 768, 64, 12
Array = NDArray[np.float64]


def main(places: list[str]) -> None:
    """Print the time, and a row for each series and condition."""
    rng = np.random.default_rng(0)
    random = [
        Circuit(rng.normal(size=(WIDTH + 1, HEAD)), rng.normal(size=(HEAD, WIDTH + 1)), NO_PAIRS) for _ in range(12)
    ]
    with threadpool_limits(1):
        circuit_statistics(random[0], "compiled before")
        start = time.process_time()
        for _ in range(LAYERS):
            for circuit in random:
                circuit_statistics(circuit, "head")
    print(f"QK of the 144 heads of GPT-2 small: {time.process_time() - start:.1f} s of CPU")
    print("| weights | bases | H0 of W_Q | neural persistence of W_Q | H0 of the circuit |\n|---|---|---|---|---|")
    for place, heads in [("normal, 64 of 768", random[:4]), *((place, list(queries(place))) for place in places)]:
        for condition in (1, 10):
            moved = np.array([scatter(head, condition, rng) for head in heads]).T
            cells = [
                f"{100 * low:.2g} to {100 * high:.2g}%" for low, high in zip(moved.min(1), moved.max(1), strict=True)
            ]
            print(f"| {place} | {'orthogonal' if condition == 1 else f'condition {condition}'} | {' | '.join(cells)} |")


def queries(place: str) -> Iterator[Circuit]:
    """Yield the QK circuits of the last checkpoint, with their own factors."""
    checkpoint = ts.series(place)[-1]
    for name, layer in attention_circuits(checkpoint, attention_facts(checkpoint, Origin())).items():
        if isinstance(layer, CircuitLayer) and not name.endswith(("proj.weight", "dense.weight")):
            yield from layer.read()


def scatter(head: Circuit, condition: float, rng: np.random.Generator) -> Array:
    """Return the largest relative change of each number over random bases."""
    found = []
    for _ in range(BASES):
        U, V = (np.linalg.qr(rng.normal(size=(len(head.right),) * 2)).Q for _ in range(2))
        A = U * np.geomspace(1, condition, len(U)) @ V
        found.append(measured(Circuit(head.left @ np.linalg.inv(A), A @ head.right, head.pairs)))
    own = measured(head)
    return np.asarray(np.abs(np.array(found) / own - 1).max(axis=0))


def measured(head: Circuit) -> Array:
    """Return H0 total and neural persistence of W_Q, and the H0 total of the circuit."""
    (rows,) = rips(head.left.T, max_dimension=0)
    own = rows.lifetimes.sum(), neural_persistence(head.left.T).mean
    return np.array([*own, circuit_statistics(head, "head")["H0.total"]])


NO_PAIRS = np.empty((0, 2), np.int64)

if __name__ == "__main__":
    main(sys.argv[1:])
