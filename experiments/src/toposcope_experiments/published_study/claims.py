"""The published study's nine claims, each with a rule that can find that it stands.

A claim is judged if the publication states numbers for it: on the exact values of the runs that it names, against the
reference target of each run. Published values, and values computed as published, are used only if a rule says so. A
claim that fails has the verdict "does not stand", one that is explained "stands, but a plain quantity explains it", and
one that is undecided "cannot be told".
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import polars as pl

from toposcope.analysis import Trajectory
from toposcope.extend import PUBLISHED, STATES
from toposcope_experiments.published_study.case import MIN_SIZES, Judgement, StudyEvidence
from toposcope_experiments.published_study.correlation_claims import (
    holds_elsewhere,
    progress,
    reverses,
    strengthens,
    weakens,
)
from toposcope_experiments.published_study.hypotheses import hypotheses
from toposcope_experiments.published_study.published import Published, Trace, is_quantity
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
    turns: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Judge the published claims, or of hidden states the hypotheses, which need the table `turns`."""
    if published is None:
        return pl.DataFrame(schema=SCHEMA)
    known, published = {t.run: t for t in trajectories}, with_imported_traces(published, trajectories)
    named = [run for run in dict.fromkeys([*published.final_loss, *_correlated(published)]) if run in known]
    parameters = dict(runs.select("run", "n_parameters").drop_nulls().iter_rows())
    sizes = dict(sorted(((r, parameters[r]) for r in named if r in parameters), key=lambda pair: pair[1]))
    case = StudyEvidence(
        association, scaling, known, subject=published.subject,
        published=published, sizes=sizes, named=[*sizes, *(r for r in named if r not in sizes)],
        phases=phases, change_points=change_points, predictions=predictions,
    )  # fmt: skip
    if published.subject == STATES:
        rows = [(number, *judged) for number, judged in enumerate(hypotheses(case, turns), 1)]
    else:
        made = declared(published)
        rows = [(number, *rule(case)) for number, rule in enumerate(RULES, 1) if made[number]]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


NEEDED = (
    *("correlations of H0.total", "correlations of H0.total", "correlations of np_mean", "correlations of H1.total"),
    *("prediction_errors", "largest_change or diminishing_returns", "a law of scaling of H0.total"),
    *("a law of scaling of the loss, or 3 final losses", "traces, or features of a run without a correlation"),
)
"""What a publication has to declare to make each claim."""


def declared(published: Published) -> dict[int, bool]:
    """Return, by number, whether a publication declares numbers that make a claim (see `NEEDED`)."""
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


def with_imported_traces(published: Published, trajectories: Sequence[Trajectory]) -> Published:
    """Return a publication with the traces of runs whose features were released without any correlation or loss."""
    of_weights = published.subject == "weights" and any(published.correlations.values())
    stated = {*published.final_loss, *_correlated(published), *published.traces}
    traces = {}
    for t in [t for t in trajectories if of_weights and t.run not in stated and PUBLISHED not in t.clouds]:
        released = {f.statistic: v for f, v in t.features.items() if f.probe == PUBLISHED and np.isfinite(v).all()}
        if values := {name: v.tolist() for name, v in released.items() if is_quantity(name)}:
            traces[t.run] = Trace(steps=t.steps.tolist(), values=values)
    return msgspec.structs.replace(published, traces={**published.traces, **traces})


RULES: tuple[Callable[[StudyEvidence], Judgement], ...] = (
    progress, strengthens, reverses, weakens, improves, has_phases, scales, is_power_law, holds_elsewhere,
)  # fmt: skip


def _correlated(published: Published) -> list[str]:
    return [run for by_run in published.correlations.values() for run in by_run]
