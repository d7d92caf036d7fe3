"""Early stopping by patience on neural persistence compared with other criteria: compute saved and accuracy lost."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from toposcope.extend import Vector
from toposcope_experiments.early_stopping.stopping_rules import (
    FRACTION,
    LOSS,
    NEURAL_PERSISTENCE,
    TRAINING_LOSS,
    WEIGHT_NORM,
    grid,
)
from toposcope_experiments.early_stopping.tried_rules import Course, TriedRules, Watched, try_rules
from toposcope_experiments.regularisation.design import STEPS_PER_EPOCH
from toposcope_experiments.regularisation.experiment import MeasuredRuns
from toposcope_experiments.regularisation.features import NORM, NP
from toposcope_experiments.regularisation.training import TEST_ACCURACY, TRAIN_LOSS, VALIDATION_LOSS

POINTS = 100  # accuracies are lost in percentage points
DELTAS = (0.0,)  # any improvement counts
PATIENCE_RULES = (NEURAL_PERSISTENCE, LOSS, TRAINING_LOSS, WEIGHT_NORM)
CALLED = {
    NEURAL_PERSISTENCE: "neural persistence",
    LOSS: "validation loss",
    TRAINING_LOSS: "training loss",
    WEIGHT_NORM: "weight norm",
    FRACTION: "fixed epoch",
}
"""By what a rule stops."""
BARYCENTRES = {"rule": pl.String, "condition": pl.String, **dict.fromkeys(("n_runs", "n_settings"), pl.Int64)}
BARYCENTRES |= dict.fromkeys(("epochs", "epochs_low", "epochs_high", "lost", "lost_low", "lost_high"), pl.Float64)


def courses(measured: MeasuredRuns) -> list[Course]:
    """Return the runs at the ends of their epochs; what a stop costs is test accuracy, in percentage points."""
    at = measured.epochs
    values = {name: value[at] for name, value in measured.values.items()}
    found = []
    for i, run in enumerate(measured.runs):
        watched = {
            NEURAL_PERSISTENCE: Watched(NP, values[NP][:, i], 0.0),
            LOSS: Watched(VALIDATION_LOSS, -values[VALIDATION_LOSS][:, i]),
            TRAINING_LOSS: Watched(TRAIN_LOSS, -values[TRAIN_LOSS][:, i]),
            WEIGHT_NORM: Watched(NORM, values[NORM][:, i], 0.0),
        }
        error = POINTS * (1 - values[TEST_ACCURACY][:, i])
        steps = measured.steps[at].astype(np.float64)
        found.append(Course(run.name, steps, "test error", error, np.full(len(at), np.nan), watched))
    return found


def stop_early(measured: MeasuredRuns) -> TriedRules:
    """Try patience on every quantity, and fixed epochs, on every run."""
    return try_rules(courses(measured), {rule: list(grid(rule, DELTAS)) for rule in (*PATIENCE_RULES, FRACTION)})


def stop_table(measured: MeasuredRuns, tried: TriedRules) -> pl.DataFrame:
    """Return where each rule stops each run at each setting: ``epoch``, ``saved``, ``lost``."""
    conditions = {run.name: run.condition.name for run in measured.runs}
    return tried.stops.select(
        pl.col("rule").replace(CALLED),
        pl.col("run").replace_strict(conditions).alias("condition"),
        "run", "patience", "burn_in", "fraction",
        epoch=pl.col("step") / STEPS_PER_EPOCH,
        stopped="stopped", saved="saved", lost="paid",
    )  # fmt: skip


def grid_table(stops: pl.DataFrame, matched: pl.DataFrame) -> pl.DataFrame:
    """Return a row a setting: compute saved and accuracy lost, with 95% intervals over runs within their conditions."""
    setting = ["rule", "patience", "burn_in", "fraction"]
    rows = []
    for key, of_setting in stops.group_by(setting, maintain_order=True):
        means: dict[str, float] = {}
        for name in ("saved", "lost"):
            groups = [part.get_column(name).to_numpy() for part in of_setting.partition_by("condition")]
            means |= _with_interval(name, groups)
        stopped = float(of_setting.get_column("stopped").cast(pl.Float64).to_numpy().mean())
        rows.append({**dict(zip(setting, key, strict=True)), "n_runs": len(of_setting), "stopped": stopped, **means})
    compared = matched.select(
        pl.col("rule").replace(CALLED), "patience", "burn_in", "fraction", lost_fixed="paid_fixed",
        difference="difference", p="p", p_adjusted="p_adjusted",
    )  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None).join(compared, on=setting, how="left", nulls_equal=True)


def barycentre_table(stops: pl.DataFrame) -> pl.DataFrame:
    """Return how much later each rule stops than patience on the validation loss, and what accuracy that costs.

    The differences are of the same run at the same patience and burn-in, means over the grid, as the barycentres of
    Rieck et al. are; intervals are over runs. Below 0: fewer epochs, or a higher accuracy. ``condition`` is empty where
    all conditions count alike.
    """
    key = ["condition", "run", "patience", "burn_in"]
    patient = stops.filter(pl.col("patience").is_not_null())
    reference = patient.filter(rule=CALLED[LOSS]).select(*key, epoch_reference="epoch", lost_reference="lost")
    pairs = patient.filter(pl.col("rule") != CALLED[LOSS]).join(reference, on=key)
    by_run = pairs.group_by("rule", "condition", "run", maintain_order=True).agg(
        n_settings=pl.len(),
        epochs=(pl.col("epoch") - pl.col("epoch_reference")).mean(),
        lost=(pl.col("lost") - pl.col("lost_reference")).mean(),
    )
    rows = []
    for (rule,), of_rule in by_run.group_by("rule", maintain_order=True):
        parts = of_rule.partition_by("condition", maintain_order=True)
        for condition, members in [("", parts), *((part.item(0, "condition"), [part]) for part in parts)]:
            common = {"rule": rule, "condition": condition, "n_settings": of_rule.item(0, "n_settings")}
            numbers: dict[str, float] = {}
            for name in ("epochs", "lost"):
                numbers |= _with_interval(name, [part.get_column(name).to_numpy() for part in members])
            rows.append({**common, "n_runs": sum(len(part) for part in members), **numbers})
    return pl.DataFrame(rows, schema=BARYCENTRES)


def _with_interval(name: str, groups: Sequence[Vector]) -> dict[str, float]:
    """Return the mean of the means of groups, with a 95% interval over the members of each."""
    from scipy.stats import t as student  # slow to import

    mean = float(np.mean([group.mean() for group in groups]))
    squares = sum(group.var(ddof=1) / len(group) for group in groups if len(group) > 1)
    freedom = sum(len(group) - 1 for group in groups)
    half = float(student.ppf(0.975, freedom) * np.sqrt(squares)) / len(groups) if freedom else np.nan
    return {name: mean, f"{name}_low": mean - half, f"{name}_high": mean + half}
