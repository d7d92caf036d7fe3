"""Do the probabilities of decisions hold when few points are known? Reliability on runs that were not seen.

python benchmarks/decision_few_points.py [--quick] [--data FOLDER] [--out FOLDER]
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import polars as pl
from numpy.typing import NDArray

from bench import RESULTS, Column, show, write
from equal_flop_pairs import equal_flop_pairs, judge, log_score, reliability, thinned
from toposcope.forecasting.decision.calibration import Calibration, calibration_of
from toposcope.forecasting.decision.decision import CONTINUE_BELOW, SCALE_ABOVE
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.scaling.points import Points, read_points
from toposcope.forecasting.scaling.scaling_law import ScalingLaw, scaling_law

DATA = Path(__file__).parents[2] / "shared" / "data" / "loss-curves"
RUNS = (7, 8, 10, 14, 20, 40)
"""Numbers of runs that are known."""
SCATTERS = (0.001, 0.003, 0.01, 0.03, 0.06)
"""Of the runs of made-up laws, nats."""
FIXED = Calibration(0.029)
"""One normal blur for every collection and number of runs, for comparison."""
N_OTHERS = 60
"""Other runs, which make the pairs."""
MAX_PAIRS = 250
RESAMPLES = 100
CONSTANT_RATE = 8e9
"""Tokens before which Gemstones are left out: no power law describes the beginning of training."""
Vector = NDArray[np.float64]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Show that it works: one draw.")
@click.option("--data", type=click.Path(path_type=Path, exists=True), default=DATA, help="points.csv, curves.parquet.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, help="Folder of the result files.")
def main(quick: bool, data: Path, out: Path) -> None:
    """Fit laws to some runs of a collection and judge pairs of its other runs."""
    trials = [trial for seed in range(1 if quick else 4) for trial in trials_of(data, seed)]
    groups = {"all": trials}
    groups |= {
        name: [t for t in trials if t["collection"] == name] for name in dict.fromkeys(t["collection"] for t in trials)
    }
    groups |= {f"{n} runs": [t for t in trials if t["n"] == n] for n in RUNS}
    rows = [row for name, group in groups.items() if group for row in rows_of(name, group)]
    columns = [
        Column("trials", "group"), Column("probability", "name"), Column("log score", "log"),
        Column("undecided", "undecided"), Column("right of the undecided", "right_undecided"),
        Column("right of the decided", "right_decided"), Column("said of the decided", "said_decided"),
        *(Column(f"came at {low} to {high}%", f"{low}") for low, high in BINS),
    ]  # fmt: skip
    show(rows, columns, "Probabilities on runs that were not seen")
    facts = {
        "trials": f"{len(trials)}: a law of {', '.join(map(str, RUNS))} runs, drawn anew, judges pairs of other runs",
        "probability": "of the likelier arm; came: the share of pairs in which it did end lower",
        "fixed blur": f"{FIXED.blur} nats, normal",
    }
    write("decision-few-points", out, facts, {"reliability": (rows, columns)}, ("toposcope", "numpy", "scipy"))


BINS = ((50, 60), (60, 70), (70, 80), (80, 90), (90, 100))


def trials_of(data: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the judged pairs of a law for each collection and number of runs."""
    for name, points in [*collections(data).items(), *(made_up(5 * seed + i) for i in range(len(SCATTERS)))]:
        for n in RUNS:
            draw = np.random.default_rng([seed, n])
            runs = draw.permutation(np.unique(points.run))
            if len(runs) < n + 6:
                continue
            known, others = (np.isin(points.run, part) for part in (runs[:n], runs[n : n + N_OTHERS]))
            pairs = equal_flop_pairs(points.where(others), seed, most=4)
            pairs = pairs.where(np.argsort(draw.random(len(pairs))).argsort() < MAX_PAIRS)
            try:
                fitted = scaling_law(points.where(known), resamples=RESAMPLES)
                judged = judge(pairs, fitted)
            except RefusedError:
                continue
            if len(pairs):
                ways = {
                    "share of the bootstrap": Calibration(0.0),
                    "fixed blur": FIXED,
                    "shipped": calibration_of(fitted),
                }
                p = {way: calibration.probability(judged.margins) for way, calibration in ways.items()}
                yield {"collection": name, "n": n, "won": judged.won, "p": p}


def collections(data: Path) -> dict[str, Points]:
    """Return public collections of runs."""
    points = read_points(data / "points.csv")
    gemstones = thinned(points.where((points.family == "gemstones") & (points.D >= CONSTANT_RATE)), 12)
    found = {"Chinchilla": points.where(points.family == "chinchilla_epoch"), "Gemstones, curves": gemstones}
    curves = pl.read_parquet(data / "curves.parquet").filter(pl.col("loss").is_finite()).sort("step")
    ends = curves.group_by("family", "run", maintain_order=True).agg(
        pl.col("N").first(), D=pl.col("tps").first() * pl.col("step").last(), last=pl.col("step").last(),
        T=pl.col("T").first(), loss=pl.col("loss").tail(5).mean(),
    ).drop_nulls().filter(pl.col("last") >= 0.98 * pl.col("T"))  # fmt: skip
    for (family,), rows in ends.group_by("family", maintain_order=True):
        found[f"ends of {family}"] = Points(
            rows["N"].to_numpy(), rows["D"].to_numpy(), rows["loss"].to_numpy(), rows["run"].to_numpy().astype(np.str_)
        )
    return found


def made_up(seed: int) -> tuple[str, Points]:
    """Return 240 runs of a law of random coefficients, with normal or heavy-tailed scatter."""
    draw = np.random.default_rng(seed)
    E, A, B = draw.uniform(0.8, 2.2), np.exp(draw.uniform(3, 7)), np.exp(draw.uniform(4, 8))
    law = ScalingLaw(E, A, B, draw.uniform(0.22, 0.5), draw.uniform(0.22, 0.5))
    n, scatter = 240, SCATTERS[seed % len(SCATTERS)]
    N = np.exp(draw.uniform(np.log(2e7), np.log(3e9), n))
    D = N * np.exp(draw.uniform(np.log(3), np.log(300), n))
    heavy = seed // len(SCATTERS) % 2 == 1
    errors = draw.standard_t(3, n) / np.sqrt(3) if heavy else draw.normal(size=n)
    return f"made up, {'heavy tails' if heavy else 'normal'}", Points(N, D, law.loss(N, D) + scatter * errors)


def rows_of(name: str, trials: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield how well each probability holds over some trials."""
    won = np.concatenate([t["won"] for t in trials])
    for way in trials[0]["p"]:
        p = np.concatenate([t["p"][way] for t in trials])
        sure, right = np.maximum(p, 1 - p), (p > 0.5) == won
        decided = (p < CONTINUE_BELOW) | (p > SCALE_ABOVE)
        bins = {round(100 * b.low): b for b in reliability(sure, right, np.ones(len(p)))}
        scores = [log_score(t["p"][way], t["won"], np.ones(len(t["won"]))) for t in trials]
        yield {
            "group": f"{name} ({len(trials)})", "name": way, "log": f"{np.mean(scores):.3f}",
            "undecided": percent((~decided).mean()), "right_undecided": percent(mean(right[~decided])),
            "right_decided": percent(mean(right[decided])), "said_decided": percent(mean(sure[decided])),
            **{f"{low}": percent(bins[low].came) if low in bins else "-" for low, _ in BINS},
        }  # fmt: skip


def mean(values: Any) -> float:
    """Return the mean, NaN of nothing."""
    return float(values.mean()) if len(values) else np.nan


def percent(share: float) -> str:
    """Write a share."""
    return f"{100 * share:.0f}%" if np.isfinite(share) else "-"


if __name__ == "__main__":
    main()
