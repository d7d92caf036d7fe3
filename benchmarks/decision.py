"""Continue or scale: our rules (docs/decision.md) and the naive ones on pairs of real runs at equal compute.

python benchmarks/decision.py [--quick] [--points FILE] [--out FOLDER]
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench import RESULTS, Column, show, write
from equal_flop_pairs import (
    MAX_POINTS_OF_RUN,
    N_FOLDS,
    SWEEPS,
    Judged,
    brier_score,
    calibrated_out_of_fold,
    dealt_folds,
    equal_flop_pairs,
    joined,
    judge,
    log_score,
    sweeps,
    thinned,
)
from toposcope.forecasting.decision.calibration import Calibration, calibration_of
from toposcope.forecasting.decision.decision import TOKENS_PER_PARAMETER
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.scaling.points import Points, read_points
from toposcope.forecasting.scaling.scaling_law import scaling_law

POINTS = Path(__file__).parents[2] / "shared" / "data" / "loss-curves" / "points.csv"
RESAMPLES = 200
FIRST = 8e9
"""Tokens before which Gemstones are left out: no power law describes the beginning of training."""
NEAR = 0.2
"""Largest sunk share of a pair that counts as of near-equal compute."""
OTHERS = tuple(SWEEPS)
"""Collections whose probabilities alone are judged."""
BINS = (0.0, 0.1, 0.2, 0.5, 0.8, 0.9, 1.0)
"""Ends of the probabilities that are told apart by group."""
POWERS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
"""Of the odds: a correction is one of them, chosen on other collections."""
LEVELS = (2e8, 8e8, 1.5e9)
"""Between sizes of the larger run that are told apart."""
Flags = NDArray[np.bool_]
Vector = NDArray[np.float64]


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]}, epilog="Example: python benchmarks/decision.py"
)
@click.option("--quick", is_flag=True, help="Show that it works: one deal of the folds, few resamples.")
@click.option("--points", type=click.Path(path_type=Path, exists=True), default=POINTS, help="The points.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, help="Folder of the result files.")
def main(quick: bool, points: Path, out: Path) -> None:
    """Judge the decision on runs that it has not seen."""
    found = read_points(points)
    collections = {"Gemstones": gemstones(found), "Chinchilla": chinchilla(found)}
    collections |= {} if quick else sweeps(points.parents[1] / "loss-to-loss" / "sweep.parquet")
    deals, resamples = (1, 30) if quick else (5, RESAMPLES)
    fit = partial(scaling_law, resamples=resamples)
    tables: dict[str, tuple[list[dict[str, Any]], list[Column]]] = {}
    groups: dict[str, tuple[Judged, Vector]] = {}
    for name, each in collections.items():
        judged, probability = judged_by_run(each, fit, deals)
        groups[f"{name}, runs"] = judged, probability
        if (by_size := judged_by_size(each, fit)) is not None:
            groups[f"{name}, sizes"] = by_size
        if name in OTHERS:
            continue
        tables |= tables_of(f"{name}, runs held out", judged, probability, choices(judged, probability))
        if by_size is not None:
            sizes, probability = by_size
            tables |= tables_of(f"{name}, sizes held out", sizes, probability, choices(sizes, probability))
    tables["Reliability by group of held-out pairs"] = reliability_by_group(groups)
    scatters = {name: calibration_of(fit(each)).scatter for name, each in collections.items()}
    facts = {
        "Gemstones": f"{len(collections['Gemstones'])} points of 22 runs, {MAX_POINTS_OF_RUN} a run from {FIRST:.0e} "
        "tokens on; at constant learning rate, no cool-down on either arm",
        "Chinchilla": f"{len(collections['Chinchilla'])} runs of one point, the five of highest loss left out",
        "held out": f"by runs: {N_FOLDS} folds, {deals} deals; law and calibration know other folds only; "
        "by sizes: law and calibration know neither size of the pair",
        "weights": "every two runs count as one; intervals: 90% of 1000 resamples of runs",
        "scatter of runs, nats": ", ".join(f"{name} {scatter:.4f}" for name, scatter in scatters.items()),
    }
    for title, (rows, columns) in tables.items():
        show(rows, columns, title)
    write("decision", out, facts, tables, ("toposcope", "numpy", "scipy"))


def gemstones(points: Points) -> Points:
    """Return the runs of Gemstones, thinned."""
    return thinned(points.where((points.family == "gemstones") & (points.D >= FIRST)))


def chinchilla(points: Points) -> Points:
    """Return the points of Chinchilla as Besiroglu et al. 2024 use them."""
    of_it = points.where(points.family == "chinchilla_epoch")
    return of_it.where(of_it.loss < np.sort(of_it.loss)[-5])


def judged_by_run(points: Points, fit: Callable[..., Any], deals: int) -> tuple[Judged, Vector]:
    """Judge pairs by laws without their runs, over several deals of the folds."""
    sets, probabilities = [], []
    for seed in range(deals):
        folds = dealt_folds(points.run, points.N, N_FOLDS, seed)
        judged, probability = calibrated_out_of_fold(points, folds, fit, seed)
        sets.append(judged)
        probabilities.append(probability)
    return joined(sets), np.concatenate(probabilities)


def judged_by_size(points: Points, fit: Callable[..., Any]) -> tuple[Judged, Vector] | None:
    """Judge pairs by laws that know neither of their sizes; sizes are told apart at gaps of a factor of 1.4."""
    logs = np.sort(np.unique(points.N))
    group = np.searchsorted(logs[1:][np.diff(np.log(logs)) > np.log(1.4)], points.N, side="right")
    if len(np.unique(group)) < 5:
        group = np.digitize(np.log(points.N), np.quantile(np.log(points.N), np.linspace(0, 1, 9)[1:-1]))
    found, probabilities = [], []
    for a, b in combinations(np.unique(group), 2):
        inside = (group == a) | (group == b)
        pairs = equal_flop_pairs(points.where(inside))
        smaller, larger = (
            np.isin(names, points.run[group == which]) for names, which in ((pairs.run, a), (pairs.other, b))
        )
        pairs = pairs.where(smaller & larger)
        if not len(pairs):
            continue
        try:
            fitted = fit(points.where(~inside))
            found.append(judge(pairs, fitted))
            probabilities.append(calibration_of(fitted).probability(found[-1].margins))
        except RefusedError as error:
            print(f"sizes {a} and {b} held out: {error}")
    return (joined(found), np.concatenate(probabilities)) if found else None


def reliability_by_group(groups: Mapping[str, tuple[Judged, Vector]]) -> tuple[list[dict[str, Any]], list[Column]]:
    """Return for each group how good a probability was, and what was said and came at each level of it."""
    rows = []
    scores = {
        name: np.array([brier_score(sharpened(p, power), of.won, of.pairs.weight) for power in POWERS])
        for name, (of, p) in groups.items()
    }
    for name, (judged, probability) in groups.items():
        won, weight = judged.won, judged.pairs.weight
        others = [of for other, of in scores.items() if other.partition(",")[0] != name.partition(",")[0]]
        best = int(np.mean(others, axis=0).argmin()) if others else POWERS.index(1.0)
        for way, p in (("with the scatter of runs", probability), ("share of the bootstrap", share_of(judged))):
            row = {"group": name, "n": f"{len(judged):,}", "probability": way}
            row |= {"brier": f"{brier_score(p, won, weight):.4f}", "log": f"{log_score(p, won, weight):.3f}"}
            other = sharpened(p, POWERS[best])
            row["corrected"] = (
                f"{POWERS[best]:g}: {brier_score(other, won, weight):.4f}, {log_score(other, won, weight):.3f}"
            )
            for low, high in pairwise(BINS):
                inside = (p >= low) & ((p < high) | (high == 1))
                said, came = (
                    float(np.average(of[inside], weights=weight[inside])) if inside.any() else np.nan for of in (p, won)
                )
                share = weight[inside].sum() / weight.sum()
                row[f"{low}"] = f"{100 * said:.0f} {100 * came:.0f} ({100 * share:.0f}%)" if inside.any() else "-"
            rows.append(row)
    columns = [Column("pairs held out", "group"), Column("pairs", "n"), Column("probability", "probability")]
    columns += [Column("Brier score", "brier"), Column("log score", "log")]
    columns += [Column("by the power of odds that the other collections choose", "corrected")]
    columns += [Column(f"{100 * low:.0f} to {100 * high:.0f}%: said, came", f"{low}") for low, high in pairwise(BINS)]
    return rows, columns


def sharpened(probability: Vector, power: float) -> Vector:
    """Return probabilities whose odds are raised to a power: above 1 they are surer."""
    p = np.clip(probability, 1e-12, 1 - 1e-12)
    return np.asarray(p**power / (p**power + (1 - p) ** power))


def share_of(judged: Judged) -> Vector:
    """Return the bare share of the bootstrap."""
    return Calibration(0.0).probability(judged.margins)


def choices(judged: Judged, probability: Vector) -> dict[str, Flags]:
    """Return what each rule chooses: True to scale."""
    pairs = judged.pairs
    found = {
        "sunk-cost rule": judged.margin > 0,
        "probability above 50%": probability > 0.5,
        "D/N = 20: past it at the decision": np.maximum(pairs.D0, 1.0) / pairs.N0 >= TOKENS_PER_PARAMETER,
        "always continue": np.zeros(len(pairs), dtype=bool),
        "always scale": np.ones(len(pairs), dtype=bool),
    }
    return found


def tables_of(
    title: str, judged: Judged, probability: Vector, chosen: Mapping[str, Flags]
) -> dict[str, tuple[list[dict[str, Any]], list[Column]]]:
    """Return the tables of one way to hold runs out."""
    weight, won = judged.pairs.weight, judged.won
    lost = np.abs(judged.pairs.margin)
    draws = resampled(judged)
    rows = []
    for name, scale in chosen.items():
        right = scale == won
        accuracies = [np.average(right, weights=w) for w in draws]
        low, high = np.percentile(accuracies, [5, 95])
        rows.append(
            {
                "rule": name,
                "accuracy": f"{100 * np.average(right, weights=weight):.1f}% ({100 * low:.1f} to {100 * high:.1f})",
                "regret": f"{np.average(np.where(right, 0, lost), weights=weight):.4f}",
                "scales": f"{100 * np.average(scale, weights=weight):.0f}%",
            }
        )
    better = 100 * np.average(won, weights=weight)
    about = f"{title}: {len(judged):,} pairs of {judged.n_runs} runs, scaling better in {better:.0f}%"
    rule_columns = [
        Column("rule", "rule"), Column("accuracy", "accuracy"), Column("regret, nats", "regret"),
        Column("scales", "scales"),
    ]  # fmt: skip
    parts = list(parts_of(judged))
    by_part = [
        {"rule": name, **{part: told(scale, judged, inside) for part, inside in parts}}
        for name, scale in chosen.items()
    ]
    return {
        about: (rows, rule_columns),
        f"{title}: accuracy by part (share of all weight)": (
            by_part,
            [Column("rule", "rule"), *(Column(part, part) for part, _ in parts)],
        ),
    }


def parts_of(judged: Judged) -> Iterator[tuple[str, Flags]]:
    """Yield kinds of pairs by the size of the larger run, by the share sunk, and the close ones."""
    pairs, weight = judged.pairs, judged.pairs.weight
    sunk = pairs.D0 / pairs.D
    kinds = {
        f"larger run {name}": np.digitize(pairs.N1, LEVELS) == level
        for level, name in enumerate(("below 200M", "200 to 800M", "800M to 1.5B", "above 1.5B"))
    }
    kinds |= {
        f"sunk below {100 * NEAR:.0f}%": sunk < NEAR,
        "sunk 20 to 60%": (sunk >= NEAR) & (sunk < 0.6),
        "sunk above 60%": sunk >= 0.6,
        "within 0.05 nats": np.abs(pairs.margin) < 0.05,
    }
    for name, inside in kinds.items():
        if inside.any():
            yield f"{name} ({100 * weight[inside].sum() / weight.sum():.0f}%)", inside


def told(scale: Flags, judged: Judged, inside: Flags) -> str:
    """Return the accuracy inside a part."""
    return f"{100 * np.average((scale == judged.won)[inside], weights=judged.pairs.weight[inside]):.1f}%"


def resampled(judged: Judged, n: int = 1000) -> list[Vector]:
    """Return weights of the pairs under resamples of runs."""
    draw = np.random.default_rng(0)
    names, places = np.unique(np.concatenate([judged.pairs.run, judged.pairs.other]), return_inverse=True)
    first, second = places[: len(judged)], places[len(judged) :]
    weight = judged.pairs.weight
    found = []
    for _ in range(n):
        counts = np.bincount(draw.integers(0, len(names), len(names)), minlength=len(names))
        drawn = weight * counts[first] * counts[second]
        if drawn.sum() > 0:
            found.append(drawn)
    return found


if __name__ == "__main__":
    main()
