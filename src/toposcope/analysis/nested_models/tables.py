"""Nested models of a population: how well each predicts, what its controls do, and what follows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis import tuning
from toposcope.analysis.adjustment import Method, adjusted
from toposcope.analysis.nested_models import fitting
from toposcope.analysis.nested_models.columns import FRACTIONS, PROJECTIONS, TWIN, Problem, fraction_columns, problems
from toposcope.analysis.nested_models.population import CONFIGURATIONS, NestedPopulation
from toposcope.analysis.nested_models.skill import Skills, compare, planted, shuffled, wilcoxon_p
from toposcope.analysis.verdict import LEVEL
from toposcope.engine.pool import TaskFailure, Workers, shared
from toposcope.errors import ToposcopeError
from toposcope.extras import install, is_installed
from toposcope.typing import Vector

MIN_RUNS = 20  # configurations that a test takes
MIN_EVENTS = 10  # runs that diverge, and runs that do not, that a test of divergence takes
RIDGE, BOOSTING = "ridge", "boosting"
SHUFFLED, PLANTED = "topology of other runs", "planted feature"
_BESIDE = {PROJECTIONS: "projections", TWIN: "twin"}
MODELS: dict[str, type[pl.DataType]] = {
    "target": pl.String,
    "fraction": pl.Float64,
    **dict.fromkeys(("left_out", "learner", "model", "versus"), pl.String),
    **dict.fromkeys(("n_runs", "n_groups", "n_columns"), pl.Int64),
    **dict.fromkeys(("mae", "skill", "skill_low", "skill_high", "p", "p_wilcoxon", "p_adjusted"), pl.Float64),
    **{f"{name}_{end}": pl.Float64 for end in _BESIDE.values() for name in ("skill_beside", "p_beside")},
}
DRAWS: dict[str, type[pl.DataType]] = {
    "target": pl.String,
    "fraction": pl.Float64,
    **dict.fromkeys(("control", "model"), pl.String),
    "noise": pl.Float64,
    "n_draws": pl.Int64,
    **dict.fromkeys(("skill", "skill_least", "skill_most"), pl.Float64),
    **dict.fromkeys(("n_found", "n_as_good"), pl.Int64),
}


@dataclass(frozen=True, eq=False)
class Fitted:
    """What was fitted of one target at one fraction: rows of `MODELS`, and the draws of the controls."""

    rows: list[dict[str, object]]
    shuffled: dict[str, Skills] = field(default_factory=dict)
    planted: Sequence[Skills] = ()


@dataclass(frozen=True, eq=False)
class NestedModels:
    """The tables of nested models."""

    # a row for each target, fraction, kind of group that is held out, learner and model: ``mae``; ``skill`` over the
    # model ``versus``, with its interval, ``p`` and ``p_wilcoxon``; ``p_adjusted`` where topology is tested; of models
    # with topology also ``skill_beside_projections`` and so on, which compare them with the controls
    models: pl.DataFrame
    # a row for each target, fraction and control that is drawn: the mean and range of its skill; ``n_found``, how many
    # draws were significant (planted features after adjustment, the topology of other runs without it); ``n_as_good``,
    # how many have at least the skill of the model itself
    draws: pl.DataFrame
    untested: dict[str, str]  # why a target is not tested, by its name


def nested_models(population: NestedPopulation, method: Method = "holm", workers: int = 1) -> NestedModels:
    """Fit nested models of every target at every fraction."""
    tested, untested = problems_of(population)
    parts: dict[int, Fitted] = {}
    count = max(1, min(workers, len(tested)))
    with Workers(count, shared=tested) as engine:
        for i, part in engine.run(_fit, range(len(tested))):
            if isinstance(part, TaskFailure):
                raise ToposcopeError(f"nested models of the {tested[i].target}: {part.message}")
            parts[i] = part
    fitted = [parts[i] for i in range(len(tested))]
    models = pl.DataFrame([row for part in fitted for row in part.rows], schema=MODELS)
    models, level = _adjusted(models, method)
    draws = [row for problem, part in zip(tested, fitted, strict=True) for row in _draw_rows(problem, part, level)]
    return NestedModels(models, pl.DataFrame(draws, schema=DRAWS), untested)


def problems_of(population: NestedPopulation) -> tuple[list[Problem], dict[str, str]]:
    """Return the targets at each fraction that are tested, and why the others are not, by target."""
    found = [fraction_columns(population, fraction) for fraction in FRACTIONS]
    every = [problem for columns in found if columns is not None for problem in problems(population, columns)]
    reasons = [_shortfall(problem) for problem in every]
    tested = [problem for problem, reason in zip(every, reasons, strict=True) if not reason]
    names = {problem.target for problem in tested}
    untested = {p.target: why for p, why in zip(every, reasons, strict=True) if why and p.target not in names}
    return tested, untested


def _shortfall(problem: Problem) -> str:
    n = len(np.unique(problem.groups[CONFIGURATIONS]))
    if n < MIN_RUNS:
        return f"{n} configurations can be compared; it takes {MIN_RUNS}"
    if problem.kind == "event":
        events = int(problem.values.sum())
        if min(events, len(problem.values) - events) < MIN_EVENTS:
            return f"{events} of {len(problem.values)} runs diverge or have a spike; it takes {MIN_EVENTS} of each kind"
    elif np.ptp(problem.values) == 0:
        return "it is the same in all runs"
    return ""


def _fit(place: int) -> Fitted:
    return fit_problem(shared()[place])


def fit_problem(problem: Problem) -> Fitted:
    """Fit the nested models of one target at one fraction, and draw their controls."""
    rows: list[dict[str, object]] = []
    fitted = fitting.folds(problem, CONFIGURATIONS)
    if not fitted:
        return Fitted(rows)
    found = fitting.predictions(problem, fitted)
    rows += _rows(problem, CONFIGURATIONS, RIDGE, found)
    for grouping in problem.groups:
        others = fitting.folds(problem, grouping) if grouping != CONFIGURATIONS else []
        if others:
            rows += _rows(problem, grouping, RIDGE, fitting.predictions(problem, others))
    if fitting.is_boosted(problem) and is_installed("sklearn"):
        rows += _rows(problem, CONFIGURATIONS, BOOSTING, fitting.boosted_predictions(problem))
    elif fitting.is_boosted(problem):
        rows.append({**_place(problem, CONFIGURATIONS, BOOSTING), "model": f"not installed; {install('sklearn')}"})
    base = found[fitting.WITH_PLAIN]
    return Fitted(rows, shuffled(problem, fitted, base), planted(problem, fitted, base))


def _rows(problem: Problem, grouping: str, learner: str, predicted: Mapping[str, Vector]) -> list[dict[str, object]]:
    """Return the rows of some models; each is compared with the one before it."""
    names, groups = list(predicted), problem.groups[grouping]
    errors = {name: problem.errors(values) for name, values in predicted.items()}
    before = {name: fitting.BEFORE.get(name, fitting.WITH_PLAIN) for name in names}
    compared = [name for name in names if before[name] in errors and before[name] != name]
    ours = np.array([errors[name] for name in compared])
    theirs = np.array([errors[before[name]] for name in compared])
    skills, ranks = compare(ours, theirs, groups), wilcoxon_p(ours, theirs, groups)
    over_controls = {
        probe: compare(ours, np.tile(errors[model], (len(ours), 1)), groups)
        for probe, model in fitting.CONTROLS.items()
        if model in errors
    }
    width, topological = fitting.widths(problem), set(fitting.further_tables(problem)) - set(fitting.CONTROLS.values())
    rows: list[dict[str, object]] = []
    for name in names:
        row: dict[str, object] = {
            **_place(problem, grouping, learner),
            "model": name,
            "n_groups": skills.n_groups,
            "n_columns": width[name],
            "mae": float(errors[name].mean()),
        }
        if name in compared:
            i = compared.index(name)
            row |= {"versus": before[name], "p_wilcoxon": float(ranks[i])}
            values = {"skill": skills.skill, "skill_low": skills.low, "skill_high": skills.high, "p": skills.p}
            row |= {key: float(of_models[i]) for key, of_models in values.items()}
            for probe, against in over_controls.items() if name in topological else ():
                row |= {f"skill_beside_{_BESIDE[probe]}": float(against.skill[i])}
                row |= {f"p_beside_{_BESIDE[probe]}": float(against.p[i])}
        rows.append(row)
    return rows


def _place(problem: Problem, grouping: str, learner: str) -> dict[str, object]:
    return {
        **dict.fromkeys(MODELS),
        "target": problem.target,
        "fraction": problem.columns.fraction,
        "left_out": grouping,
        "learner": learner,
        "n_runs": len(problem.values),
    }


def tested_rows() -> pl.Expr:
    """Return which rows of the models test topology: those of held-out runs, with topology added."""
    without = [fitting.MEDIAN, *fitting.BEFORE, *fitting.CONTROLS.values()]
    return (pl.col("left_out") == CONFIGURATIONS) & ~pl.col("model").is_in(without) & pl.col("p").is_not_null()


def _adjusted(models: pl.DataFrame, method: Method) -> tuple[pl.DataFrame, float]:
    """Adjust p over all tests of topology; return also the level that a single test of them must reach."""
    mask = models.select(tested_rows()).to_series().fill_null(value=False).to_numpy()
    p = np.where(mask, models.get_column("p").fill_null(np.nan).to_numpy(), np.nan)
    column = pl.Series(adjusted(p, method), dtype=pl.Float64).fill_nan(None)
    return models.with_columns(p_adjusted=column), LEVEL / max(int(np.isfinite(p).sum()), 1)


def _draw_rows(problem: Problem, part: Fitted, level: float) -> Iterator[dict[str, object]]:
    skill: dict[str, Any] = {
        str(row["model"]): row["skill"]
        for row in part.rows
        if row["left_out"] == CONFIGURATIONS and row["learner"] == RIDGE
    }
    drawn: list[tuple[str, float | None, Skills]] = [(model, None, draws) for model, draws in part.shuffled.items()]
    drawn += [("", float(noise), draws) for noise, draws in zip(tuning.NOISE_LEVELS, part.planted, strict=False)]
    for model, noise, draws in drawn:
        is_planted = noise is not None
        least = level if is_planted else LEVEL  # of what should be found, and of what should not be
        yield {
            "target": problem.target,
            "fraction": problem.columns.fraction,
            "control": PLANTED if is_planted else SHUFFLED,
            "model": model,
            "noise": noise,
            "n_draws": len(draws.skill),
            "skill": float(draws.skill.mean()),
            "skill_least": float(draws.skill.min()),
            "skill_most": float(draws.skill.max()),
            "n_found": int(((draws.p < least) & (draws.skill > 0)).sum()),
            "n_as_good": None if is_planted else int((draws.skill >= skill[model]).sum()),
        }
