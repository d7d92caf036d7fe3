"""Curvature of the loss at a checkpoint: extreme eigenvalues, trace and spectral density of its Hessian."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from toposcope.homology.eigenpairs import Eigenpairs, Operator, extreme_eigenpairs, vectors_held
from toposcope.homology.memory import check_fits
from toposcope.homology.spectral_density import SpectralDensity, rows_kept, spectral_density
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.probe import (
    NOISE,
    Failure,
    Measurement,
    Probe,
    ProbeInput,
    Shape,
    Value,
    guarded,
    lowered,
    stacked,
)
from toposcope.seeds import derive_seed

if TYPE_CHECKING:
    from toposcope.models.hessian_products import HessianProduct

# Chosen on small GPTs (benchmarks/curvature.py).
TOLERANCE = 1e-3  # residual of a converged eigenvalue, relative to the largest absolute one
MAX_PRODUCTS = 400  # about how many for the eigenvalues of one end
NEAR_ZERO = 0.01  # eigenvalues below this share of the largest are neither positive nor negative
SECONDS_PER_PRODUCT = 4e-10  # for each parameter and token
PARAMETERS_PER_ANALYSED = 1.5  # embeddings and biases are not known beforehand
N_VECTORS = 14  # of the size of the model, next to a basis: the model, its gradient, and what a product takes
GRAPH_BYTES = 1 << 30  # of the graph of the gradient
# in units of the largest absolute eigenvalue; a finer cumulative density would be below the resolution of the steps
EDGES = tuple(round(0.05 * k - 1.025, 3) for k in range(42))
SHARPNESS, SMALLEST, FILTER_NORMALISED = "sharpness", "smallest_eigenvalue", "filter_normalised_sharpness"


class CurvatureProbe(Probe, frozen=True, tag="curvature"):
    """Hessian of the mean loss on fixed text: ``sharpness``, its largest eigenvalue, and what surrounds it.

    Definitions: ``docs/methods/curvature.md``.
    """

    VERSION: ClassVar[int] = 3
    KIND: ClassVar[Kind] = "spectrum"
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"text_loss"})
    SUMMARY: ClassVar[Sequence[str]] = ("sharpness", "sharpness.noise", "trace", "trace.noise")
    LEAST: ClassVar[Mapping[str, int]] = {"top": 1, "sequences": 1, "length": 2, "draws": 2, "steps": 2}

    top: int = 10  # largest eigenvalues
    sequences: int = 8  # windows of the text, spread evenly
    length: int = 128  # tokens of a window; at most the model's context
    draws: int = 5  # random vectors of the trace and of the density
    steps: int = 30  # Lanczos steps of each
    blocks: bool = False  # the same of each layer's own block of the Hessian, too
    # also report the cumulative density, as ``density@x``: the share of eigenvalues of at most x times the largest
    # absolute one
    density: bool = False
    seed: int = 42

    def covers(self, layers: Sequence[str]) -> list[str]:
        """Return the network, and the layers with `blocks`."""
        return [*(layers if self.blocks else ()), NETWORK]

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of all products."""
        n_parameters = sum(m * n for m, n in shapes.values())
        products = 3 * (self.top + 50) + self.draws * self.steps
        matrices = 1 + (len(shapes) if self.blocks else 0)
        return SECONDS_PER_PRODUCT * n_parameters * self.sequences * self.length * products * matrices

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the expected memory of the vectors, the model and the graph of the gradient."""
        return self._bytes(max(1, int(PARAMETERS_PER_ANALYSED * sum(m * n for m, n in shapes.values())))) + GRAPH_BYTES

    def _bytes(self, n: int) -> int:
        return 4 * n * (max(vectors_held(n, self.top), rows_kept(n, self.steps, 4)) + self.top + 1 + N_VECTORS)

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the wanted layers of a checkpoint."""
        wanted = [layer for layer in subject.layers if self.blocks and layer.name in subject.wanted]
        if not wanted and NETWORK not in subject.wanted:
            return
        load = subject.text_loss(self.name())
        hessian = _hessian(load, self.sequences, self.length)
        norms = hessian.loss.filter_norms(hessian.point).cpu().numpy()
        for layer in wanted:
            yield guarded(layer.name, lambda layer=layer: self._measure_block(hessian, norms, layer.name, layer.role))  # type: ignore[misc]
        if NETWORK in subject.wanted:
            yield guarded(NETWORK, lambda: self._measure(hessian, hessian, norms, NETWORK, NETWORK))

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Return the statistics of the part of the Hessian in which layers do not interact."""
        combinations: dict[str, Callable[..., Any]] = {
            **{SHARPNESS: np.max, FILTER_NORMALISED: np.max, SMALLEST: np.min},
            **{"trace": np.sum, f"trace{NOISE}": np.linalg.norm},
        }
        measured = {name: f for name, f in combinations.items() if all(name in row for row in rows)}
        return {name: combination(stacked(rows, name), axis=0) for name, combination in measured.items()}

    def degree(self, statistic: str) -> int:
        """Return -2 for curvatures: twice the weights of a network that ignores their scale have a quarter of it."""
        name = statistic.removesuffix(NOISE)
        return -2 if name in (SHARPNESS, SMALLEST, "trace", "hessian_error") or name.startswith("eigenvalue_") else 0

    def _measure_block(self, hessian: "HessianProduct", norms: NDArray[Any], name: str, role: str) -> Measurement:
        block = hessian.loss.block(name)
        return self._measure(hessian, hessian.of_block(name), norms[block.start : block.stop], name, role)

    def _measure(
        self, hessian: "HessianProduct", product: Callable[[Any], Any], norms: NDArray[Any], layer: str, role: str
    ) -> Measurement:
        """Measure one symmetric matrix by its products."""
        n, operator = len(norms), _on_arrays(hessian, product)
        fewest = msgspec.structs.replace(self, top=1)._bytes(n)  # noqa: SLF001 - of the same class
        hint = f"take fewer eigenvalues (top=1 needs {fewest / 1e9:.3g} GB)" if self.top > 1 else "use a larger machine"
        check_fits(self._bytes(n) * hessian.point.element_size() // 4, f"curvature of {n:,} weights", hint)
        rng = np.random.default_rng(derive_seed(self.seed, "curvature", layer))
        dtype = np.float64 if hessian.point.element_size() == 8 else np.float32

        eigenpairs = partial(extreme_eigenpairs, tolerance=TOLERANCE, max_products=MAX_PRODUCTS, rng=rng, dtype=dtype)
        largest, smallest = eigenpairs(operator, n, self.top)
        spectrum = spectral_density(operator, n, self.draws, self.steps, rng, dtype, _reliable(largest, smallest))
        scaled, _ = eigenpairs(lambda v: norms * operator(norms * v), n, 1, 0)

        error = hessian.error
        statistics = _eigenvalues(largest, error)
        if smallest.n_reliable:
            statistics |= _with_error(SMALLEST, smallest.values[0], smallest.residuals[0] + error)
        trace, standard_error = spectrum.trace()
        statistics |= _with_error("trace", trace, standard_error + n * error)
        statistics |= self._shares(
            spectrum, max(float(np.abs(v).max()) for v in (spectrum.known, spectrum.nodes) if v.size)
        )
        if scaled.n_reliable:
            largest_norm = float(norms.max()) ** 2
            statistics |= _with_error(FILTER_NORMALISED, scaled.values[0], scaled.residuals[0] + error * largest_norm)
        statistics["n_tokens"] = float(hessian.loss.n_tokens)
        if hessian.method == "finite differences":
            statistics["hessian_error"] = error
        flags = (
            "finite differences" if hessian.method == "finite differences" else "",
            "" if {SHARPNESS, SMALLEST, FILTER_NORMALISED} <= statistics.keys() else "not converged",
            hessian.loss.lowered,
            lowered(eigenvalues=(self.top, largest.n_reliable)),
        )
        return Measurement(layer, role, statistics, flag=", ".join(filter(None, flags)))

    def _shares(self, spectrum: SpectralDensity, scale: float) -> dict[str, float]:
        positive, negative = spectrum.share(NEAR_ZERO * scale, np.inf), spectrum.share(-np.inf, -NEAR_ZERO * scale)
        shares = _with_error("positive_share", *positive) | _with_error("negative_share", *negative)
        for edge in EDGES if self.density else ():
            shares |= _with_error(f"density@{edge:g}", *spectrum.share(-np.inf, edge * scale))
        return shares


def _hessian(load: Callable[..., Any], sequences: int, length: int) -> "HessianProduct":
    """Return the Hessian at the checkpoint: in float32, or, where possible, in float64 if differences are needed."""
    import torch

    from toposcope.models.hessian_products import HessianProduct

    loss = load(sequences, length)
    loss.value_at_checkpoint()
    hessian = HessianProduct(loss, loss.point)
    hessian(torch.ones_like(loss.point))
    if hessian.method == "finite differences" and loss.point.dtype != torch.float64:
        try:
            wide = load(sequences, length, dtype=torch.float64)
            wide.value_at_checkpoint()
        except RuntimeError:  # an operation has no float64; the error in float32 is larger, and reported
            return hessian
        hessian = HessianProduct(wide, wide.point)
    return hessian


def _on_arrays(hessian: "HessianProduct", product: Callable[[Any], Any]) -> Operator:
    import torch

    def operator(vector: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = product(torch.from_numpy(vector).to(hessian.point)).cpu().numpy()
        return found

    return operator


def _reliable(largest: Eigenpairs, smallest: Eigenpairs) -> Eigenpairs:
    """Return the reliable pairs of both ends as those of one; of a matrix so small that ends meet, one end's."""
    ends = [largest, smallest] if len(largest.values) < largest.vectors.shape[1] else [largest]
    parts = [(e.values[: e.n_reliable], e.residuals[: e.n_reliable], e.vectors[: e.n_reliable]) for e in ends]
    values, residuals, vectors = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Eigenpairs(values, residuals, vectors, len(values))


def _eigenvalues(pairs: Eigenpairs, error: float) -> dict[str, float]:
    """Return the largest eigenvalues that are reliable, each with its residual."""
    statistics: dict[str, float] = {}
    for i in range(pairs.n_reliable):
        name = f"eigenvalue_{i + 1}" if i else SHARPNESS
        statistics |= _with_error(name, pairs.values[i], pairs.residuals[i] + error)
    return statistics


def _with_error(name: str, value: float, error: float) -> dict[str, float]:
    return {name: float(value), name + NOISE: float(error)}
