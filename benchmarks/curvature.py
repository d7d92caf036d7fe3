"""Hessian-vector products, top eigenvalues and spectral density of a small GPT, beside other tools.

    python benchmarks/curvature.py [--quick]

The model has 0.9 million parameters and is trained for a moment, so that its spectrum has outliers. Products are
counted in forward-backward passes: gradients of the training loss of the same sequences, with the fused attention of
training. hessian-eigenthings and curvlinops are what `benchmarks/other_tools.py` installs; their attention is on the
same path as ours, which they cannot do without. SciPy's ARPACK runs on our products. All products are compared with a
central difference of gradients in float64.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench import Column, command, milliseconds, ratio, show, write
from other_tools import TOOLS, use
from result_files import Spread
from toposcope.family import ModelSize
from toposcope.family.model import GPT, build
from toposcope.homology import extreme_eigenpairs, spectral_density
from toposcope.models import TokenSequence
from toposcope.models.family_model import FamilyModel
from toposcope.models.hessian_products import HessianProduct
from toposcope.models.summed_loss import SummedLoss, text_loss
from toposcope.typing import Vector

OURS, EIGENTHINGS, CURVLINOPS = "toposcope", "hessian-eigenthings", "curvlinops-for-pytorch"
TOP, DRAWS, STEPS, TOLERANCE = 10, 5, 30, 1e-3
LANCZOS_STEPS = 80
"""Of tools that do not choose their number themselves."""
STEP = 1e-4
"""Of the central difference, along a vector of length 1."""
Row = dict[str, object]

PRODUCTS = (
    Column("contestant", "contestant"),
    Column("milliseconds a product", "milliseconds"),
    Column("forward-backward passes", "passes"),
    Column("relative error", "difference"),
)
SPECTRA = (
    Column("work", "work"),
    Column("contestant", "contestant"),
    Column("seconds", "seconds"),
    Column("products", "products"),
    Column("largest", "first"),
    Column("10th", "last"),
    Column("largest relative error", "error"),
)


@command("curvature", "a model of 21,000 parameters, few steps", repeats=5)
def main(quick: bool, repeats: int, out: Path) -> None:
    """Compare products, then eigenvalues and densities, and write the results."""
    installed, absent = use(EIGENTHINGS, CURVLINOPS)
    size = (
        ModelSize(hidden=24, layers=2, heads=2) if quick else ModelSize(hidden=128, layers=4, heads=4, vocabulary=512)
    )
    model, sequences = trained(size)
    loss = text_loss(FamilyModel(model, "GPT", torch.device("cpu")), sequences)
    contestants = products(model, loss, sequences, installed)
    rows = compare_products(model, loss, sequences, contestants, 1 if quick else repeats)
    show(rows, PRODUCTS, "Hessian-vector products")
    largest, smallest = extreme_eigenpairs(
        Counted(contestants[OURS]), len(loss.point), TOP,
        tolerance=TOLERANCE / 100, max_products=2000, rng=np.random.default_rng(1), dtype=np.float32,
    )  # fmt: skip
    spectra = compare_eigenvalues(loss, contestants, largest.values)
    ends = float(smallest.values[0]), float(largest.values[0])
    spectra += compare_densities(loss, contestants, ends)
    show(spectra, SPECTRA, "Spectra")
    facts = {
        "model": f"{len(loss.point):,} parameters, {len(sequences)} sequences of {size.context} tokens, float32",
        "forward-backward pass": "gradient of the training loss, with fused attention",
        "eigenvalues": f"the {TOP} largest, tolerance {TOLERANCE}; ours also searches for missed copies, and takes "
        "a product for each residual, which the others do not make",
        "density": f"{DRAWS} random starts of {STEPS} steps",
    }
    tables = {"Hessian-vector products": (rows, PRODUCTS), "Spectra": (spectra, SPECTRA)}
    write(
        "curvature",
        out,
        facts | absent,
        tables,
        ["toposcope", "numpy", "scipy", "torch", *installed],
    )


def trained(size: ModelSize) -> tuple[GPT, list[TokenSequence]]:
    """Return a model after a few steps, and the sequences it has seen: a periodic text with errors."""
    generator = torch.Generator().manual_seed(0)
    clean = (torch.arange(8)[:, None] + torch.arange(size.context)) * 7 % size.vocabulary
    noisy = torch.rand(clean.shape, generator=generator) < 0.3
    tokens = torch.where(noisy, torch.randint(0, size.vocabulary, clean.shape, generator=generator), clean)
    model = build(size, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(30):
        optimizer.zero_grad()
        model.loss(tokens).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval(), [TokenSequence(tuple(row.tolist())) for row in tokens]


# Products

Product = Callable[[Vector], Vector]


class Flat(nn.Module):
    """The model with all its predictions in rows, as tools for classifiers take them."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, shape (batch x time, vocabulary)."""
        logits: Tensor = self.model(tokens)
        return logits.flatten(0, 1)


def products(model: GPT, loss: SummedLoss, sequences: list[TokenSequence], installed: list[str]) -> dict[str, Any]:
    """Return the Hessian of each tool: a callable of ours, an operator of theirs."""
    tokens = torch.tensor([sequence.ids for sequence in sequences])
    inputs, targets = tokens[:, :-1], tokens[:, 1:].flatten()
    found: dict[str, Any] = {OURS: HessianProduct(loss, loss.point)}
    if EIGENTHINGS in installed:
        from hessian_eigenthings.operators import HessianOperator

        def of_batch(module: nn.Module, batch: Any) -> Tensor:
            return functional.cross_entropy(module(batch[0]), batch[1])

        found[EIGENTHINGS] = HessianOperator(Flat(model), [(inputs, targets)], of_batch)
    if CURVLINOPS in installed:
        from curvlinops import HessianLinearOperator

        flat = Flat(model)
        found[CURVLINOPS] = HessianLinearOperator(
            flat, nn.CrossEntropyLoss(), list(flat.parameters()), [(inputs, targets)], check_deterministic=False
        )
    return found


def multiply(hessian: Any, vector: Tensor) -> Tensor:
    """Multiply by the Hessian of any tool."""
    with step_by_step():
        if isinstance(hessian, HessianProduct):
            return hessian(vector)
        theirs = type(hessian).__module__.startswith(TOOLS[EIGENTHINGS].module)
        product: Tensor = hessian.matvec(vector) if theirs else hessian @ vector
        return product


@contextmanager
def step_by_step() -> Iterator[None]:
    """Compute attention without fused kernels."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def compare_products(
    model: GPT, loss: SummedLoss, sequences: list[TokenSequence], contestants: dict[str, Any], repeats: int
) -> list[Row]:
    """Time a product of each tool beside a gradient, in turn."""
    tokens = torch.tensor([sequence.ids for sequence in sequences])
    vector = torch.randn(len(loss.point), generator=torch.Generator().manual_seed(0))
    vector /= vector.norm()
    exact = by_difference(model, sequences, vector)

    def gradient() -> None:
        model.zero_grad()
        model.loss(tokens).backward()  # type: ignore[no-untyped-call]

    rows: list[Row] = []
    for name, hessian in contestants.items():
        difference = float((multiply(hessian, vector) - exact).norm() / exact.norm())
        taken = milliseconds({"product": partial(multiply, hessian, vector), "pass": gradient}, repeats)
        rows.append(
            {
                "contestant": name,
                "milliseconds": Spread.of(taken["product"]),
                "passes": ratio(taken["product"], taken["pass"]),
                "difference": f"{difference:.1g}",
            }
        )
    return rows


def by_difference(model: GPT, sequences: list[TokenSequence], vector: Tensor) -> Tensor:
    """Return a product in float64 by a central difference of gradients."""
    loss = text_loss(FamilyModel(model, "GPT", torch.device("cpu")), sequences, torch.float64)
    after, before = (loss.gradient(loss.point + sign * STEP * vector)[1] for sign in (1, -1))
    return (after - before) / (2 * STEP)


# Spectra


class Counted:
    """Products with arrays, counted."""

    def __init__(self, hessian: Any) -> None:
        self.hessian, self.count = hessian, 0

    def __call__(self, vector: Any) -> Any:
        """Multiply an array."""
        self.count += 1
        return multiply(self.hessian, torch.from_numpy(np.asarray(vector, np.float32))).numpy()

    def matvec(self, vector: Tensor) -> Tensor:
        """Multiply a tensor."""
        self.count += 1
        return multiply(self.hessian, vector)


def compare_eigenvalues(loss: SummedLoss, contestants: dict[str, Any], exact: Vector) -> list[Row]:
    """Time the largest eigenvalues; their errors are relative to the largest."""
    n, ours = len(loss.point), contestants[OURS]
    rng = np.random.default_rng

    def by_us(counted: Counted) -> Vector:
        return extreme_eigenpairs(counted, n, TOP, 0, tolerance=TOLERANCE, rng=rng(0), dtype=np.float32)[0].values

    def by_arpack(counted: Counted) -> Vector:
        operator = LinearOperator((n, n), counted, dtype=np.float32)
        start = rng(0).standard_normal(n).astype(np.float32)
        values: Vector = eigsh(operator, TOP, which="LA", tol=TOLERANCE, v0=start, return_eigenvectors=False)
        return values

    def by_eigenthings(counted: Counted) -> Vector:
        from hessian_eigenthings.algorithms.lanczos import lanczos

        steps = min(LANCZOS_STEPS, n)
        operator = as_operator(counted)
        found = lanczos(operator, k=TOP, max_iter=steps, tol=TOLERANCE, reorthogonalize=True, which="LA", seed=0)
        return np.asarray(found.eigenvalues.numpy(), np.float64)

    runs: dict[str, tuple[Any, Callable[[Counted], Vector]]] = {
        OURS: (ours, by_us),
        "ARPACK alone on our products": (ours, by_arpack),
    }
    if EIGENTHINGS in contestants:
        runs[f"{EIGENTHINGS}, {LANCZOS_STEPS} steps"] = (contestants[EIGENTHINGS], by_eigenthings)
    if CURVLINOPS in contestants:
        runs[f"{CURVLINOPS} with ARPACK"] = (contestants[CURVLINOPS], by_arpack)
    rows: list[Row] = []
    for name, (hessian, run) in runs.items():
        counted, begin = Counted(hessian), perf_counter()
        values = np.sort(run(counted))[::-1]
        rows.append(
            {
                "work": f"{TOP} largest eigenvalues",
                "contestant": name,
                "seconds": round(perf_counter() - begin, 2),
                "products": counted.count,
                "first": f"{values[0]:.4f}",
                "last": f"{values[-1]:.4f}",
                "error": f"{np.abs(values - exact).max() / exact[0]:.1g}",
            }
        )
    return rows


def as_operator(counted: Counted) -> Any:
    """Return an operator of hessian-eigenthings that counts its products."""
    operator = counted.hessian
    from hessian_eigenthings.operators.base import LambdaOperator

    return LambdaOperator(counted.matvec, size=operator.size, device=operator.device, dtype=operator.dtype)


def compare_densities(loss: SummedLoss, contestants: dict[str, Any], ends: tuple[float, float]) -> list[Row]:
    """Time spectral densities of as many starts and steps."""
    n = len(loss.point)

    def ours(counted: Counted) -> object:
        return spectral_density(counted, n, DRAWS, STEPS, np.random.default_rng(0), np.float32)

    def eigenthings(counted: Counted) -> object:
        from hessian_eigenthings.algorithms.spectral_density import spectral_density as theirs

        return theirs(as_operator(counted), num_runs=DRAWS, lanczos_steps=STEPS, seed=0)

    def curvlinops(counted: Counted) -> object:
        from curvlinops import LanczosApproximateSpectrumCached

        # The ends are given, as the others do not search for them either.
        spectrum = LanczosApproximateSpectrumCached(counted.hessian, STEPS, boundaries=ends)
        counted.count = DRAWS * STEPS  # it takes its own operator, whose products cannot be counted
        with step_by_step():
            return spectrum.approximate_spectrum(num_repeats=DRAWS)

    runs = {OURS: ours, EIGENTHINGS: eigenthings, CURVLINOPS: curvlinops}
    rows: list[Row] = []
    for name, hessian in contestants.items():
        counted, begin = Counted(hessian), perf_counter()
        runs[name](counted)
        row: Row = {"work": "spectral density", "contestant": name, "seconds": round(perf_counter() - begin, 2)}
        rows.append(row | {"products": counted.count, "first": "", "last": "", "error": ""})
    return rows


if __name__ == "__main__":
    main()
