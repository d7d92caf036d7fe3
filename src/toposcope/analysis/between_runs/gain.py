"""What topology adds between runs: the errors of models on held-out runs, tested by permuting what they leave.

All methods and their sources: docs/methods/between-runs.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis.between_runs.columns import (
    CHAIN,
    FRACTIONS,
    LOSS,
    PLACEBOS,
    PLAIN,
    Problem,
    fraction_columns,
    problems,
)
from toposcope.analysis.between_runs.models import Fold, folds, medians, named_draws, predictions
from toposcope.analysis.between_runs.population import CONFIGURATIONS, SIZES, RunPopulation, run_population
from toposcope.analysis.between_runs.verdict import decide
from toposcope.analysis.trajectory import Trajectory
from toposcope.analysis.verdict import LEVEL, UNDETERMINED
from toposcope.engine.pool import TaskFailure, Workers, shared
from toposcope.errors import ToposcopeError
from toposcope.typing import Indices, Matrix, Vector

Row = dict[str, Any]
MEDIAN, ALL_TOPOLOGY = "median", "all topology"
MIN_CONFIGURATIONS = 12  # that a test takes; of 8 made-up runs not even planted features are found
MIN_EVENTS = 10  # runs that diverge, and runs that do not, that a test of divergence takes
N_PERMUTATIONS = 1000  # the first is the order as it is
MIN_RUNS_OF_SIZE = 5  # sizes of fewer configurations are permuted as one
N_PLANTED = 20  # features of each noise level
NOISE_LEVELS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of planted features, in standard deviations of what is left
RESAMPLES, INTERVAL = 1000, (0.025, 0.975)
MIN_INTERVAL_GROUPS = 6  # fewer groups have no interval
POWER = 0.8
TOLERANCE = 1e-12  # skills that differ by less are equal
SCHEMA: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("target", "held_out", "given", "added"), pl.String),
    "fraction": pl.Float64,
    **dict.fromkeys(("n_runs", "n_groups", "n_columns"), pl.Int64),
    **dict.fromkeys(("mae", "skill", "low", "high", "p", "p_adjusted", "detectable"), pl.Float64),
    **dict.fromkeys((f"low_over_{probe}" for probe in PLACEBOS), pl.Float64),
    **dict.fromkeys(("verdict", "reason"), pl.String),
}


def between_runs_table(
    trajectories: Sequence[Trajectory],
    log: pl.DataFrame,
    runs: pl.DataFrame,
    declared: pl.DataFrame | None = None,
    targets: pl.DataFrame | None = None,
    *,
    workers: int = 1,
) -> pl.DataFrame:
    """Test whether topology lowers the error of forecasts of how held-out runs end.

    Parameters
    ----------
    trajectories : sequence of Trajectory
    log, runs, declared, targets : polars.DataFrame
        `Study.log`, `Study.runs`, `Study.population` and `Study.targets`; without the last two no settings of the runs
        and no losses on other corpora are known.
    workers : int
        Processes; the table does not depend on it.

    Returns
    -------
    polars.DataFrame
        For each ``target``, ``fraction`` of training and kind of group that is ``held_out``, a row for each model: its
        columns are those ``added`` to the model that ends with the columns ``given``; ``n_runs``, ``n_groups``,
        ``n_columns`` added; ``mae``, and ``skill`` over the model before, with its 95% interval. Where topology is
        tested, ``p`` by permuting what the model before leaves; ``p_adjusted`` over all families, fractions and
        targets; ``detectable``, the gain that would have been detected 4 times in 5; ``low_over_random_projections``
        and ``low_over_placebo_twin``, the lower end of the 95% interval of the skill over the model that has these in
        place of topology. ``verdict`` and ``reason`` are those of the target. A target that cannot be tested has one
        row, with the reason.
    """
    nothing = pl.DataFrame()
    population = run_population(
        trajectories,
        log,
        runs,
        nothing if declared is None else declared,
        nothing if targets is None else targets,
    )
    return gain_table(population, workers)


def gain_table(population: RunPopulation, workers: int = 1) -> pl.DataFrame:
    """Return the table of `between_runs_table` for a population."""
    tested, untested = problems_of(population)
    parts: dict[int, Measured] = {}
    with Workers(max(1, min(workers, len(tested))), shared=tested) as engine:
        for i, part in engine.run(_measure, range(len(tested))):
            if isinstance(part, TaskFailure):
                raise ToposcopeError(f"between runs, {tested[i].target}: {part.message}")
            parts[i] = part
    names = list(dict.fromkeys(problem.target for problem in tested))
    tables = []
    for name in names:
        of_target = [parts[i] for i, problem in enumerate(tested) if problem.target == name]
        rows = pl.DataFrame(adjusted(of_target, len(names)), schema=SCHEMA)
        verdict, reason = decide(rows)
        tables.append(rows.with_columns(verdict=pl.lit(verdict), reason=pl.lit(reason)))
    undecided = [{"target": target, "verdict": UNDETERMINED, "reason": reason} for target, reason in untested.items()]
    return pl.concat([*tables, pl.DataFrame(undecided, schema=SCHEMA)])


def problems_of(population: RunPopulation) -> tuple[list[Problem], dict[str, str]]:
    """Return the targets at each fraction that are tested, and why the others are not, by target."""
    by_fraction = [fraction_columns(population, fraction) for fraction in FRACTIONS]
    every = [problem for columns in by_fraction if columns is not None for problem in problems(population, columns)]
    reasons = [_shortfall(problem) for problem in every]
    tested = [problem for problem, reason in zip(every, reasons, strict=True) if not reason]
    names = {problem.target for problem in tested}
    return tested, {p.target: why for p, why in zip(every, reasons, strict=True) if why and p.target not in names}


def _shortfall(problem: Problem) -> str:
    n = len(np.unique(problem.groups[CONFIGURATIONS]))
    if n < MIN_CONFIGURATIONS:
        return f"{n} configurations can be compared; it takes {MIN_CONFIGURATIONS}"
    if not problem.columns.families:
        return "no topological feature is known in nearly all runs and differs between them"
    if problem.kind == "event":
        events = int(problem.values.sum())
        if min(events, len(problem.values) - events) < MIN_EVENTS:
            return f"{events} of {len(problem.values)} runs diverge or have a spike; it takes {MIN_EVENTS} of each kind"
    elif np.ptp(problem.values) == 0:
        return "it is the same in all runs"
    return ""


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured of one target at one fraction."""

    rows: list[Row]
    skills: dict[tuple[str, str], Vector]  # of topology in each permutation, by the columns given and added
    planted: Matrix  # skills of planted features, shape (levels of noise, draws)


def _measure(place: int) -> Measured:
    return measure(shared()[place])


def measure(problem: Problem) -> Measured:
    """Measure what each block of columns adds to those before it, and topology to the losses and to all of them."""
    y, blocks, families = problem.fitted()[:, None], problem.columns.blocks, topology(problem)
    placebos = {name: blocks[name] for name in PLACEBOS.values() if name in blocks}
    measured = Measured([], {}, np.empty((0, N_PLANTED)))
    for grouping in problem.groups:
        fitted, row = folds(problem, grouping), partial(_row, problem, grouping)
        if not fitted:
            continue
        chain = {MEDIAN: medians(problem, fitted, y)} | {name: predictions(fitted, name, {}, y)[name] for name in CHAIN}
        without = chain | predictions(fitted, PLAIN, placebos, y)
        errors = {name: problem.errors(predicted, y) for name, predicted in without.items()}
        measured.rows.append(row("", MEDIAN, 0, errors[MEDIAN]))
        for given, added in [*pairwise(chain), *((PLAIN, name) for name in placebos)]:
            measured.rows.append(row(given, added, blocks[added].shape[1], errors[added], errors[given]))
        for given in (LOSS, PLAIN):
            targets = permuted(problem, y, chain[given]) if grouping == CONFIGURATIONS else y
            predicted = predictions(fitted, given, families, targets)
            before = problem.errors(predicted[given], targets)
            for name in families:
                after = problem.errors(predicted[name], targets)
                tested = row(given, name, families[name].shape[1], after, before)
                if grouping == CONFIGURATIONS:
                    measured.skills[given, name] = skills = skill(after, before)
                    tested["p"] = float((skills >= skills[0] - TOLERANCE).mean())
                for probe, placebo in PLACEBOS.items() if given == PLAIN else ():
                    if placebo in placebos:
                        low, _ = skill_interval(after[:, 0], errors[placebo][:, 0], problem.groups[grouping])
                        tested[f"low_over_{probe}"] = low
                measured.rows.append(tested)
        if grouping == CONFIGURATIONS:
            measured = replace(measured, planted=planted(problem, fitted, PLAIN, chain[PLAIN]))
    return measured


def topology(problem: Problem) -> dict[str, Matrix]:
    """Return the columns of each family of topology, and of all together."""
    families = dict(problem.columns.families)
    return families | {ALL_TOPOLOGY: np.hstack(list(families.values()))} if len(families) > 1 else families


def permuted(problem: Problem, y: Matrix, predicted: Matrix) -> Matrix:
    """Return the target, then targets with the errors of its held-out predictions permuted, shape (n, permutations).

    Whole configurations are permuted, among those with as many runs of the same size (Freedman and Lane 1983). The
    order of a configuration is the same at all fractions and of all targets.
    """
    groups = problem.groups[CONFIGURATIONS]
    names, place, count = np.unique(groups, return_inverse=True, return_counts=True)
    sizes = problem.groups.get(SIZES, np.zeros(len(groups), dtype=np.int64))[np.unique(groups, return_index=True)[1]]
    sizes = np.where(np.bincount(sizes)[sizes] < MIN_RUNS_OF_SIZE, -1, sizes)
    keys = named_draws("permutations").random((int(names[-1]) + 1, N_PERMUTATIONS - 1))[names]
    order = np.tile(np.arange(len(groups))[:, None], N_PERMUTATIONS - 1)
    for stratum in {*zip(sizes.tolist(), count.tolist(), strict=True)}:
        members = np.flatnonzero((sizes == stratum[0]) & (count == stratum[1]))
        runs = np.array([np.flatnonzero(place == member) for member in members])
        order[runs] = runs[np.argsort(keys[members], axis=0)].swapaxes(1, 2)
    return np.hstack([y, predicted + (y - predicted)[:, 0][order]])


def skill(errors: Matrix, before: Matrix) -> Vector:
    """Return 1 - MAE / MAE of the model before, for each column; NaN where that has no error."""
    total = before.sum(axis=0)
    return np.asarray(1 - errors.sum(axis=0) / np.where(total > 0, total, np.nan))


def skill_interval(errors: Vector, before: Vector, groups: Indices) -> tuple[float, float]:
    """Return the 95% interval of the skill, from resampling groups; NaN with few groups."""
    names, place = np.unique(groups, return_inverse=True)
    n = len(names)
    if n < MIN_INTERVAL_GROUPS:
        return np.nan, np.nan
    counts = named_draws("bootstrap", n).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    after, base = (np.array([counts @ np.bincount(place, e)], dtype=np.float64) for e in (errors, before))
    low, high = np.quantile(skill(after, base), INTERVAL)
    return float(low), float(high)


def planted(problem: Problem, fitted: Sequence[Fold], model: str, predicted: Matrix) -> Matrix:
    """Return the skills of features that show what a model leaves, with noise, shape (levels of noise, draws)."""
    y = problem.fitted()[:, None]
    residuals = (y - predicted)[:, 0]
    rng = named_draws("planted", problem.target, str(problem.columns.fraction))
    noise = rng.standard_normal((len(NOISE_LEVELS), N_PLANTED, len(residuals))) * np.array(NOISE_LEVELS)[:, None, None]
    features = (residuals / (residuals.std() or 1.0) + noise).reshape(-1, len(residuals))
    tables = {str(i): feature[:, None] for i, feature in enumerate(features)}
    before, *after = predictions(fitted, model, tables, y).values()
    errors = problem.errors(np.hstack(after), y)
    return skill(errors, problem.errors(before, y)).reshape(len(NOISE_LEVELS), N_PLANTED)


def detectable(skills: Matrix, is_found: NDArray[np.bool_]) -> float:
    """Return the mean skill of the noisiest planted features of which 4 in 5 are found; NaN if there are none."""
    missed = np.flatnonzero(is_found.mean(axis=1) < POWER)
    last = missed[0] if len(missed) else len(skills)
    return float(skills[last - 1].mean()) if last else np.nan


def adjusted(parts: Sequence[Measured], n_targets: int) -> list[Row]:
    """Return the rows of one target, with p adjusted and what would have been detected."""
    for alone in (True, False):
        skills = [s for part in parts for (given, _), s in part.skills.items() if (given == LOSS) == alone]
        largest: Vector = np.fmax.reduce(skills)
        for part in parts:
            is_found = (part.planted > 0) & (p_adjusted(part.planted, largest, n_targets) < LEVEL)
            for row in part.rows:
                if row["p"] is not None and (row["given"] == LOSS) == alone:
                    row["p_adjusted"] = float(p_adjusted(np.array(row["skill"]), largest, n_targets))
                    row["detectable"] = None if alone else detectable(part.planted, is_found)
    return [row for part in parts for row in part.rows]


def p_adjusted(skills: Matrix, largest: Vector, n_targets: int) -> Matrix:
    """Return the share of permutations whose largest skill is as large (Westfall and Young 1993), times the targets."""
    reached = largest >= skills[..., None] - TOLERANCE
    return np.asarray(np.minimum(1.0, n_targets * reached.mean(axis=-1)))


def _row(
    problem: Problem, held_out: str, given: str, added: str, width: int, errors: Matrix, before: Matrix | None = None
) -> Row:
    groups = problem.groups[held_out]
    row = dict.fromkeys(SCHEMA) | {
        "target": problem.target,
        "held_out": held_out,
        "given": given,
        "added": added,
        "fraction": problem.columns.fraction,
        "n_runs": len(problem.values),
        "n_groups": len(np.unique(groups)),
        "n_columns": width,
        "mae": float(errors[:, 0].mean()),
    }
    if before is not None:
        low, high = skill_interval(errors[:, 0], before[:, 0], groups)
        row |= {"skill": float(skill(errors, before)[0]), "low": low, "high": high}
    return row
