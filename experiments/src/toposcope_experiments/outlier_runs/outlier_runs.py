"""Which runs stand apart from their replicates at equal step, and in what first (experiments/docs/outlier-runs.md)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis import Trajectory
from toposcope.extend import LEVEL, UNDETERMINED, Steps, Vector, mid_ranks
from toposcope.probes import Kind
from toposcope_experiments.outlier_runs.run_rotations import (
    MIN_RUNS,
    USUAL_SHARE,
    Outliers,
    distance_range,
    find_outliers,
    run_distances,
)

LOSS: Kind = "loss"
LOG_DIGITS = 9  # decimals of a logarithm: values that differ by less than a part in a billion are equal
APART, WITHIN = "apart", "within"
BEFORE, NOT_BEFORE, LOSS_WITHIN = "before the loss", "not before the loss", "while the loss stays within"
STANDING_SCHEMA: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("family", "run", "feature", "kind"), pl.String),
    "step": pl.Int64,
    "value": pl.Float64,
    "n_runs": pl.Int64,
    **dict.fromkeys(("rank", "distance"), pl.Float64),
}
SCHEMA: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("family", "run", "feature", "kind"), pl.String),
    **dict.fromkeys(("n_runs", "n_steps"), pl.Int64),
    "peak": pl.Float64,
    "peak_step": pl.Int64,
    **dict.fromkeys(("peak_low", "peak_high", "lasting"), pl.Float64),
    **dict.fromkeys(("since", "first", "n_beyond"), pl.Int64),
    **dict.fromkeys(("p", "p_adjusted", "band", "usual"), pl.Float64),
    **dict.fromkeys(("verdict", "timing"), pl.String),
}
RULE = (
    f"Outlier runs, at level {LEVEL:g}: a run is '{APART}' in a quantity if its distance from its replicates at equal "
    "step is larger than rotations of the runs make it, over all runs, steps and quantities of the replicates, and "
    "adjusted over the groups of replicates (Bonferroni). "
    f"It is so '{BEFORE}' if it is beyond the band at a step by which the loss has not been, and the loss of that run "
    f"is as near to the others there as that of {USUAL_SHARE:.0%} of runs. Runs that differ by chance are taken to be "
    "normally distributed, most quantities in their logarithm: by ranks alone one run of n is the most extreme by "
    "chance in 1 of n cases, and n is small."
)


@dataclass(frozen=True, eq=False)
class Replicates:
    """Runs of one size that differ in nothing declared but the seed."""

    name: str
    runs: list[Trajectory]

    @cached_property
    def steps(self) -> Steps:
        """All steps of any of them, ascending."""
        return np.unique(np.concatenate([t.steps for t in self.runs]))

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """What is compared, losses first, each with its kind."""
        losses = dict.fromkeys((name for t in self.runs for name in t.targets), LOSS)
        return losses | {str(f): f.kind for t in self.runs for f in t.features}

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """Every quantity at every step of every run, shape (f, t, n); NaN where unknown."""
        found = np.full((len(self.kinds), len(self.steps), len(self.runs)), np.nan)
        row = {name: i for i, name in enumerate(self.kinds)}
        for place, t in enumerate(self.runs):
            at = np.searchsorted(self.steps, t.steps)
            for name, series in t.named_values().items():
                found[row[name], at, place] = np.where(np.isfinite(series), series, np.nan)
        return found

    @cached_property
    def scaled(self) -> NDArray[np.float64]:
        """The values, as logarithms where a quantity is positive throughout."""
        positive = (np.isnan(self.values) | (self.values > 0)).all(axis=(1, 2), keepdims=True)
        logarithms = np.log(np.where(positive, self.values, 1.0)).round(LOG_DIGITS)
        return np.where(positive, logarithms, self.values)

    @property
    def loss(self) -> str:
        """The loss that most of the runs count as their most reliable; empty without any."""
        first = Counter(next(iter(t.targets)) for t in self.runs if t.targets)
        return first.most_common(1)[0][0] if first else ""


def replicate_runs(
    trajectories: Sequence[Trajectory], runs: pl.DataFrame, settings: Mapping[str, str] | None = None
) -> list[Replicates]:
    """Return the groups of at least 5 runs that can be compared, by ascending size."""
    sizes = dict(runs.select("run", "n_parameters").iter_rows()) if len(runs) else {}
    groups: dict[tuple[int, str], list[Trajectory]] = {}
    for t in trajectories:
        if (size := sizes.get(t.run)) is not None:
            groups.setdefault((size, (settings or {}).get(t.run, "")), []).append(t)
    large = {key: group for key, group in sorted(groups.items()) if len(group) >= MIN_RUNS}
    repeated = Counter(size for size, _ in large)
    return [
        Replicates(f"{size:,} parameters" + (f", as {group[0].run}" if repeated[size] > 1 else ""), group)
        for (size, _), group in large.items()
    ]


def outlier_standing_table(replicates: Sequence[Replicates]) -> pl.DataFrame:
    """Return where each run stands among its replicates, quantity by quantity and step by step."""
    parts = [pl.DataFrame(schema=STANDING_SCHEMA)]
    for family in replicates:
        distance, rank = run_distances(family.scaled), mid_ranks(family.values)
        runs, known = np.array([t.run for t in family.runs]), np.isfinite(family.values)
        for i, (name, kind) in enumerate(family.kinds.items()):
            places, steps = np.nonzero(known[i].T)
            columns = {
                "family": [family.name] * len(steps),
                "run": runs[places].tolist(),
                "feature": [name] * len(steps),
                "kind": [kind] * len(steps),
                "step": family.steps[steps],
                "value": family.values[i, steps, places],
                "n_runs": known[i].sum(axis=1)[steps],
                "rank": rank[i, steps, places],
                "distance": distance[i, steps, places],
            }
            parts.append(pl.DataFrame(columns, schema=STANDING_SCHEMA))
    return pl.concat(parts)


def outlier_run_table(replicates: Sequence[Replicates]) -> pl.DataFrame:
    """Test which runs stand apart from their replicates, and in which quantity first."""
    rows = [
        row
        for family in replicates
        for row in _rows(family, find_outliers(family.scaled, 1 - LEVEL / len(replicates)), len(replicates))
    ]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _rows(family: Replicates, found: Outliers, n_families: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each run and quantity; those of a run follow each other."""
    names = list(family.kinds)
    size = np.abs(found.distance)
    beyond = size > found.band
    for place, t in enumerate(family.runs):
        rows = [_row(family, found, i, place, beyond[i, :, place], n_families) for i in range(len(names))]
        loss = next((i for i, name in enumerate(names) if name == family.loss), None)
        for row in rows:
            row |= {"run": t.run}
            if loss is not None and row["verdict"] == APART and row["kind"] != LOSS:
                of_loss = size[loss, :, place]
                row["timing"] = _timing(family.steps, row["first"], of_loss, rows[loss], found.usual)
        yield from rows


def _row(
    family: Replicates, found: Outliers, i: int, place: int, beyond: NDArray[np.bool_], n_families: int
) -> dict[str, Any]:
    """Return the row of one quantity of one run, but for its timing."""
    name = list(family.kinds)[i]
    distance, steps = found.distance[i, :, place], family.steps
    compared = np.flatnonzero(np.isfinite(distance))
    row: dict[str, Any] = {
        "family": family.name,
        "feature": name,
        "kind": family.kinds[name],
        "n_runs": int(np.isfinite(family.values[i]).any(axis=0).sum()),
        "n_steps": len(compared),
        "band": found.band,
        "usual": found.usual,
        "verdict": UNDETERMINED,
        "timing": "",
    }
    if not len(compared):
        return row
    at = int(compared[np.argmax(np.abs(distance[compared]))])
    since, p_adjusted = int(found.since[i, place]), min(1.0, float(found.p[i, place]) * n_families)
    row |= {
        "peak": float(distance[at]),
        "peak_step": int(steps[at]),
        "lasting": float(found.lasting[i, place]),
        "since": int(steps[since]) if since >= 0 else None,
        "first": int(steps[np.argmax(beyond)]) if beyond.any() else None,
        "n_beyond": int(beyond.sum()),
        "p": float(found.p[i, place]),
        "p_adjusted": p_adjusted,
        "verdict": APART if p_adjusted < LEVEL else WITHIN,
    }
    if row["verdict"] == APART:
        there = np.isfinite(family.scaled[i, at])
        low, high = distance_range(family.scaled[i, at, there], int(there[:place].sum()))
        row |= {"peak_low": low, "peak_high": high}
    return row


def _timing(steps: Steps, first: int | None, loss: Vector, of_loss: Mapping[str, Any], usual: float) -> str:
    """Say whether a run is apart in a quantity before it is in its loss."""
    if first is None or of_loss["verdict"] == UNDETERMINED:
        return UNDETERMINED
    if of_loss["first"] is not None and of_loss["first"] <= first:
        return NOT_BEFORE
    then = float(loss[np.searchsorted(steps, first)])
    if not then <= usual:  # also where it is not known
        return UNDETERMINED
    return BEFORE if of_loss["verdict"] == APART else LOSS_WITHIN


def apart_runs(table: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the rows of what sets runs apart, by run: by the first step beyond the band, then by distance."""
    apart = table.filter(verdict=APART).with_columns(size=pl.col("peak").abs())
    ordered = apart.sort("first", "size", descending=[False, True], nulls_last=True, maintain_order=True).drop("size")
    runs = apart.get_column("run").unique(maintain_order=True).to_list()
    return {run: ordered.filter(run=run) for run in runs}
