"""Studies for tests of the report, computed from series made by rule: no training, no measuring."""

import numpy as np
import polars as pl
from named_features import by_feature
from section_tools import all_tables, with_tables

from toposcope.analysis.table import association_table
from toposcope.analysis.trajectory import Trajectory
from toposcope.report.study_data import StudyData
from toposcope.study.declaration import Declaration
from toposcope.study.study import FRAME_SCHEMA

N = 200
"""Checkpoints: enough for the tests to find what matters in one run, so that `nothing` has a verdict."""
RUNS = ("small", "middle", "large", "huge")
FEATURES = ("rips H0.total", "rips H1.total", "neural_persistence np_mean", "controls frobenius_norm")
RULES = ("clock", "information", "nothing")


def trajectory(run: str, seed: int, rule: str, target: str = "validation_loss") -> Trajectory:
    """A run whose first feature is a clock, what makes the loss leave its trend, or noise."""
    draw = np.random.default_rng(seed)
    steps = np.arange(N) * 100
    bump = draw.standard_normal(N)
    trend = np.linspace(3, 1, N)
    loss = trend + 0.5 * bump
    first = {"clock": steps.astype(float), "information": bump, "nothing": draw.standard_normal(N)}[rule]
    features = {name: draw.standard_normal(N) for name in FEATURES} | {FEATURES[0]: first}
    covariates = {"step": steps.astype(float), "weight_norm": np.sqrt(steps + 1.0)}
    return Trajectory(run, steps, by_feature(features), {target: loss}, covariates)


def study(rule: str, runs: tuple[str, ...] = RUNS, seed: int = 0) -> StudyData:
    """A study of such runs; tables without rows where they would need more."""
    found = [trajectory(run, 10 * seed + i, rule) for i, run in enumerate(runs)]
    scaling = pl.DataFrame(schema={"quantity": pl.String, "n_sizes": pl.Int64, "exponent": pl.Float64})
    return StudyData(
        declaration=Declaration(name=rule),
        trajectories=found,
        frame=pl.DataFrame(schema=FRAME_SCHEMA),
        labels=pl.DataFrame(schema=dict.fromkeys(("probe", "options", "label"), pl.String)),
        log=pl.DataFrame(),
        runs=runs_frame(runs),
        findings=no_findings(),
        errors=pl.DataFrame(),
        diagrams=lambda run, step, probe: {},
        tables=all_tables(association=association_table(found), scaling=scaling),
    )


def runs_frame(runs: tuple[str, ...] = RUNS, **changed: object) -> pl.DataFrame:
    """`Study.runs` of such runs."""
    rows = [(run, "family", 1000, "complete", (N - 1) * 100, N) for run in runs]
    names = ["run", "kind", "n_parameters", "status", "last_step", "n_checkpoints"]
    return pl.DataFrame(rows, schema=names, orient="row").with_columns(**{k: pl.lit(v) for k, v in changed.items()})


def no_findings() -> pl.DataFrame:
    """`Study.findings` where the doctor found nothing."""
    texts = dict.fromkeys(("run", "check", "severity"), pl.String)
    return pl.DataFrame(schema={**texts, "steps": pl.List(pl.Int64), "layer": pl.String, "message": pl.String})


def with_columns(of: StudyData, **columns: object) -> StudyData:
    """Return the study with columns of its association exchanged."""
    exchanged = {name: pl.lit(v) if isinstance(v, str | float) else v for name, v in columns.items()}
    return with_tables(of, {"association": of.tables["association"].with_columns(**exchanged)})  # type: ignore[arg-type]
