"""The tables of the trial: each precursor against the loss, by kind of trouble, by layer, and the published rules."""

from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import polars as pl

from toposcope.extend import LEVEL, Vector, adjusted, sign_flip
from toposcope_experiments.early_warnings.published_rules import RULES
from toposcope_experiments.early_warnings.referee import (
    AFTER,
    BEFORE,
    LOSS,
    MATRIX_NORM,
    Interval,
    Trial,
    mean_interval,
    median_interval,
    poisson_interval,
    resample,
    seldom,
    warning,
)
from toposcope_experiments.early_warnings.trials import (
    AT_CADENCE,
    GRADIENT,
    H0_TOTAL,
    IN_SOME,
    LEADS,
    NOT_SHOWN,
    UNDETERMINED,
    EarlyWarningData,
)

MIN_RUNS = 6  # held-out troubled runs below which nothing is said
PER = 100_000  # steps
UNKNOWN = Interval(np.nan, np.nan, np.nan)


def _performance(trial: Trial) -> dict[str, Any]:
    """Return what a trial shows by itself: warnings, and false alarms."""
    low, high = poisson_interval(trial.false_alarms)
    kinds = tuple(each.run.kind for each in trial.reactions.values())
    per = PER / trial.quiet_steps if trial.quiet_steps else np.nan
    row: dict[str, Any] = {
        "runs": len(trial.reactions), "kinds": len(set(kinds)),
        "false_alarms": trial.false_alarms, "quiet_steps": trial.quiet_steps, "rate": trial.false_alarms * per,
        "rate_low": low * per, "rate_high": high * per, "noticed": trial.noticed[0], "silent": trial.noticed[1],
        "followed": trial.followed[0], "alarmed": trial.followed[1],
        "cost": trial.cost, "above": trial.steps_above / max(1, trial.quiet_steps),
    }  # fmt: skip
    if not trial.reactions:
        return {**row, **_columns("warned"), **_columns("lead"), **_columns("steps"), "by_chance": np.nan}
    weights, reactions = resample(kinds), list(trial.reactions.values())
    at = np.array([each.at for each in reactions], np.float64)
    steps = warning(at)
    warned = mean_interval((steps > 0).astype(np.float64), weights)
    chance = np.array([np.mean(warning(each.by_chance) > 0) for each in reactions])
    row["by_chance"] = float(weights[0] @ chance)
    row |= _columns("warned", warned) | _columns("steps", mean_interval(steps, weights))
    return row | _columns("lead", median_interval(-at, weights, steps > 0))


def _columns(name: str, interval: Interval = UNKNOWN) -> dict[str, float]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def precursor_table(data: EarlyWarningData) -> pl.DataFrame:
    """Return a row for each quantity, that which saves most first, the loss at the end."""
    rows = _judged(data, data.trials)
    of = {row["precursor"]: row["verdict"] for row in [*rows, *_judged(data, data.controls)]}
    for row in rows:  # what the gradient norm loses by being looked at as rarely, another quantity may lose too
        rare = of.get(seldom(GRADIENT, data.cadences.get(row["precursor"], 1)))
        if row["verdict"] == rare == NOT_SHOWN and of.get(GRADIENT) in (LEADS, IN_SOME):
            row["verdict"] = AT_CADENCE
    rows.sort(key=lambda row: (row["precursor"] == LOSS, -np.nan_to_num(row["gained"], nan=-BEFORE)))
    return pl.DataFrame(rows, infer_schema_length=None)


def _judged(data: EarlyWarningData, trials: Mapping[str, Trial]) -> list[dict[str, Any]]:
    rows = [_precursor_row(data, name, trial) for name, trial in trials.items()]
    p = adjusted(np.array([row["p"] for row in rows], np.float64))
    for row, value in zip(rows, p, strict=True):
        row["p_adjusted"] = value
        row["verdict"] = _verdict(row, trials[row["precursor"]])
    return rows


def _precursor_row(data: EarlyWarningData, name: str, trial: Trial) -> dict[str, Any]:
    row = {"precursor": name, **_performance(trial)}
    row |= {"choice_1": "", "choice_2": ""} | {f"choice_{k}": str(fold.choice) for k, fold in enumerate(trial.folds, 1)}
    row |= {**dict.fromkeys(("ahead", "behind"), np.nan), **_columns("over_loss"), **_columns("gained")}
    row |= {**dict.fromkeys(("warned_by_both", "p"), np.nan), "led_kinds": ""}
    gained = data.gained(name)
    if name == LOSS or not gained:
        return row
    own, loss = trial.reactions, data.trials[LOSS].reactions
    kinds = tuple(own[run].run.kind for run in gained)
    weights, steps = resample(kinds), np.array(list(gained.values()))
    lead = np.array([loss[run].at - own[run].at for run in gained], np.float64)
    both = np.array([own[run].at < AFTER and loss[run].at < AFTER for run in gained])
    either = warning([min(own[run].at_half, loss[run].at_half) for run in gained])
    row["warned_by_both"] = float(weights[0] @ (either > 0))
    ahead = {"ahead": weights[0] @ (lead > 0), "behind": weights[0] @ (lead < 0)}
    row |= ahead | _columns("over_loss", median_interval(lead, weights, both))
    row |= _columns("gained", mean_interval(steps, weights))
    signs = np.sign(steps) * weights[0]  # a chance alarm long before the onset is no more than one run
    p = sign_flip(signs) if signs.any() else 1.0
    row["p"] = p / 2 if signs.sum() > 0 else 1 - p / 2
    reached = np.sign(data.gained_by_chance(name)) @ weights[0] >= signs.sum() - 1e-12
    row["p"] = max(row["p"], (1 + reached.sum()) / (1 + len(reached)))
    row["led_kinds"] = ", ".join(sorted(kind for kind in set(kinds) if _led(steps, kinds, kind)))
    return row


def _led(gained: Vector, kinds: tuple[str, ...], kind: str) -> bool:
    """Return whether most runs of a kind gain, and they do on average."""
    own = gained[np.array(kinds) == kind]
    return bool((own > 0).mean() > 0.5 and own.mean() > 0)


def _verdict(row: Mapping[str, Any], trial: Trial) -> str:
    """Judge by the rule that the page states."""
    if row["precursor"] == LOSS:
        return ""
    if not trial.rate_can_be_set or row["runs"] < MIN_RUNS or not np.isfinite(row["p"]):
        return UNDETERMINED
    if row["p_adjusted"] < LEVEL and row["gained"] > 0:
        return LEADS if row["gained_low"] > 0 else IN_SOME
    return NOT_SHOWN


RULE = (
    "A warning is an alarm 5 or more steps before the onset; its steps are those to it, at most 200, and none where "
    "the alarm comes later or never. A quantity leads the loss if watching it next to the loss, each at half of the "
    "rate of false alarms, gains steps of warning over the loss alone at the whole rate: in more runs than it "
    "loses any, kinds counting alike (sign flips of runs), and in more than with the alarms of quiet runs of the "
    "same model at the same steps (drawn for each run). The larger p of the two, one-sided, is below .05 after "
    "Holm over the quantities, and the 95% interval of the mean gain is above 0, kinds drawn anew and runs within "
    "them. If that interval includes 0 it leads in some kinds, which are named: those in which most runs gain. "
    "Measured so rarely: the gradient norm leads when seen at every step, and is not shown to when seen as rarely "
    f"as this quantity. Cannot be told: fewer than {MIN_RUNS} held-out runs, or fewer than 200,000 steps in a half "
    "of the quiet runs."
)


GROUPS = {"kind": "kind of trouble", "seen": "what the loss shows", "shape": "model"}


def group_table(data: EarlyWarningData) -> pl.DataFrame:
    """Return how often, how early and where each quantity warns, and how often first of all, in each group of runs."""
    rows: list[dict[str, Any]] = []
    everything = {run for trial in data.trials.values() for run in trial.reactions}
    first = {run: min(t.reactions[run].at for t in data.trials.values() if run in t.reactions) for run in everything}
    for by, (name, trial) in product(GROUPS, data.trials.items()):
        gained = data.gained(name)
        for group in sorted({getattr(each.run, by) for each in trial.reactions.values()}):
            own = {run: each for run, each in trial.reactions.items() if getattr(each.run, by) == group}
            at = np.array([each.at for each in own.values()], np.float64)
            warned = warning(at) > 0
            places = Counter(each.place for each in own.values() if each.place)
            rows.append({
                "by": by, "group": group, "precursor": name, "runs": len(own), "warned": float(warned.mean()),
                "lead": float(np.median(-at[warned])) if warned.any() else np.nan,
                "gained": float(np.mean([gained.get(run, np.nan) for run in own])),
                "first": float(np.mean([each.at < AFTER and each.at == first[run] for run, each in own.items()])),
                "place": min(places, key=lambda place: (-places[place], place), default=""),
            })  # fmt: skip
    order = list(GROUPS)
    rows.sort(key=lambda row: (order.index(row["by"]), row["group"], -np.nan_to_num(row["gained"], nan=-BEFORE)))
    return pl.DataFrame(rows, infer_schema_length=None)


def layer_table(data: EarlyWarningData) -> pl.DataFrame:
    """Return how often each layer of a quantity is the one furthest from its level at the first alarm."""
    rows = []
    for name, trial in data.trials.items():
        alarmed = [each for each in trial.reactions.values() if each.place and len(each.run.places[name]) > 1]
        places = Counter(each.place for each in alarmed)
        for place, count in places.most_common():
            at = float(np.median([each.at for each in alarmed if each.place == place]))
            rows.append((name, place, count, count / len(alarmed), at))
    schema = {"precursor": pl.String, "place": pl.String, "runs": pl.Int64, "share": pl.Float64, "at": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def rule_table(data: EarlyWarningData) -> pl.DataFrame:
    """Return two rows for each published rule: at its own threshold, and at the one rate of false alarms."""
    rows = []
    for rule in RULES:
        for at, threshold in (("as published", rule.threshold), ("one in 100,000", None)):
            trial = data.published(rule.name, threshold)
            if trial.folds:
                limits = [max(fold.threshold, rule.threshold) for fold in trial.folds]
                rows.append({
                    "rule": rule.name, "source": rule.source, "at": at, "threshold": float(np.mean(limits)),
                    **_performance(trial),
                })  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def cadence_table(data: EarlyWarningData) -> pl.DataFrame:
    """Return what is measured rarely, alone, against the loss and the gradient norm looked at as rarely, alone."""
    rows = []
    for name, (of, trial) in product(data.trials, data.controls.items()):
        against = (LOSS, GRADIENT, *[MATRIX_NORM] * (name == H0_TOTAL))
        if of not in [seldom(each, data.cadences.get(name, 1)) for each in against]:
            continue
        own = data.trials[name].reactions
        runs = [run for run in own if run in trial.reactions]
        if runs:
            weights = resample(tuple(own[run].run.kind for run in runs))
            at, other = (np.array([each[run].at for run in runs], np.float64) for each in (own, trial.reactions))
            rows.append({
                "precursor": name, "control": of, "runs": len(runs), "ahead": float(weights[0] @ (at < other)),
                "behind": float(weights[0] @ (at > other)), "warned": float(weights[0] @ (warning(at) > 0)),
                "warned_control": float(weights[0] @ (warning(other) > 0)),
                **_columns("gained", mean_interval(warning(at) - warning(other), weights)),
            })  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def together_table(data: EarlyWarningData) -> pl.DataFrame:
    """Return what the loss and all that leads it do together at one shared rate, in one row; none if nothing leads."""
    joint = data.together
    if joint is None:
        return pl.DataFrame()
    loss = data.trials[LOSS].reactions
    runs = [run for run in joint.at if run in loss]
    weights = resample(tuple(loss[run].run.kind for run in runs))
    at, alone = (np.array(each, np.float64) for each in zip(*((joint.at[r], loss[r].at) for r in runs), strict=True))
    low, high = (each * PER / joint.quiet_steps for each in poisson_interval(joint.false_alarms))
    return pl.DataFrame([{
        "alerts": ", ".join(joint.names), "runs": len(runs), "rate": joint.false_alarms * PER / joint.quiet_steps,
        "rate_low": low, "rate_high": high, "warned": float(weights[0] @ (warning(at) > 0)),
        "warned_by_loss": float(weights[0] @ (warning(alone) > 0)),
        **_columns("gained", mean_interval(warning(at) - warning(alone), weights)),
    }])  # fmt: skip


def lead_table(data: EarlyWarningData) -> pl.DataFrame:
    """Return a row for each held-out run and quantity: its first alarm, and that of the loss, from the onset."""
    loss = data.trials[LOSS].reactions
    rows = [
        {"precursor": name, "run": run, "kind": each.run.kind, "onset": each.run.onset, "alarm": each.at,
         "loss_alarm": loss[run].at, "place": each.place}
        for name, trial in data.trials.items() for run, each in trial.reactions.items() if run in loss
    ]  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)
