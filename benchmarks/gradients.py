"""Values and gradients of persistence, forward and backward, beside torch_topological, GUDHI's generators and SciPy.

    python benchmarks/gradients.py [--quick]

All contestants use one thread, and must give the same total and nearly the same gradient first. torch_topological is
what `benchmarks/other_tools.py` installs.
"""

import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

# Before NumPy loads its BLAS.
os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1")

import click
import torch
from torch import Tensor

from bench import Column, command, ratio, show, write
from other_tools import use
from result_files import Spread
from toposcope import torch as topology
from toposcope.family import SIZES, Corpus, build
from toposcope.family.corpus import load, prepare

TOPOLOGICAL, GUDHI, SCIPY = "torch-topological", "GUDHI generators", "SciPy"
SIZE, BATCH = "xl-97k", 64
KEPT_SIZE, KEPT_BATCH, RATE = "small-7k", 8, 1e-3
SAMPLE = 0.3  # processor seconds, at least
COLUMNS = (
    Column("work", "work"),
    Column("contestant", "contestant"),
    Column("its CPU ms", "theirs"),
    Column("toposcope CPU ms", "ours"),
    Column("ratio", "ratio"),
)
SHARES = (Column("push", "push"), Column("CPU ms", "milliseconds"), Column("share of a training step", "share"))
AGES = (1, 5, 20)
KEPT = (Column("push", "push"), *(Column(f"cosine after {age}", str(age)) for age in AGES))

CORPUS = Corpus(source="python-docs")

Value = Callable[[Tensor], Tensor]
Push = Callable[..., tuple[Tensor, list[Any]]]  # of the weights, and of pairings that were kept


@command("gradients", "small clouds and a small model")
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure forward and backward of one cloud or matrix, and what that adds to a training step."""
    torch.set_num_threads(1)
    installed, absent = use(TOPOLOGICAL)
    repeats = 2 if quick else repeats
    rows: list[dict[str, object]] = []
    for dimension, n in [(0, 60), (1, 40)] if quick else [(0, 500), (1, 200), (1, 500)]:
        theirs = {GUDHI: gudhi_total(dimension)}
        if installed:
            theirs[TOPOLOGICAL] = topological_total(dimension)
        rows += contest(f"H{dimension}, {n} x 10", normal(n, 10), our_total(dimension), theirs, repeats)
    side = 32 if quick else 256
    matrix = normal(side, side)
    rows += contest(f"neural persistence, {side} x {side}", matrix, our_mean, {SCIPY: scipy_mean}, repeats)
    show(rows, COLUMNS, "Forward and backward")
    size = "tiny-3k" if quick else SIZE
    shares = training_shares(size, repeats)
    show(shares, SHARES, "Share of a training step")
    kept = kept_pairings("tiny-3k" if quick else KEPT_SIZE, 2 if quick else 20)
    show(kept, KEPT, "Kept pairings")
    facts = {
        "timed": "value and gradient of the total lifetime of standard normal points (of neural persistence its mean), "
        "float32; processor time of one thread",
        "samples": f"{repeats} of each contestant in turn, of at least {SAMPLE} s; median (lowest-highest)",
        GUDHI: "the generators of a flag complex up to the radius at which it becomes a cone; lengths by PyTorch",
        SCIPY: "the maximum spanning tree of the bipartite graph as a sparse matrix; weights by PyTorch",
        "training step": f"forward, backward and AdamW of {size}, batch {BATCH}; the push is the gradient for all "
        f"{len(weights_of(build(size, seed=0)))} weight matrices but the embeddings, paired anew",
        "kept pairings": "cosine of the gradient by a pairing of 1, 5 or 20 steps ago and the exact one, "
        f"{KEPT_SIZE} on {CORPUS.source}, AdamW at {RATE:g}, batch {KEPT_BATCH}; median (lowest-highest) of 20 "
        "times in 400 steps",
    }
    tables = {
        "Forward and backward": (rows, COLUMNS),
        "Share of a training step": (shares, SHARES),
        "Kept pairings": (kept, KEPT),
    }
    write(
        "gradients", out, facts | absent, tables, ("toposcope", "torch", "numpy", "numba", "gudhi", "scipy", *installed)
    )


def normal(*shape: int) -> Tensor:
    """Return standard normal numbers, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def our_total(dimension: int) -> Value:
    """By toposcope."""
    return lambda points: topology.total(topology.rips(points, max_dimension=dimension)[dimension])


def our_mean(W: Tensor) -> Tensor:
    """By toposcope."""
    return topology.neural_persistence(W).mean


def topological_total(dimension: int) -> Value:
    """By torch_topological, whose engine is giotto-ph."""
    from torch_topological.nn import VietorisRipsComplex

    complexes = VietorisRipsComplex(dim=dimension, n_threads=1)

    def total(points: Tensor) -> Tensor:
        births, deaths = complexes(points)[dimension].diagram.unbind(1)
        lifetimes: Tensor = (deaths - births).sum()
        return lifetimes

    return total


def gudhi_total(dimension: int) -> Value:
    """By the generators that GUDHI's simplex tree returns."""
    from gudhi import RipsComplex

    def total(points: Tensor) -> Tensor:
        values = points.detach().double()
        radius = float(torch.cdist(values, values).amax(1).min()) * (1 + 1e-9)
        tree = RipsComplex(points=values.numpy(), max_edge_length=radius).create_simplex_tree(dimension + 1)
        tree.compute_persistence()
        finite = tree.flag_persistence_generators()[:2]
        ends = torch.as_tensor(finite[0][:, 1:] if dimension == 0 else finite[1][0])
        lengths = (points[ends[:, 0::2]] - points[ends[:, 1::2]]).norm(dim=2)
        lifetimes: Tensor = lengths[:, 0] if dimension == 0 else lengths[:, 1] - lengths[:, 0]
        return lifetimes.sum()

    return total


def scipy_mean(W: Tensor) -> Tensor:
    """By the spanning tree of a sparse graph."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    m, n = W.shape
    rows, columns = torch.meshgrid(torch.arange(m), torch.arange(m, m + n), indexing="ij")
    # an edge of weight 0 would be none
    lengths = 1 + W.detach().abs().max() - W.detach().abs()
    graph = coo_array((lengths.ravel(), (rows.ravel(), columns.ravel())), shape=(m + n, m + n))
    begin, end = minimum_spanning_tree(graph.tocsr()).nonzero()
    weights: Tensor = W[torch.as_tensor(begin), torch.as_tensor(end - m)].abs()
    return 1 - (weights / W.abs().max()).mean()


def contest(
    work: str, values: Tensor, ours: Value, theirs: Mapping[str, Value], repeats: int
) -> list[dict[str, object]]:
    """Check that all give one value and gradient, then time them in turn."""
    exact = gradient(ours, values)
    for name, run in theirs.items():
        for mine, other in zip(exact, gradient(run, values), strict=True):
            if float((mine - other).norm()) > 1e-3 * float(mine.norm()):
                raise click.ClickException(f"{work}: {name} does not agree with toposcope; nothing was timed")
    contestants = {name: lambda run=run: gradient(run, values) for name, run in {"": ours, **theirs}.items()}
    taken = processor_milliseconds(contestants, repeats)
    return [
        {
            "work": work,
            "contestant": name,
            "theirs": Spread.of(taken[name]),
            "ours": Spread.of(taken[""]),
            "ratio": ratio(taken[name], taken[""]),
        }
        for name in theirs
    ]


def gradient(value: Value, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return the value and its gradient."""
    leaf = at.clone().requires_grad_()
    result = value(leaf)
    result.backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    return result.detach(), leaf.grad


def processor_milliseconds(contestants: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Time contestants in turn, in milliseconds of processor time a call."""
    calls = {name: max(1, math.ceil(SAMPLE / spent(run, 1, warm=True))) for name, run in contestants.items()}
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            if calls[name] > 1 or len(taken[name]) < 3:  # slow ones have less noise
                taken[name].append(1000 * spent(run, calls[name]) / calls[name])
    shortest = min(len(samples) for samples in taken.values())
    return {name: samples[:shortest] if shortest < repeats else samples for name, samples in taken.items()}


def spent(run: Callable[[], object], calls: int, warm: bool = False) -> float:
    """Return the processor seconds of some calls, at least a microsecond."""
    if warm:
        run()
    before = getrusage(RUSAGE_SELF)
    for _ in range(calls):
        run()
    after = getrusage(RUSAGE_SELF)
    return max(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1e-6)


def training_shares(size: str, repeats: int) -> list[dict[str, object]]:
    """Time a training step of a model of the family, and the gradient of topology for all its weights."""
    model = build(size, seed=0)
    optimizer = torch.optim.AdamW(model.parameters())
    length = SIZES[size].context + 1
    tokens = torch.randint(SIZES[size].vocabulary, (BATCH, length), generator=torch.Generator().manual_seed(0))
    weights = weights_of(model)

    def step() -> None:
        optimizer.zero_grad()
        model.loss(tokens).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    pushes = {name: lambda push=push: torch.autograd.grad(push(weights)[0], weights) for name, push in PUSHES.items()}
    taken = processor_milliseconds({"": step, **pushes}, repeats)
    rows: list[dict[str, object]] = [
        {"push": "none: the training step", "milliseconds": Spread.of(taken[""]), "share": None}
    ]
    for name in pushes:
        share = Spread.of([100 * a / b for a, b in zip(taken[name], taken[""], strict=True)])
        rows.append({"push": name, "milliseconds": Spread.of(taken[name]), "share": f"{share}%"})
    return rows


def kept_pairings(size: str, n_times: int) -> list[dict[str, object]]:
    """Compare the gradient by a pairing of some steps ago with the exact one, while a model trains."""
    model = build(size, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    weights, random = weights_of(model), torch.Generator().manual_seed(0)
    window = torch.arange(SIZES[size].context + 1)
    old: dict[str, list[Any]] = {}
    cosines: dict[tuple[str, int], list[float]] = {(name, age): [] for name in PUSHES for age in AGES}
    with tempfile.TemporaryDirectory() as folder:
        prepare(CORPUS, Path(folder) / "corpus.safetensors")
        tokens = load(Path(folder) / "corpus.safetensors").training.long()
        for step in range(n_times * AGES[-1] + 1):
            age = (step - 1) % AGES[-1] + 1
            for name, push in PUSHES.items() if step and age in AGES else ():
                exact, kept = (
                    torch.cat([each.ravel() for each in torch.autograd.grad(push(weights, pairing)[0], weights)])
                    for pairing in (None, old[name])
                )
                cosines[name, age].append(float(torch.cosine_similarity(exact, kept, dim=0)))
            if step % AGES[-1] == 0:
                old |= {name: push(weights)[1] for name, push in PUSHES.items()}
            starts = torch.randint(len(tokens) - len(window), (KEPT_BATCH, 1), generator=random)
            optimizer.zero_grad()
            model.loss(tokens[starts + window]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return [{"push": name, **{str(age): Spread.of(cosines[name, age]) for age in AGES}} for name in PUSHES]


def of_rips(dimension: int) -> Push:
    """Return what computes the scale-free total of all weights."""

    def push(weights: list[Tensor], pairing: list[Any] | None = None) -> tuple[Tensor, list[Any]]:
        diagrams = topology.rips(weights, max_dimension=dimension, pairing=pairing)
        totals = [topology.total(each[dimension], scale_free=True) for each in diagrams]
        return torch.stack(totals).sum(), diagrams

    return push


def of_persistence(weights: list[Tensor], pairing: list[Any] | None = None) -> tuple[Tensor, list[Any]]:
    """Compute the neural persistence of all weights."""
    found = topology.neural_persistence(weights, pairing=pairing)
    return torch.stack([each.mean for each in found]).sum(), found


PUSHES: dict[str, Push] = {
    "scale-free H0": of_rips(0),
    "scale-free H1": of_rips(1),
    "neural persistence": of_persistence,
}


def weights_of(model: torch.nn.Module) -> list[Tensor]:
    """Return the weight matrices but the embeddings."""
    return [p for name, p in model.named_parameters() if p.ndim == 2 and "emb" not in name]


if __name__ == "__main__":
    main()
