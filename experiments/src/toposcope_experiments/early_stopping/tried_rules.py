"""Rules of early stopping tried on runs that went to their end, against stopping all at one fraction of the steps."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields

import numpy as np
import polars as pl

from toposcope.extend import LEVEL, Vector, adjusted, out_of_patience, sign_flip
from toposcope_experiments.early_stopping.stopping_rules import (
    FRACTION,
    GAIN,
    LAST,
    Setting,
    at_fraction,
    below_price,
)

TOLERANCE = 1e-9  # costs that differ by less differ by rounding
KINDS_OF_FIELDS = (pl.String, pl.Int64, pl.Int64, pl.Float64, pl.Float64, pl.Float64)
SETTING = {each.name: kind for each, kind in zip(fields(Setting), KINDS_OF_FIELDS, strict=True)}
STOPS = {"run": pl.String, **SETTING, "watched": pl.String, "step": pl.Int64, "stopped": pl.Boolean}
STOPS |= dict.fromkeys(("saved", "saved_flops", "loss", "paid", "paid_best"), pl.Float64)
MATCHED = {**SETTING, "n_runs": pl.Int64, "n_stopped": pl.Int64}
MATCHED |= dict.fromkeys(("saved", "paid", "paid_fixed", "difference", "p", "p_adjusted"), pl.Float64)
COMPARED = {"rule": pl.String, **dict.fromkeys(("n_runs", "n_settings", "n_less", "n_more"), pl.Int64)}
COMPARED |= dict.fromkeys(("stopped", "saved", "paid", "paid_fixed", "difference", "p", "min_p"), pl.Float64)
COMPARED |= {"p_adjusted": pl.Float64, "verdict": pl.String}

BETTER, WORSE, NOT_SHOWN = "better", "worse", "not shown"


@dataclass(frozen=True)
class Watched:
    """What a rule of patience looks at: it should grow."""

    name: str  # of the feature or target
    values: Vector  # shape (n,); at the measurements of a run
    highest: float = -np.inf  # what the first value has to exceed


@dataclass(frozen=True, eq=False)
class Course:
    """A complete run at its measurements."""

    run: str
    steps: Vector  # shape (n,); the loss is what a stop may cost: a loss in nats, an error rate
    target: str  # name of the loss
    loss: Vector  # shape (n,); the loss is what a stop may cost: a loss in nats, an error rate
    flops: Vector  # shape (n,); the loss is what a stop may cost: a loss in nats, an error rate
    patience: Mapping[str, Watched]  # what the rules of patience look at; a rule that is not among them cannot be tried
    # shape (n,); as in `toposcope_experiments.early_stopping.early_stopping.Gain`; empty if nothing was predicted
    gains: Vector = field(default_factory=lambda: np.empty(0))

    @property
    def shares(self) -> Vector:
        """Share of the steps that is made at each measurement."""
        return np.asarray(self.steps / self.steps[-1])

    def watched(self, rule: str) -> str:
        """Return what a rule looks at; empty if it is not known of this run."""
        if rule in (FRACTION, LAST):
            return "step"
        if rule == GAIN:
            return GAIN if np.isfinite(self.gains).any() else ""
        return self.patience[rule].name if rule in self.patience else ""

    def stop(self, setting: Setting) -> int | None:
        """Return the measurement at which a rule stops."""
        if setting.price is not None:
            return below_price(self.gains, self.shares, setting.price)
        if setting.fraction is not None:
            return at_fraction(self.steps, setting.fraction)
        if setting.patience is None or setting.burn_in is None or setting.delta is None:
            return None
        looked_at = self.patience[setting.rule]
        return out_of_patience(looked_at.values, setting.patience, setting.burn_in, setting.delta, looked_at.highest)

    def paid_at(self, share: float) -> float:
        """Return what stopping at any share of the steps costs; between measurements, linear in log(1 + step)."""
        there = np.interp(np.log1p(share * self.steps[-1]), np.log1p(self.steps), self.loss)
        return float(there - self.loss[-1])


@dataclass(frozen=True, eq=False)
class TriedRules:
    """What rules would have done to runs."""

    # one row per run and setting: ``run, rule, patience, burn_in, delta, price, fraction, watched`` (what the rule
    # looks at), ``step`` (where it stops), ``stopped`` (false: it went on to the end), ``saved`` (share of the steps),
    # ``saved_flops`` (NaN if unknown), ``loss`` (there), ``paid`` (that minus the loss of the last measurement) and
    # ``paid_best`` (minus that of the best measurement)
    stops: pl.DataFrame
    # a row a setting: ``n_runs, n_stopped``; means over runs of ``saved``, of ``paid`` and of ``paid_fixed``, what
    # stopping all of these runs at one fraction of their steps costs that saves as much on the mean; ``difference``
    # (paid - paid_fixed), ``p`` (exact sign-flip test over runs) and ``p_adjusted`` (Holm over all settings)
    matched: pl.DataFrame
    # a row a rule: ``n_runs, n_settings``, how many of these pay less and how many more than their fixed fraction,
    # ``n_less, n_more``; means over its grid of ``stopped`` (share of the runs), ``saved, paid, paid_fixed,
    # difference``; ``p`` of the mean difference of each run, ``min_p`` (what so many runs allow at best),
    # ``p_adjusted`` (Holm over rules) and ``verdict``: better, worse or not shown
    rules: pl.DataFrame


def try_rules(courses: Sequence[Course], grids: Mapping[str, Sequence[Setting]]) -> TriedRules:
    """Try every rule at every setting of its grid on every run of which is known what it looks at."""
    all_stops, all_matched, compared = [], [], []
    for rule, settings in grids.items():
        subjects = [course for course in courses if course.watched(rule)]
        if not subjects:
            continue
        of_rule, differences = [], []
        for setting in settings:
            rows = [_row(course, setting) for course in subjects]
            row, by_run = _matched(rule, subjects, rows)
            all_stops += rows
            of_rule.append({**asdict(setting), **row})
            differences.append(by_run)
        all_matched += of_rule
        if rule not in (FRACTION, LAST):
            compared.append(_of_rule(rule, of_rule, np.mean(differences, axis=0)))
    stops = pl.DataFrame(all_stops, schema=STOPS, infer_schema_length=None)
    table = pl.DataFrame(all_matched, schema=MATCHED, infer_schema_length=None)
    table = table.with_columns(p_adjusted=adjusted(table.get_column("p").to_numpy()))
    return TriedRules(stops, table, _judged(compared))


def _row(course: Course, setting: Setting) -> dict[str, object]:
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
    rule: str, courses: Sequence[Course], rows: Sequence[Mapping[str, object]]
) -> tuple[dict[str, float], Vector]:
    """Compare a setting with the fixed fraction that saves as much; return its row and the difference of each run."""
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
    compared = ("saved", "paid", "paid_fixed", "difference")
    means = {name: float(np.mean([row[name] for row in rows])) for name in compared}
    return {
        "rule": rule,
        "n_runs": n_runs,
        "n_settings": len(rows),
        "n_less": sum(row["difference"] < 0 for row in rows),
        "n_more": sum(row["difference"] > 0 for row in rows),
        "stopped": float(np.mean([row["n_stopped"] / n_runs for row in rows])),
        **means,
        "p": sign_flip(differences),
        "min_p": max(2.0 ** (1 - n_runs), 1 / (2**14 + 1)),
    }


def _judged(rows: list[dict[str, object]]) -> pl.DataFrame:
    """Adjust p over rules and say what that leaves."""
    table = pl.DataFrame(rows, schema=COMPARED, infer_schema_length=None)
    table = table.with_columns(p_adjusted=adjusted(table.get_column("p").to_numpy()))
    shown = pl.col("p_adjusted") < LEVEL
    sides = pl.when(pl.col("difference") < 0).then(pl.lit(BETTER)).otherwise(pl.lit(WORSE))
    return table.with_columns(verdict=pl.when(shown).then(sides).otherwise(pl.lit(NOT_SHOWN)))
