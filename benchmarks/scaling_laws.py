"""The fit of L(N, D) and its bootstrap beside SciPy's BFGS, in time and in what is found.

    python benchmarks/scaling_laws.py [--quick]

The points that are timed are of a known law, as many and as noisy as those that were read off the figure of Hoffmann et
al. 2022. Where these are beside the repository, they are fitted too.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from bench import Column, command, interleaved, ratio, show, write
from equal_flop_pairs import sweeps, thinned
from result_files import Spread
from textbook_scaling_law import GRID, descend, fit
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
EVERY = 9
"""Of the 4,500 starts one in so many is followed: 500."""

AGAINST = (
    Column("work", "work"),
    Column("its s", "theirs"),
    Column("toposcope s", "ours"),
    Column("ratio", "ratio"),
)
FOUND = (Column("fit", "fit"), *(Column(name, name) for name in NAMES), Column("objective", "objective"))
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


@command("scaling_laws", "9 starts, 20 resamples, 2 repeats", 5)
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure the fit of a scaling law.

    The contestants are sampled in turn. Every ratio is that of neighbouring samples, and in brackets stand the lowest
    and the highest.
    """
    repeats, every, resamples = (2, 500, 20) if quick else (repeats, EVERY, RESAMPLES)
    points = made()
    logs = (np.log(points.N), np.log(points.D), np.log(points.loss))
    fitted = scaling_law(points, resamples=0)
    best, objectives = fit(logs, every)
    once = {"theirs": lambda: fit(logs, every), "ours": lambda: scaling_law(points, resamples=0)}
    taken = interleaved(once, 1)
    rows = [_compared(f"fit from {len(objectives)} starts, and from a grid of 400", taken)]
    some = max(10, resamples // 50)
    drawn = np.random.default_rng(1).integers(0, len(points), (some, len(points)))
    start = np.array([np.log(best[1]), np.log(best[2]), np.log(best[0]), *best[3:]])

    def theirs() -> list[float]:
        return [descend((logs[0][d], logs[1][d], logs[2][d]), start)[0] for d in drawn]

    taken = interleaved({"theirs": theirs, "ours": lambda: scaling_law(points, resamples=resamples)}, repeats)
    taken["theirs"] = [seconds * resamples / some for seconds in taken["theirs"]]
    rows.append(_compared(f"fit, and bootstrap of {resamples} resamples", taken))
    show(rows, AGAINST, "Scaling law: SciPy's BFGS against toposcope")

    found: list[dict[str, object]] = [
        _row("toposcope", [getattr(fitted.law, name) for name in NAMES], fitted.objective),
        _row("the best of BFGS", best, float(objectives.min())),
        _row("the median start of BFGS", np.full(5, np.nan), float(np.median(objectives))),
    ]
    show(found, FOUND, "What is found (least objective is best)")
    near = float((objectives <= fitted.objective * (1 + 1e-6)).mean())
    facts = {
        "points": f"{len(points)} of a known law, noise {NOISE} of a t distribution with 3 degrees of freedom",
        "BFGS": f"numeric gradients, default tolerance, {len(objectives)} of the {len(GRID)} starts of Hoffmann et al.",
        "bootstrap of BFGS": f"each resample from the optimum of all points; {some} timed, the rest by proportion",
        "starts of BFGS that end within a millionth of the least objective": f"{near:.1%}",
        "samples": f"one of the fit, {repeats} of the bootstrap",
    }
    print(*(f"{name}: {fact}" for name, fact in facts.items()), sep="\n")
    tables = {"Scaling law": (rows, AGAINST), "What is found": (found, FOUND)}
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


def _compared(work: str, taken: dict[str, list[float]]) -> dict[str, object]:
    return {
        "work": work,
        "theirs": Spread.of(taken["theirs"]),
        "ours": Spread.of(taken["ours"]),
        "ratio": ratio(taken["theirs"], taken["ours"]),
    }


def _row(fit: str, coefficients: list[float] | Vector, objective: float) -> dict[str, object]:
    told = {name: "" if np.isnan(value) else f"{value:.6g}" for name, value in zip(NAMES, coefficients, strict=True)}
    return {"fit": fit, **told, "objective": f"{objective:.8g}"}


if __name__ == "__main__":
    main()
