"""Which features are signs of generalisation: runs that generalise against runs that do not, at equal step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from toposcope.extend import LEVEL, UNDETERMINED, Indices, Matrix, adjusted
from toposcope.probes import Kind
from toposcope_experiments.grokking.design import CONTROLS, TREATED
from toposcope_experiments.grokking.experiment import MeasuredRuns
from toposcope_experiments.grokking.features import FEATURES, KINDS
from toposcope_experiments.small_networks.group_difference import GroupDifference, two_groups

MAX_CONTROL_SHARE = 0.5  # a sign's change in every control is less than this share of that in the runs that generalise
MIN_TREATED = 2  # runs with true labels that must generalise
SIGN, ELSEWHERE, NOT_SHOWN = "sign of generalisation", "also without generalisation", "not shown"
RULE = (
    f"At level {LEVEL:g}, for each network by itself. The runs that generalise are those with true labels that do; a "
    "control is a condition in which no run does. The change of a feature is that from the initial weights to the "
    "first measurement at which all runs that generalise have done so, the same step for all runs. "
    f"'{SIGN}': the mean change in every control is less than half of that in the runs that generalise, or goes the "
    "other way, and the changes differ from those in every control by a permutation test over runs (the largest p over "
    f"the controls, adjusted by Holm over the features). '{ELSEWHERE}': in some control the feature changes at least "
    f"half as far in the same direction. '{NOT_SHOWN}': neither. '{UNDETERMINED}': fewer than two runs with true "
    "labels generalise, every other condition has runs that do, a value is not known, or no p of so few runs is "
    "significant."
)
DIFFERENCES: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("architecture", "feature", "kind", "control"), pl.String),
    **dict.fromkeys(("step", "n_runs", "n_control"), pl.Int64),
    **dict.fromkeys(("change", "control_change", "difference", "low", "high", "effect", "p"), pl.Float64),
}
VERDICTS: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("architecture", "feature", "kind"), pl.String),
    **dict.fromkeys(("step", "n_runs"), pl.Int64),
    **dict.fromkeys(("start", "value", "change", "p", "min_p", "p_adjusted"), pl.Float64),
    "separate_from": pl.Int64,
    **dict.fromkeys(("nearest", "verdict", "reason"), pl.String),
}


@dataclass(frozen=True, eq=False)
class Comparison:
    """The runs of an architecture that generalise, compared with those of the controls."""

    # a row for each feature and control: ``step``; ``change`` and ``control_change``, means over runs; ``difference``
    # with its 95% interval ``low`` to ``high`` (Welch), in pooled standard deviations as ``effect``, and the exact
    # permutation ``p``
    differences: pl.DataFrame
    # a row for each feature: means of the runs that generalise (``start``, ``value``, ``change``), ``p`` (the largest
    # over the controls), ``min_p`` (the smallest that so many runs allow), ``p_adjusted``, ``separate_from`` (the
    # first step from which on, until ``step``, the changes differ from every control's at the level, unadjusted),
    # ``nearest`` (the control that changes farthest in the same direction), ``verdict`` by `RULE`, and the ``reason``
    # where it is undetermined
    verdicts: pl.DataFrame
    # conditions that are no controls, because runs of them generalise: how many, of how many
    left_out: dict[str, tuple[int, int]]


def compare(measured: MeasuredRuns, kinds: Mapping[str, Kind] = KINDS) -> Comparison:
    """Compare the runs of an architecture that generalise with the controls, by `RULE`, in features of some kinds."""
    with_true_labels = measured.places(TREATED.name)
    treated = with_true_labels[np.isfinite(measured.generalised[with_true_labels])]
    controls, left_out = _controls(measured)
    reason = _reason(len(treated), len(with_true_labels), controls)
    if reason:
        rows = [
            {**dict.fromkeys(VERDICTS), **_name(measured, feature, kind), "verdict": UNDETERMINED, "reason": reason}
            for feature, kind in kinds.items()
        ]
        return Comparison(pl.DataFrame(schema=DIFFERENCES), pl.DataFrame(rows, schema=VERDICTS), left_out)
    at = int(np.flatnonzero(measured.steps == measured.generalised[treated].max())[0])
    values = np.array([measured.features[feature] for feature in kinds])
    changes = values - values[:, :1]
    tests = {name: _Test(changes[:, at, treated], changes[:, at, places]) for name, places in controls.items()}
    p = np.max([test.p for test in tests.values()], axis=0)
    p_adjusted = adjusted(p)
    separate = _separate_from(changes[:, : at + 1], treated, controls)
    least = max(test.min_p for test in tests.values())
    differences, verdicts = [], []
    for i, (feature, kind) in enumerate(kinds.items()):
        common = {**_name(measured, feature, kind), "step": int(measured.steps[at]), "n_runs": len(treated)}
        differences += [{**common, "control": name, **test.columns(i)} for name, test in tests.items()]
        means = {"start": values[i, 0, treated].mean(), "value": values[i, at, treated].mean()}
        numbers = {"p": p[i], "min_p": least, "p_adjusted": p_adjusted[i]}
        from_step = None if separate[i] is None else int(measured.steps[separate[i]])
        judged = _verdict(i, tests, p_adjusted[i], least * len(kinds))
        verdicts.append({**common, **means, **numbers, "separate_from": from_step, **judged})
    return Comparison(pl.DataFrame(differences, schema=DIFFERENCES), pl.DataFrame(verdicts, schema=VERDICTS), left_out)


def _name(measured: MeasuredRuns, feature: str, kind: Kind) -> dict[str, object]:
    return {"architecture": measured.architecture, "feature": feature, "kind": kind}


def _controls(measured: MeasuredRuns) -> tuple[dict[str, Indices], dict[str, tuple[int, int]]]:
    """Return the runs of each control, and the conditions that are none."""
    controls, left_out = {}, {}
    for condition in CONTROLS:
        places = measured.places(condition.name)
        n_generalised = int(np.isfinite(measured.generalised[places]).sum())
        if n_generalised:
            left_out[condition.name] = (n_generalised, len(places))
        elif len(places):
            controls[condition.name] = places
    return controls, left_out


def _reason(n_treated: int, n_runs: int, controls: dict[str, Indices]) -> str:
    """Say why nothing can be compared; empty if it can."""
    if n_treated < MIN_TREATED:
        return f"{n_treated} of {n_runs} runs with true labels generalised; train longer"
    if not controls:
        return "runs of every other condition generalised too"
    return ""


class _Test(GroupDifference):
    """The changes of all features in the runs that generalise against those of one control, shape (features, runs)."""

    def columns(self, i: int) -> dict[str, object]:
        """Return the columns of a feature."""
        means = {"change": self.first_mean[i], "control_change": self.second_mean[i]}
        return {"n_control": self.sizes[1], **means, **self.row(i)}

    def share(self, i: int) -> float:
        """Return how far the control changes, as a share of the change of the runs that generalise."""
        if self.first_mean[i] == 0:
            return np.inf if self.second_mean[i] else 1.0
        return float(self.second_mean[i] / self.first_mean[i])


def _verdict(i: int, tests: dict[str, _Test], p_adjusted: float, least_adjusted: float) -> dict[str, object]:
    """Judge a feature by `RULE`."""
    shares = {name: test.share(i) for name, test in tests.items()}
    change = next(iter(tests.values())).first_mean[i]
    row: dict[str, object] = {"change": change, "nearest": max(shares, key=lambda name: shares[name]), "reason": ""}
    if not np.isfinite(p_adjusted):
        return {**row, "nearest": None, "verdict": UNDETERMINED, "reason": "not known in all runs"}
    if max(shares.values()) >= MAX_CONTROL_SHARE:
        return {**row, "verdict": ELSEWHERE}
    if p_adjusted < LEVEL:
        return {**row, "verdict": SIGN}
    if least_adjusted >= LEVEL:
        return {**row, "verdict": UNDETERMINED, "reason": f"no p of so few runs is below {LEVEL:g} after adjustment"}
    return {**row, "verdict": NOT_SHOWN}


def _separate_from(changes: Matrix, treated: Indices, controls: dict[str, Indices]) -> list[int | None]:
    """Return, by feature, the first place from which on until the last the changes differ from every control's."""
    n_features, n_steps, _ = changes.shape
    flat = changes.reshape(n_features * n_steps, -1)
    p = np.max([two_groups(flat[:, treated].T, flat[:, places].T) for places in controls.values()], axis=0)
    differs = (p < LEVEL).reshape(n_features, n_steps)
    lasting = np.logical_and.accumulate(differs[:, ::-1], axis=1)[:, ::-1]
    return [int(row.argmax()) if row.any() else None for row in lasting]


def in_all_architectures(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Return a verdict for each feature: it is a sign only if it is one in every architecture."""
    result = {}
    for feature in FEATURES:
        verdicts = {c.verdicts.filter(feature=feature).item(0, "verdict") for c in comparisons}
        result[feature] = next((v for v in (ELSEWHERE, NOT_SHOWN, UNDETERMINED) if v in verdicts), SIGN)
    return result
