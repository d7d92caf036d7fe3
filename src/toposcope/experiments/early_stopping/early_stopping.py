"""What stopping early saves and costs, rule by rule, beside stopping every run at the same fraction of its steps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields

import numpy as np
import polars as pl

from toposcope.analysis.adjustment import adjusted
from toposcope.analysis.permutations import N_DRAWN_SIGNS, sign_flip
from toposcope.analysis.trajectories import Trajectory
from toposcope.analysis.verdict import LEVEL
from toposcope.analysis.wording import joined
from toposcope.errors import ToposcopeError
from toposcope.experiments.early_stopping.stopping_rules import (
    FRACTION,
    GAIN,
    LAST,
    LOSS,
    NEURAL_PERSISTENCE,
    RULES,
    Setting,
    at_fraction,
    below_price,
    grid,
    out_of_patience,
)
from toposcope.forecasting.forecaster import Forecaster, LoggedRun, RefusedError
from toposcope.forecasting.schedules.planned import planned
from toposcope.logs import Log
from toposcope.probes import Feature
from toposcope.study.kinds import PUBLISHED
from toposcope.typing import Vector

Gain = Callable[[str, int], float]
"""Of a run and a step: the further fall of its loss until its end, in nats, as predicted from what was seen until that
step; NaN where nothing can be said."""

MIN_CHECKPOINTS = 3
"""Checkpoints with a loss that a run must have."""
TOLERANCE = 1e-9
"""Nats; differences below it come of rounding."""
BATCH_LOSS = "batch_loss"
FLOPS_PER_WEIGHT = 6
"""Training FLOP per parameter and token."""

SETTING = dict(
    zip(
        (field.name for field in fields(Setting)),
        (pl.String, pl.Int64, pl.Int64, pl.Float64, pl.Float64, pl.Float64),
        strict=True,
    )
)
STOPS = {"run": pl.String, **SETTING, "watched": pl.String, "step": pl.Int64, "stopped": pl.Boolean}
STOPS |= dict.fromkeys(("saved", "saved_flops", "loss", "paid", "paid_best"), pl.Float64)
MATCHED = {**SETTING, "n_runs": pl.Int64, "n_stopped": pl.Int64}
MATCHED |= dict.fromkeys(("saved", "paid", "paid_fixed", "difference", "p", "p_adjusted"), pl.Float64)
COMPARED = {"rule": pl.String, **dict.fromkeys(("n_runs", "n_settings", "n_less", "n_more"), pl.Int64)}
COMPARED |= dict.fromkeys(("stopped", "saved", "paid", "paid_fixed", "difference", "p", "p_least"), pl.Float64)
COMPARED |= {"p_adjusted": pl.Float64, "verdict": pl.String}

BETTER, WORSE, NOT_SHOWN = "better", "worse", "not shown"


@dataclass(frozen=True, eq=False)
class EarlyStopping:
    """What the rules would have done to the complete runs of a study.

    Attributes
    ----------
    stops : polars.DataFrame
        A row a run and setting: ``run, rule, patience, burn_in, delta, price, fraction, watched`` (the feature or
        target the rule looks at), ``step`` (where it stops), ``stopped`` (false: it went on to the end), ``saved``
        (share of the steps), ``saved_flops`` (NaN if unknown), ``loss`` (nats, there), ``paid`` (that minus the loss of
        the last checkpoint) and ``paid_best`` (minus that of the best checkpoint).
    matched : polars.DataFrame
        A row a setting: ``n_runs, n_stopped``; means over runs of ``saved``, of ``paid`` and of ``paid_fixed``, what
        stopping all of these runs at one fraction of their steps costs that saves as much on the mean; ``difference``
        (paid - paid_fixed), ``p`` (exact sign-flip test over runs) and ``p_adjusted`` (Holm over all settings).
    rules : polars.DataFrame
        A row a rule: ``n_runs, n_settings``, how many of these pay less and how many more than their fixed fraction,
        ``n_less, n_more``; means over its grid of ``stopped`` (share of the runs), ``saved, paid, paid_fixed,
        difference``; ``p`` of the mean difference of each run, ``p_least`` (what so many runs allow at best),
        ``p_adjusted`` (Holm over rules) and ``verdict``: better, worse or not shown.
    notes : tuple of str
        What was left out, a sentence each.
    """

    stops: pl.DataFrame
    matched: pl.DataFrame
    rules: pl.DataFrame
    notes: tuple[str, ...]

    def summary(self) -> list[str]:
        """Return what was found, a sentence a rule."""
        if not len(self.rules):
            return ["No rule can be tried. " + " ".join(self.notes)]
        return [_sentence(row) for row in self.rules.iter_rows(named=True)]


@dataclass(frozen=True, eq=False)
class _Course:
    """A complete run at its checkpoints with a loss."""

    run: str
    steps: Vector
    target: str
    loss: Vector
    flops: Vector
    feature: str
    persistence: Vector
    gains: Vector

    @property
    def shares(self) -> Vector:
        return np.asarray(self.steps / self.steps[-1])

    def watched(self, rule: str) -> str:
        """Return what a rule looks at; empty if it is not known of this run."""
        known = {NEURAL_PERSISTENCE: self.feature, LOSS: self.target, FRACTION: "step", LAST: "step"}
        known[GAIN] = GAIN if np.isfinite(self.gains).any() else ""
        return known[rule]

    def stop(self, setting: Setting) -> int | None:
        """Return the checkpoint at which a rule stops."""
        if setting.price is not None:
            return below_price(self.gains, self.shares, setting.price)
        if setting.fraction is not None:
            return at_fraction(self.steps, setting.fraction)
        if setting.patience is None or setting.burn_in is None or setting.delta is None:
            return None
        values, highest = (self.persistence, 0.0) if setting.rule == NEURAL_PERSISTENCE else (-self.loss, -np.inf)
        return out_of_patience(values, setting.patience, setting.burn_in, setting.delta, highest)

    def paid_at(self, share: float) -> float:
        """Return what stopping at any share of the steps costs; between checkpoints, linear in log(1 + step)."""
        there = np.interp(np.log1p(share * self.steps[-1]), np.log1p(self.steps), self.loss)
        return float(there - self.loss[-1])


def early_stopping(
    found: Sequence[Trajectory], log: pl.DataFrame, runs: pl.DataFrame, gain: Gain | None = None
) -> EarlyStopping:
    """Try every rule at every setting of its grid on every complete run.

    The loss is the target to trust: the validation loss if it is known, never one batch unless there is
    nothing else. A measurement is a checkpoint at which it is known. Neural persistence is the mean normalised one
    (Rieck et al. 2019, Def. 4), or where that was not measured ``np_mean``, ours or published.

    What a stop costs is given without a cool-down: a run that was planned to end there would have ended lower. This is
    the same for all rules.

    Parameters
    ----------
    found : list of Trajectory
    log, runs : polars.DataFrame
        `Study.log` and `Study.runs`.
    gain : callable, optional
        See `Gain`; without it the rule that needs forecasts is left out.
    """
    courses, notes = _courses(found, log, runs, gain)
    if not courses:
        stops, matched, rules = (pl.DataFrame(schema=schema) for schema in (STOPS, MATCHED, COMPARED))
        return EarlyStopping(stops, matched, rules, (*notes, "There is no complete run with a loss."))
    all_stops, all_matched, compared = [], [], []
    for rule in RULES:
        subjects = [course for course in courses if course.watched(rule)]
        if len(subjects) < len(courses):
            notes.append(_lacking(rule, [c.run for c in courses if not c.watched(rule)], len(courses)))
        if not subjects:
            continue
        of_rule, differences = [], []
        for setting in grid(rule):
            rows = [_row(course, setting) for course in subjects]
            row, by_run = _matched(rule, subjects, rows)
            all_stops += rows
            of_rule.append({**asdict(setting), **row})
            differences.append(by_run)
        all_matched += of_rule
        if rule not in (FRACTION, LAST):
            compared.append(_of_rule(rule, of_rule, np.mean(differences, axis=0)))
    table = pl.DataFrame(all_matched, schema=MATCHED, infer_schema_length=None)
    table = table.with_columns(p_adjusted=adjusted(table.get_column("p").to_numpy()))
    return EarlyStopping(
        pl.DataFrame(all_stops, schema=STOPS, infer_schema_length=None), table, _judged(compared), tuple(notes)
    )


def gain_by(forecaster: Forecaster, logs: Iterable[Log]) -> Gain:
    """Return the further fall of the loss that a forecaster predicts from the log and the schedule, without siblings.

    The fall is that of its curve from the last step seen, so that the noise of the last batch has no part in it.

    Parameters
    ----------
    forecaster : Forecaster
    logs : sequence of Log
        Of complete runs. Of another run nothing is said, nor of one whose learning rates are no schedule, nor where the
        forecaster refuses.
    """
    runs: dict[str, LoggedRun] = {}
    for log in logs:
        with suppress(ToposcopeError):
            runs[log.name] = LoggedRun(log, planned(log, last_step=log.last_step or int(log.steps[-1])))

    def gain(run: str, step: int) -> float:
        seen = runs[run].log.until(step) if run in runs else None
        if seen is None:
            return np.nan
        try:
            forecast = forecaster.fit(seen, runs[run].schedule, ())
        except RefusedError:
            return np.nan
        return float(forecast.curve[0]) - forecast.loss if len(forecast.curve) else np.nan

    return gain


def loss_of(trajectory: Trajectory) -> tuple[Vector, Vector, str]:
    """Return steps and losses where the target to trust is known, and its name; the trajectory has a target."""
    target = next((name for name in trajectory.targets if name != BATCH_LOSS), BATCH_LOSS)
    loss = trajectory.targets[target]
    known = np.isfinite(loss)
    return trajectory.steps[known].astype(np.float64), loss[known], target


def _courses(
    found: Sequence[Trajectory], log: pl.DataFrame, runs: pl.DataFrame, gain: Gain | None
) -> tuple[list[_Course], list[str]]:
    """Return the runs that rules can be tried on, and why others cannot be."""
    complete = dict(runs.filter(status="complete").select("run", "last_step").iter_rows())
    sizes = dict(runs.select("run", "n_parameters").iter_rows())
    courses, notes = [], []
    for t in found:
        last = complete.get(t.run, -1)
        steps, losses, target = loss_of(t) if t.targets else (np.empty(0), np.empty(0), "")
        if t.run not in complete or last not in (None, int(t.steps[-1])):
            notes.append(f"{t.run} is left out: it did not end, or its last checkpoint was not measured.")
        elif len(steps) < MIN_CHECKPOINTS or int(steps[-1]) != int(t.steps[-1]) or not steps[-1] > 0:
            notes.append(
                f"{t.run} is left out: it needs a loss at {MIN_CHECKPOINTS} checkpoints, the last one among them."
            )
        else:
            at = np.isin(t.steps, steps)
            feature = _feature(t)
            persistence = t.features[feature][at] if feature else np.full(len(steps), np.nan)
            gains = np.array([gain(t.run, int(step)) if gain else np.nan for step in steps])
            flops = _flops(t, steps, log.filter(run=t.run), sizes.get(t.run))
            courses.append(_Course(t.run, steps, target, losses, flops, str(feature or ""), persistence, gains))
    if any(course.target == BATCH_LOSS for course in courses):
        which = joined([course.run for course in courses if course.target == BATCH_LOSS])
        notes.append(f"Of {which} only the loss of single batches is known: what stopping costs there is noisy.")
    return courses, notes


def _feature(trajectory: Trajectory) -> Feature | None:
    """Return the neural persistence of weights, normalised if it was measured; None without any."""
    measured = [f for f in trajectory.features if f.probe in ("neural_persistence", PUBLISHED)]
    candidates = [f for statistic in ("np_normalized", "np_mean") for f in measured if f.statistic == statistic]
    return next((f for f in candidates if np.isfinite(trajectory.features[f]).any()), None)


def _flops(trajectory: Trajectory, steps: Vector, log: pl.DataFrame, n_parameters: int | None) -> Vector:
    """Return the FLOPs spent until each step: as logged, else 6 a weight and token; NaN if neither is known."""
    logged = log.select("step", "flops").drop_nulls()
    if len(logged):
        at, spent = (logged.get_column(name).to_numpy() for name in ("step", "flops"))
        return np.asarray(np.interp(steps, at, spent))
    tokens = trajectory.tokens[np.isin(trajectory.steps, steps)]
    per_token = float(FLOPS_PER_WEIGHT * n_parameters) if n_parameters else np.nan
    return per_token * tokens


def _lacking(rule: str, lacking: list[str], total: int) -> str:
    """Say of which runs a rule cannot be tried."""
    why = {NEURAL_PERSISTENCE: "neural persistence was not measured", GAIN: "nothing could be predicted"}[rule]
    return f"{NAMES[rule]} is left out of {'all runs' if len(lacking) == total else joined(lacking)}: {why}."


def _row(course: _Course, setting: Setting) -> dict[str, object]:
    stop = course.stop(setting)
    at = len(course.steps) - 1 if stop is None else stop
    loss = float(course.loss[at])
    return {
        "run": course.run,
        **asdict(setting),
        "watched": course.watched(setting.rule),
        "step": int(course.steps[at]),
        "stopped": at < len(course.steps) - 1,
        "saved": float(1 - course.shares[at]),
        "saved_flops": float(course.flops[-1] - course.flops[at]),
        "loss": loss,
        "paid": loss - float(course.loss[-1]),
        "paid_best": loss - float(course.loss.min()),
    }


def _matched(
    rule: str, courses: Sequence[_Course], rows: Sequence[Mapping[str, object]]
) -> tuple[dict[str, float], Vector]:
    """Set a setting beside the fixed fraction that saves as much; return its row and the difference of each run."""
    saved, paid = (np.array([row[name] for row in rows], dtype=np.float64) for name in ("saved", "paid"))
    fixed = np.array([course.paid_at(1 - float(saved.mean())) for course in courses])
    differences = paid - fixed
    differences[np.abs(differences) < TOLERANCE] = 0.0
    tested = rule not in (FRACTION, LAST)
    row = {
        "n_runs": len(rows),
        "n_stopped": sum(bool(row["stopped"]) for row in rows),
        "saved": float(saved.mean()),
        "paid": float(paid.mean()),
        "paid_fixed": float(fixed.mean()),
        "difference": float(differences.mean()),
        "p": sign_flip(differences) if tested else np.nan,
    }
    return row, differences


def _of_rule(rule: str, rows: Sequence[Mapping[str, float]], differences: Vector) -> dict[str, object]:
    """Return the row of a rule, but for what is adjusted; `differences` are of runs, means over the grid."""
    n_runs = len(differences)
    means = {
        name: float(np.mean([row[name] for row in rows])) for name in ("saved", "paid", "paid_fixed", "difference")
    }
    return {
        "rule": rule,
        "n_runs": n_runs,
        "n_settings": len(rows),
        "n_less": sum(row["difference"] < 0 for row in rows),
        "n_more": sum(row["difference"] > 0 for row in rows),
        "stopped": float(np.mean([row["n_stopped"] / n_runs for row in rows])),
        **means,
        "p": sign_flip(differences),
        "p_least": max(2.0 ** (1 - n_runs), 1 / (N_DRAWN_SIGNS + 1)),
    }


def _judged(rows: list[dict[str, object]]) -> pl.DataFrame:
    """Adjust p over rules and say what that leaves."""
    table = pl.DataFrame(rows, schema=COMPARED, infer_schema_length=None)
    table = table.with_columns(p_adjusted=adjusted(table.get_column("p").to_numpy()))
    shown = pl.col("p_adjusted") < LEVEL
    sides = pl.when(pl.col("difference") < 0).then(pl.lit(BETTER)).otherwise(pl.lit(WORSE))
    return table.with_columns(verdict=pl.when(shown).then(sides).otherwise(pl.lit(NOT_SHOWN)))


NAMES = {
    NEURAL_PERSISTENCE: "Patience on neural persistence (Rieck et al.)",
    LOSS: "Patience on the loss",
    GAIN: "Forecast gain below a price",
    FRACTION: "Fixed fraction of the steps",
    LAST: "Last step",
}


def _sentence(row: Mapping[str, float | str]) -> str:
    """Say of a rule what it saves and pays, and whether it differs from a fixed fraction."""
    verdict = {
        BETTER: "it is better than a fixed fraction",
        WORSE: "it is worse than a fixed fraction",
        NOT_SHOWN: "it is not shown to be better or worse than a fixed fraction",
    }[str(row["verdict"])]
    few = ""
    if row["verdict"] == NOT_SHOWN and float(row["p_least"]) >= LEVEL:
        few = f", which {row['n_runs']} run{'s'[: row['n_runs'] != 1]} cannot show"
    return (
        f"{NAMES[str(row['rule'])]}: over {row['n_settings']} settings and {row['n_runs']} "
        f"run{'s'[: row['n_runs'] != 1]} it saves {float(row['saved']):.0%} of the steps on the mean and pays "
        f"{float(row['paid']):.3f} nats; a fixed fraction that saves as much pays {float(row['paid_fixed']):.3f} "
        f"({row['n_less']} settings pay less than theirs, {row['n_more']} more; p {float(row['p']):.3g}, "
        f"Holm {float(row['p_adjusted']):.3g}): {verdict}{few}."
    )
