"""The published study's nine claims, each with a rule that can find that it stands.

A claim is judged if the publication states numbers for it: on the exact values of the runs that it names, against the
reference target of each run. Published values, and values computed as published, are used only if a rule says so. A
claim that fails has the verdict "does not stand", one that is explained "stands, but a plain quantity explains it", and
one that is undecided "cannot be told".
"""

from collections.abc import Callable, Sequence

import polars as pl

from toposcope.analysis import Trajectory
from toposcope_experiments.published_study.case import MIN_SIZES, Judgement, StudyEvidence
from toposcope_experiments.published_study.correlation_claims import (
    holds_elsewhere,
    progress,
    reverses,
    strengthens,
    weakens,
)
from toposcope_experiments.published_study.published import Published
from toposcope_experiments.published_study.training_claims import has_phases, improves, is_power_law, scales

SCHEMA = {"number": pl.Int64, "claim": pl.String, "verdict": pl.String, "why": pl.String}


def claims(
    published: Published | None,
    association: pl.DataFrame,
    phases: pl.DataFrame,
    change_points: pl.DataFrame,
    scaling: pl.DataFrame,
    trajectories: Sequence[Trajectory],
    runs: pl.DataFrame,
    predictions: pl.DataFrame,
) -> pl.DataFrame:
    """Judge the published claims."""
    if published is None or published.subject != "weights":
        return pl.DataFrame(schema=SCHEMA)
    known = {t.run: t for t in trajectories}
    named = [run for run in dict.fromkeys([*published.final_loss, *_correlated(published)]) if run in known]
    parameters = dict(runs.select("run", "n_parameters").drop_nulls().iter_rows())
    sizes = dict(sorted(((r, parameters[r]) for r in named if r in parameters), key=lambda pair: pair[1]))
    case = StudyEvidence(
        association, scaling, known,
        published=published, sizes=sizes, named=[*sizes, *(r for r in named if r not in sizes)],
        phases=phases, change_points=change_points, predictions=predictions,
    )  # fmt: skip
    made = declared(published)
    rows = [(number, *rule(case)) for number, rule in enumerate(RULES, 1) if made[number]]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def declared(published: Published) -> dict[int, bool]:
    """Return, by number, whether a publication declares numbers that make a claim.

    Final losses make the claim of a power law where there are at least 3 of them.
    """
    correlated = {quantity for quantity, by_run in published.correlations.items() if by_run}
    made = (
        "H0.total" in correlated,
        "H0.total" in correlated,
        "np_mean" in correlated,
        "H1.total" in correlated,
        any(published.prediction_errors.values()),
        bool(published.largest_change or published.diminishing_returns),
        "H0.total" in published.scaling,
        "loss" in published.scaling or len(published.final_loss) >= MIN_SIZES,
        any(trace.values for trace in published.traces.values()),
    )
    return dict(enumerate(made, 1))


RULES: tuple[Callable[[StudyEvidence], Judgement], ...] = (
    progress, strengthens, reverses, weakens, improves, has_phases, scales, is_power_law, holds_elsewhere,
)  # fmt: skip


def _correlated(published: Published) -> list[str]:
    return [run for by_run in published.correlations.values() for run in by_run]
