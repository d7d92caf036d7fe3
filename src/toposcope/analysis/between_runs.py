"""Which features go with the final loss across runs, at equal step (docs/methods/between-runs.md)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis.adjustment import Method, adjusted
from toposcope.analysis.permutations import (
    MIN_FREEDOM,
    StepCorrelations,
    control_basis,
    correlate_across_runs,
    correlate_at_steps,
)
from toposcope.analysis.power import detectable_correlation
from toposcope.analysis.run_population import RunPopulation, is_enough, run_population
from toposcope.analysis.trajectory import WEIGHT_NORM, Trajectory
from toposcope.analysis.verdict import BEYOND, LEVEL, NONE, TREND, UNDETERMINED
from toposcope.probes.feature import Feature
from toposcope.typing import Indices, Vector

GIVEN = ("", "_given_loss", "_given_all")
"""Endings of columns: alone, given the loss at the same step, and given that loss and the controls there."""
RATE, NORM, LOSS = "learning_rate", "weight_norm", "loss"
CONSTANT = "the same in all runs"  # the reason for features that do not differ between runs; sentences leave these out
_PER_TEST = ("n_steps", "rho", "p", "p_adjusted", "band", "detectable")
SCHEMA: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("feature", "kind"), pl.String),
    "n_runs": pl.Int64,
    **{f"{name}{given}": pl.Int64 if name == "n_steps" else pl.Float64 for given in GIVEN for name in _PER_TEST},
    **dict.fromkeys(("verdict", "reason"), pl.String),
}
STEP_SCHEMA: dict[str, type[pl.DataType]] = {
    "feature": pl.String,
    "step": pl.Int64,
    **dict.fromkeys((f"rho{given}" for given in GIVEN), pl.Float64),
}
RULE = (
    f"Between runs, at level {LEVEL:g}: '{BEYOND}' if a feature goes with the final loss across runs given the loss at "
    "the same step and the controls there (the learning rate of the moment and the weight norm, as far as they differ "
    "between runs), of ranks and of values both, permuting the runs, adjusted over all features; "
    f"'{TREND}' if it does alone or given the loss, but not given all of these; '{NONE}' if it does not; "
    f"'{UNDETERMINED}' if the test given all of these is not defined at any step."
)


@dataclass(frozen=True, eq=False)
class _Group:
    """Features that are known in the same runs and have the same controls."""

    population: RunPopulation
    names: list[Feature]
    runs: Indices  # places in the population
    values: NDArray[np.float64]  # shape (f, t, n)
    # shape (t, n); the learning rate of the moment, the loss and the weight norm, as far as they are known
    controls: dict[str, NDArray[np.float64]]

    @property
    def final(self) -> Vector:
        return self.population.final[self.runs]

    @property
    def strata(self) -> Indices:
        return self.population.strata[self.runs]

    def given(self, ending: str) -> NDArray[np.float64]:
        """Return the controls of a test, shape (k, t, n): covariates, then those of this test."""
        n_steps = len(self.population.steps)
        fixed = [np.tile(c[self.runs], (n_steps, 1)) for c in self.population.covariates]
        names = {"": (), "_given_loss": (LOSS,), "_given_all": (RATE, LOSS, NORM)}[ending]
        varying = [self.controls[name] for name in names if name in self.controls]
        return np.array([*fixed, *varying]).reshape(len(fixed) + len(varying), n_steps, len(self.runs))


def between_runs_table(
    trajectories: Sequence[Trajectory], log: pl.DataFrame, runs: pl.DataFrame, method: Method = "holm"
) -> pl.DataFrame:
    """Test which features go with the final loss across runs at equal step.

    At each step that all runs have in common the correlation across runs of the feature with the final loss: alone,
    given the loss at that step, and given that loss, the learning rate of the moment and the weight norm. The steps
    are combined by permuting runs (`toposcope.analysis.permutations.correlate_across_runs`). Given something, p is
    the larger of that of ranks and that of values: partial rank correlations alone are too often significant.

    Parameters
    ----------
    trajectories : sequence of Trajectory
    log, runs : polars.DataFrame
        `Study.log` and `Study.runs`.
    method : "holm", "bonferroni" or "bh"
        How p-values are adjusted over features.

    Returns
    -------
    polars.DataFrame
        A row for each feature of the network: ``feature, kind, n_runs``; alone, ``_given_loss`` and ``_given_all``:
        ``n_steps`` where defined, ``rho``, the mean over these of Spearman's (partial) correlation, ``p``,
        ``p_adjusted``, ``band`` that no step of 95% of the permutations leaves, ``detectable``, the correlation that
        would have been detected 4 times in 5; ``verdict`` by `RULE`, and its ``reason`` where there is none. Empty
        without enough runs.
    """
    population = run_population(trajectories, log, runs)
    if population.shortfall:
        return pl.DataFrame(schema=SCHEMA)
    rows: dict[Feature, dict[str, object]] = {}
    groups = list(_groups(population))
    largest = max(groups, key=lambda group: len(group.runs), default=None)
    for group in groups:
        results = {given: _correlate(group, given) for given in GIVEN}
        for i, name in enumerate(group.names):
            rows[name] = {"feature": str(name), "kind": name.kind, "n_runs": len(group.runs)}
            rows[name]["reason"] = _reason(group, i, results["_given_all"])
            for given, found in results.items():
                n_steps = int(np.isfinite(found.rho[i]).sum())
                values = (n_steps, *(float(of[i]) for of in (found.mean, found.p, found.band)))
                rows[name] |= {f"{c}{given}": v for c, v in zip(("n_steps", "rho", "p", "band"), values, strict=True)}
    table = pl.DataFrame([{**dict.fromkeys(SCHEMA), **rows[name]} for name in _features(population)], schema=SCHEMA)
    significant = []
    for given in GIVEN:
        p = table.get_column(f"p{given}").to_numpy()
        p_adjusted = adjusted(p, method)
        significant.append(p_adjusted < LEVEL)
        level = LEVEL / max(int(np.isfinite(p).sum()), 1)
        detectable = detectable_correlation(population.strata, _n_terms(largest, given), level)
        defined = np.isfinite(p) & (table.get_column("n_runs").to_numpy() == len(population.runs))
        columns = {"p_adjusted": p_adjusted, "detectable": np.where(defined, detectable, np.nan)}
        table = table.with_columns(pl.Series(f"{c}{given}", values) for c, values in columns.items())
    alone, given_loss, given_all = significant
    verdicts = [UNDETERMINED, BEYOND, TREND]
    verdict = np.select([np.isnan(p), given_all, alone | given_loss], verdicts, NONE)  # p is that given all
    return table.with_columns(verdict=pl.Series(verdict.tolist(), dtype=pl.String))


def between_runs_step_table(trajectories: Sequence[Trajectory], log: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """Correlate every feature with the final loss across runs, step by step.

    Returns
    -------
    polars.DataFrame
        ``feature, step, rho, rho_given_loss, rho_given_all``: Spearman's correlation, alone and partial; NaN where not
        defined. Empty without enough runs.
    """
    population = run_population(trajectories, log, runs)
    if population.shortfall:
        return pl.DataFrame(schema=STEP_SCHEMA)
    parts = {}
    for group in _groups(population):
        rho = {g: correlate_at_steps(group.values, group.final, group.given(g), group.strata) for g in GIVEN}
        for i, name in enumerate(group.names):
            columns = {"step": population.steps, **{f"rho{given}": rho[given][i] for given in GIVEN}}
            parts[name] = pl.DataFrame({"feature": [str(name)] * len(population.steps), **columns}, schema=STEP_SCHEMA)
    return pl.concat([pl.DataFrame(schema=STEP_SCHEMA), *(parts[name] for name in _features(population))])


def _features(population: RunPopulation) -> list[Feature]:
    return list(dict.fromkeys(feature for t in population.runs for feature in t.features))


def _groups(population: RunPopulation) -> Iterator[_Group]:
    """Group the features by the runs in which they are known, the weight norm apart: it is no control of itself."""
    names = _features(population)
    values = np.array([population.at_steps([t.features.get(name) for t in population.runs]) for name in names])
    losses = population.losses()
    known_runs = np.isfinite(values).any(axis=1) if len(names) else np.empty((0, len(population.runs)), dtype=bool)
    covariates = {name: [t.covariates.get(name) for t in population.runs] for name in (RATE, NORM)}
    keys: dict[tuple[bytes, bool], list[int]] = {}
    for i, name in enumerate(names):
        keys.setdefault((known_runs[i].tobytes(), name == WEIGHT_NORM), []).append(i)
    for (_, is_norm), members in keys.items():
        places = np.flatnonzero(known_runs[members[0]])
        controls = {LOSS: losses[:, places]}
        for covariate, series in covariates.items():
            at_steps = population.at_steps(series)[:, places]
            if np.isfinite(at_steps).any(axis=0).all() and len(places) and not (is_norm and covariate == NORM):
                controls[covariate] = at_steps
        yield _Group(population, [names[i] for i in members], places, values[members][:, :, places], controls)


def _correlate(group: _Group, given: str) -> StepCorrelations:
    strata, controls = group.strata, group.given(given)
    if not is_enough(strata):
        unknown = np.full_like(group.values, np.nan)
        return correlate_across_runs(unknown, group.final, controls, strata)
    ranks = correlate_across_runs(group.values, group.final, controls, strata)
    if not len(controls):
        return ranks
    logs = [_logarithm(v) for v in (group.values, group.final[None, None, :], controls)]
    values = correlate_across_runs(logs[0], logs[1][0, 0], logs[2], strata, "values")
    return StepCorrelations(ranks.rho, ranks.mean, np.maximum(ranks.p, values.p), ranks.band)


def _logarithm(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return logarithms at each step where all runs are positive, else the values, shape (f, t, n)."""
    positive = (values > 0).all(axis=2, keepdims=True)
    return np.where(positive, np.log(np.where(positive, values, 1.0)), values)


def _n_terms(group: _Group | None, given: str) -> int:
    """Return the largest number of terms that a test takes out at any step."""
    if group is None:
        return 0
    controls, strata = group.given(given), group.strata
    known = np.isfinite(controls).all(axis=(0, 2))
    return max((control_basis(controls[:, t], strata, "ranks").shape[1] for t in np.flatnonzero(known)), default=0)


def _reason(group: _Group, place: int, result: StepCorrelations) -> str:
    """Say why the correlation of a feature given the loss and the controls is not defined at any step."""
    if np.isfinite(result.p[place]):
        return ""
    strata, values, controls = group.strata, group.values[place], group.given("_given_all")
    if not is_enough(strata):
        return f"known in {len(group.runs)} runs that can be compared"
    known = np.isfinite(values).all(axis=1) & np.isfinite(controls).all(axis=(0, 2))
    if not known.any():
        return "no step at which feature, loss and controls are known in all runs"
    if np.ptp(group.final) == 0:
        return "the final loss is the same in all runs"
    if (np.ptp(values[known], axis=1) == 0).all():
        return CONSTANT
    bases = [control_basis(controls[:, t], strata, "ranks").shape[1] for t in np.flatnonzero(known)]
    if len(strata) - len(np.unique(strata)) - min(bases) - 1 < MIN_FREEDOM:
        return f"too few runs for {min(bases)} controls"
    known_before = "the size or length of the runs, " if len(group.population.covariates) else ""
    return f"{known_before}the loss and the controls determine it, or the final loss, at every step"
