"""All analyses of a study, as tables."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from toposcope.analysis.association import associate, holm, verdict
from toposcope.analysis.phases import phases
from toposcope.analysis.scaling import power_law
from toposcope.analysis.trajectories import Trajectory, trajectories
from toposcope.seeds import derive_seed

CLOCKS = ("step", "cumulative_learning_rate", "weight_norm")
NP_MEAN = "neural_persistence np_mean"
SEED = 42

_FLOATS = (
    "rho", "p", "p_holm", "low", "high",
    *(f"rho_{clock}" for clock in CLOCKS),
    "rho_with_step",
    "rho_given_step", "p_given_step", "rho_given_all", "p_given_all",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Analysis:
    """What a study says.

    Attributes
    ----------
    trajectories : list of Trajectory
    association : polars.DataFrame
        A row for each run, target and feature: ``run, target, feature, n``, rho with its p, Holm-adjusted p and
        bootstrap interval ``low, high``, ``rho_<clock>`` of each clock, ``rho_with_step`` of the feature with the step,
        partial correlations ``rho_given_step`` and ``rho_given_all`` with Holm-adjusted p, ``verdict``.
    phases : polars.DataFrame
        ``run, feature, largest_change, diminishing_returns``.
    scaling : polars.DataFrame
        ``quantity, n, n_sizes, factor, exponent, low, high, r_squared`` of final values.
    """

    trajectories: list[Trajectory]
    association: pl.DataFrame
    phases: pl.DataFrame
    scaling: pl.DataFrame


def analyse(features: pl.DataFrame, labels: pl.DataFrame, log: pl.DataFrame, runs: pl.DataFrame) -> Analysis:
    """Analyse a study.

    Parameters
    ----------
    features, labels, log, runs : polars.DataFrame
        From the methods of `Study` of those names (`features` from `Study.frame`).
    """
    found = trajectories(features, labels, log)
    return Analysis(found, _association(found), _phases(found), _scaling(found, runs))


def _association(found: list[Trajectory]) -> pl.DataFrame:
    rows = []
    for trajectory in found:
        for target, losses in trajectory.targets.items():
            for feature, values in trajectory.features.items():
                seed = derive_seed(SEED, "bootstrap", trajectory.run, target, feature)
                a = associate(values, losses, trajectory.clocks, seed)
                clocks = [a.clocks.get(clock, np.nan) for clock in CLOCKS]
                partials = (a.given_step.rho, a.given_step.p, a.given_all.rho, a.given_all.p)
                place = (trajectory.run, target, feature, a.n)
                rows.append((*place, a.rho, a.p, np.nan, a.low, a.high, *clocks, a.with_step, *partials))
    keys = {"run": pl.String, "target": pl.String, "feature": pl.String, "n": pl.Int64}
    table = pl.DataFrame(rows, schema={**keys, **dict.fromkeys(_FLOATS, pl.Float64)}, orient="row")
    adjusted = {name: holm(table.get_column(name).to_numpy()) for name in ("p", "p_given_step", "p_given_all")}
    table = table.with_columns(
        p_holm=pl.Series(adjusted["p"]),
        p_given_step=pl.Series(adjusted["p_given_step"]),
        p_given_all=pl.Series(adjusted["p_given_all"]),
    )
    columns = table.select("n", "rho", "p_holm", "p_given_step", "p_given_all")
    return table.with_columns(verdict=pl.Series([verdict(*row) for row in columns.iter_rows()], dtype=pl.String))


def _phases(found: list[Trajectory]) -> pl.DataFrame:
    rows = []
    for trajectory in found:
        if NP_MEAN in trajectory.features:
            values = trajectory.features[NP_MEAN]
            known = np.isfinite(values)
            rule = phases(trajectory.steps[known], values[known])
            rows.append((trajectory.run, NP_MEAN, rule.largest_change, rule.diminishing_returns))
    schema = {"run": pl.String, "feature": pl.String, "largest_change": pl.Int64, "diminishing_returns": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def sizes_of_complete(found: list[Trajectory], runs: pl.DataFrame) -> dict[str, int]:
    """Return the parameters of complete runs whose last checkpoint was measured, by run."""
    last = {t.run: int(t.steps[-1]) for t in found}
    complete = runs.filter(status="complete").select("run", "n_parameters", "last_step").drop_nulls()
    return {run: n for run, n, step in complete.iter_rows() if last.get(run) == step}


def _scaling(found: list[Trajectory], runs: pl.DataFrame) -> pl.DataFrame:
    """Fit final values of complete runs against their size."""
    sizes = sizes_of_complete(found, runs)
    finals: dict[str, list[tuple[float, float]]] = {}
    for trajectory in found:
        if trajectory.run in sizes:
            for name, values in {**trajectory.targets, **trajectory.features}.items():
                if np.isfinite(values[-1]):
                    finals.setdefault(name, []).append((float(sizes[trajectory.run]), float(values[-1])))
    rows = []
    for name, pairs in finals.items():
        n_parameters, values = np.array(pairs).T
        law = power_law(n_parameters, values, derive_seed(SEED, "scaling", name))
        if law is not None:
            rows.append((name, law.n, law.n_sizes, law.factor, law.exponent, law.low, law.high, law.r_squared))
    floats = dict.fromkeys(("factor", "exponent", "low", "high", "r_squared"), pl.Float64)
    return pl.DataFrame(
        rows, schema={"quantity": pl.String, "n": pl.Int64, "n_sizes": pl.Int64, **floats}, orient="row"
    )
