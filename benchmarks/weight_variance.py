"""Whether neural persistence, and deep graph persistence, say more than the distribution of the weights.

    python benchmarks/weight_variance.py SERIES...

Over the checkpoints of each run, layer by layer: Spearman's correlation of persistence with the variance of
|w| / max|w| and with the persistence of twins, the mean over 20 permutations of the entries of each layer; both also
given the step, and of the changes from checkpoint to checkpoint. The excess is persistence less that of the twins at
the last checkpoint; "sd" counts it in standard deviations over the twins. Medians over layers; in brackets the weakest.
"""

import sys
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

import toposcope as ts
from toposcope.checkpoints import Layer
from toposcope.homology import deep_graph_persistence, neural_persistence, weight_variance
from toposcope.probes.deep_graph import chain_matrices, predecessors
from toposcope.probes.placebo_twin import permuted

Matrices = list[NDArray[np.float64]]
TWINS = 20
MEASURES: dict[str, Callable[[Matrices], float]] = {
    "neural persistence": lambda matrices: neural_persistence(matrices[-1]).mean,
    "deep graph persistence": lambda matrices: deep_graph_persistence(matrices).mean,
}


def main(places: Sequence[str]) -> None:
    """Print a table of runs and measures."""
    names = ("variance", "given step", "changes", "twins", "given step", "changes", "excess", "sd")
    print("| run | measure | layers | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 3) + "|")
    for place in places:
        for measure in MEASURES:
            rows = np.array(list(of_layers(place, measure)))
            cells = [f"{np.median(r):.3g} ({r[np.abs(r).argmin()]:.2g})".replace("-", "−") for r in rows.T]
            print(f"| {place} | {measure} | {len(rows)} | {' | '.join(cells)} |")


def of_layers(place: str, measure: str) -> list[list[float]]:
    """Return the correlations of every layer, or of every chain of several."""
    found: dict[str, list[list[float]]] = {}
    for checkpoint in ts.series(place):
        layers = checkpoint.analysed()
        before = predecessors(layers) if measure.startswith("deep") else {}
        for layer in layers:
            if layer.name in before or not measure.startswith("deep"):
                found.setdefault(layer.name, []).append([checkpoint.step, *_measured(layer, before, MEASURES[measure])])
    return [_correlations(np.array(rows)) for rows in found.values()]


def _measured(layer: Layer, before: dict[str, Layer], measure: Callable[[Matrices], float]) -> list[float]:
    matrices = [np.asarray(W, np.float64) for W in chain_matrices(layer, before)[1]]
    twins = [measure([permuted(W, TWINS * k + seed) for k, W in enumerate(matrices)]) for seed in range(TWINS)]
    return [measure(matrices), weight_variance(matrices), float(np.mean(twins)), float(np.std(twins, ddof=1))]


def _correlations(rows: NDArray[np.float64]) -> list[float]:
    step, value, variance, twin, spread = rows.T
    result: list[float] = []
    for other in (variance, twin):
        plain = _rho(value, other)
        a, b = _rho(value, step), _rho(other, step)
        result += [plain, (plain - a * b) / np.sqrt((1 - a * a) * (1 - b * b)), _rho(np.diff(value), np.diff(other))]
    excess = value[-1] - twin[-1]
    return [*result, excess, excess / spread[-1]]


def _rho(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    return float(spearmanr(x, y)[0])


if __name__ == "__main__":
    main(sys.argv[1:])
