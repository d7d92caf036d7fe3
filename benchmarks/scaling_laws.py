"""What the intervals of L(N, D) and of best sizes cover, and published points that were not fitted.

    python benchmarks/scaling_laws.py [--quick]

Made points are of a known law. Published ones are read from beside the repository, where they are.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from bench import Column, command, show, write
from equal_flop_pairs import sweeps, thinned
from toposcope.errors import ToposcopeError
from toposcope.forecasting.scaling.frontier import _of_equal_compute, _vertex
from toposcope.forecasting.scaling.planner import Plan, optimal_split, plan
from toposcope.forecasting.scaling.points import Points, read_points
from toposcope.forecasting.scaling.scaling_law import NAMES, FittedScalingLaw, ScalingLaw, scaling_law

Vector = NDArray[np.float64]

LAW = ScalingLaw(1.82, 480, 2100, 0.35, 0.37)
NOISE = 0.01
PUBLISHED = Path(__file__).parents[2] / "shared" / "data" / "loss-curves" / "points.csv"
OUTLIERS = 5
"""Points of highest loss that Besiroglu et al. 2024 leave out."""
VALUES = {"E": 1.8172, "A": 477.8, "B": 2143.0, "alpha": 0.3473, "beta": 0.3672}
ERRORS = {"E": 0.026, "A": 119.0, "B": 1361.0, "alpha": 0.015, "beta": 0.021}
RESAMPLES = 1000
TRIALS, FEWER = 100, 200
"""Laws that are fitted to see what their intervals cover, and resamples of each."""
CUTS = (1e20, 3e20)
CHECKED = (Column("coefficient", "name"), *(Column(t, t) for t in ("published", "fitted", "error", "fitted error")))
FAR = (1e22, 1e23)
"""Budgets of the plans whose intervals are looked at: near the most of all points, and beyond."""
COVERED = (
    Column("points", "points"),
    Column("trials", "trials"),
    *(Column(f"{what} covered at {c:g}", f"{what} {c:g}") for c in FAR for what in ("N*", "loss")),
    Column("no interval", "without"),
)
BEYOND = (
    Column("fitted below", "below"),
    Column("points", "fitted"),
    Column("predicted from", "beyond"),
    Column("of them", "predicted"),
    Column("median error", "error"),
    Column("median bias", "bias"),
)
SIZES = (
    *(Column("points", "points"), Column("fitted", "fitted"), Column("budgets", "n"), Column("held", "held")),
    *(Column("width, factor", "width"), Column("by the bootstrap alone", "alone"), Column("its width", "alone_width")),
    *(Column("median error, factor", "error"), Column("not identifiable", "undetermined")),
)
ALONE = (Column("work", "work"), Column("seconds", "seconds"))


def made(n: int = 240, seed: int = 0) -> Points:
    """Return points of runs from 5e7 to 1e10 parameters and 1 to 100 tokens each, with a few far off."""
    random = np.random.default_rng(seed)
    N = np.exp(random.uniform(np.log(5e7), np.log(1e10), n))
    D = N * np.exp(random.uniform(0, np.log(100), n))
    return Points(N, D, LAW.loss(N, D) * np.exp(NOISE * random.standard_t(3, n)))


def made_curves(n_runs: int, seed: int) -> Points:
    """Return ten points of each of some training curves, whose losses differ by half a percent between runs."""
    random = np.random.default_rng(seed)
    N = np.repeat(np.geomspace(5e7, 1e10, n_runs), 10)
    D = np.tile(np.geomspace(2e9, 3e11, 10), n_runs)
    error = 0.003 * random.normal(size=len(N)) + 0.005 * np.repeat(random.normal(size=n_runs), 10)
    return Points(N, D, LAW.loss(N, D) * np.exp(error), np.repeat(np.arange(n_runs).astype(str), 10))


@command("scaling_laws", "2 laws, 20 resamples", 1)
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure what is known of a scaling law."""
    resamples = 20 if quick else RESAMPLES
    facts = {
        "made points": f"of a known law, noise {NOISE} of a t distribution with 3 degrees of freedom",
        "best sizes": f"vertices of parabolas through points of equal compute; {FEWER} resamples of the law",
    }
    tables: dict[str, tuple[list[dict[str, object]], tuple[Column, ...]]] = {}
    covered = [_covered(name, make, 2 if quick else TRIALS) for name, make in DESIGNS.items()]
    show(covered, COVERED, "What 95% intervals cover, at some FLOP")
    tables["Coverage"] = (covered, COVERED)
    if PUBLISHED.is_file():
        checked, alone, beyond = _published(resamples)
        show(checked, CHECKED, "Points of Hoffmann et al. 2022, read off by Besiroglu et al. 2024")
        show(alone, ALONE, "Alone")
        show(beyond, BEYOND, "Published points beyond those that were fitted")
        sizes = [] if quick else _best_sizes()
        show(sizes, SIZES, "95% intervals of the best size, against isoFLOP minima that were not fitted")
        tables |= {
            "Best sizes": (sizes, SIZES),
            "Published points": (checked, CHECKED),
            "Alone": (alone, ALONE),
            "Beyond": (beyond, BEYOND),
        }
    else:
        print(f"{PUBLISHED} is absent: published points were not fitted")
    write("scaling-laws", out, facts, tables, ("toposcope", "numpy", "scipy"))


DESIGNS: dict[str, Callable[[int], Points]] = {
    "240 runs": lambda seed: made(240, seed),
    "40 runs": lambda seed: made(40, seed),
    "12 runs": lambda seed: made(12, seed),
    "22 training curves": lambda seed: made_curves(22, seed),
    "8 training curves": lambda seed: made_curves(8, seed),
}


def _covered(name: str, make: Callable[[int], Points], trials: int) -> dict[str, object]:
    """Count how often the intervals of plans hold the truth."""
    hits: list[dict[str, bool]] = []
    for seed in range(trials):
        try:
            fitted = scaling_law(make(seed), resamples=FEWER, seed=seed)
        except ToposcopeError:
            continue
        if fitted.bootstrap:
            hits.append(dict(chain.from_iterable(_held(plan(fitted, budget)) for budget in FAR)))
    shares = {key: f"{np.mean([hit[key] for hit in hits]):.0%}" for key in (hits[0] if hits else ())}
    return {"points": name, "trials": trials, **shares, "without": trials - len(hits)}


def _held(found: Plan) -> Iterator[tuple[str, bool]]:
    """Yield whether each interval of a plan holds the truth."""
    N, D = optimal_split(LAW, found.budget_flops)
    for what, interval, truth in (("N*", found.N, N), ("loss", found.loss, float(LAW.loss(N, D)))):
        yield f"{what} {found.budget_flops:g}", interval.low < truth < interval.high


def _best_sizes() -> list[dict[str, object]]:
    """Compare the best size of a budget with the vertex of a parabola through points of that compute, held out."""
    read = read_points(PUBLISHED)
    chinchilla = read.where(read.family == "chinchilla_epoch")
    found = {
        "Chinchilla": chinchilla.where(chinchilla.loss < np.sort(chinchilla.loss)[-OUTLIERS]),
        "Gemstones": read.where(read.family == "gemstones"),
        **sweeps(PUBLISHED.parents[1] / "loss-to-loss" / "sweep.parquet"),
    }
    cases: dict[tuple[str, str], list[tuple[tuple[Plan, Plan], float]]] = {}
    for name, points in found.items():
        log_n, log_c, one = np.log(points.N), np.log(points.C), np.ones(len(points))
        for group in _of_equal_compute(log_c):
            vertex = _vertex(log_n[group], log_c[group], points.loss[group], one[group])
            budget = float(np.exp(log_c[group].mean()))
            others = ~np.isin(np.arange(len(points)), group)
            for way, inside in (("other compute", others), ("a quarter and less", budget / 4 >= points.C)):
                known = thinned(points.where(inside))
                if not np.isfinite(vertex):
                    continue
                try:
                    fitted = scaling_law(known, resamples=FEWER)
                except ToposcopeError:
                    continue  # the least budgets have too few points below them
                plans = plan(fitted, budget), plan(replace(fitted, parts=()), budget)
                cases.setdefault((name, way), []).append((plans, float(np.exp(vertex))))
    rows = [_sized(name, way, of) for (name, way), of in cases.items()]
    return [*rows, _sized("all", "", [case for of in cases.values() for case in of])]


def _sized(name: str, way: str, cases: list[tuple[tuple[Plan, Plan], float]]) -> dict[str, object]:
    row: dict[str, object] = {"points": name, "fitted": way, "n": len(cases)}
    for i, (held, width) in enumerate((("held", "width"), ("alone", "alone_width"))):
        sizes = [(plans[i].N, best) for plans, best in cases]
        row[held] = f"{np.mean([size.low <= best <= size.high for size, best in sizes]):.0%}"
        row[width] = f"{np.median([size.high / size.low for size, _ in sizes]):.2f}"
    row["error"] = f"{np.median([np.exp(abs(np.log(plans[0].N.value / best))) for plans, best in cases]):.2f}"
    return row | {"undetermined": sum(bool(plans[0].undetermined) for plans, _ in cases)}


def _published(resamples: int) -> tuple[list[dict[str, object]], ...]:
    table = read_points(PUBLISHED)
    read = table.where(table.family == "chinchilla_epoch")
    kept = read.where(read.loss < np.sort(read.loss)[-OUTLIERS])
    begin = perf_counter()
    chinchilla = scaling_law(kept, resamples=resamples)
    taken = perf_counter() - begin
    begin = perf_counter()
    gemstones = table.where(table.family == "gemstones")
    along = scaling_law(gemstones, resamples=resamples)
    rows = [(chinchilla, taken), (along, perf_counter() - begin)]
    checked: list[dict[str, object]] = [
        {
            "name": name,
            "published": VALUES[name],
            "fitted": f"{getattr(chinchilla.law, name):.5g}",
            "error": ERRORS[name],
            "fitted error": f"{chinchilla.standard_errors[name]:.2g}",
        }
        for name in NAMES
    ]
    alone: list[dict[str, object]] = [
        {"work": _work(law, resamples), "seconds": f"{seconds:.2g}"} for law, seconds in rows
    ]
    return checked, alone, [_beyond(kept, cut) for cut in CUTS]


def _beyond(points: Points, cut: float) -> dict[str, object]:
    """Fit points below some compute and predict those beyond three times that."""
    compute = points.C
    near, far = points.where(compute < cut), points.where(compute >= 3 * cut)
    errors = scaling_law(near, resamples=0).law.loss(far.N, far.D) / far.loss - 1
    return {
        "below": f"{cut:g} FLOP",
        "fitted": len(near),
        "beyond": f"{3 * cut:g} FLOP",
        "predicted": len(far),
        "error": f"{np.median(np.abs(errors)):.2%}",
        "bias": f"{np.median(errors):+.2%}",
    }


def _work(fitted: FittedScalingLaw, resamples: int) -> str:
    points = fitted.points
    runs = len(np.unique(points.run))
    return f"{points.family[0]}: {len(points)} points of {runs} runs, fit and {resamples} resamples"


if __name__ == "__main__":
    main()
