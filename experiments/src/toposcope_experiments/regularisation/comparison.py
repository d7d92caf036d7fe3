"""Whether neural persistence orders conditions as published, and whether plain quantities order them as well."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from toposcope.extend import LEVEL, UNDETERMINED, Indices, Matrix, Vector, adjusted
from toposcope_experiments.regularisation.design import CONTRASTS, HIGHER, Contrast
from toposcope_experiments.regularisation.experiment import MeasuredRuns
from toposcope_experiments.regularisation.features import CONTROLS_OF, FEATURES, KINDS, TESTED
from toposcope_experiments.regularisation.training import TEST_ACCURACY, TRAIN_LOSS
from toposcope_experiments.small_networks.group_difference import GroupDifference

SEPARATOR = "; "  # between the controls that differ
AT_STEP, AT_LOSS = "equal step", "equal training loss"
VIEWS = (AT_STEP, AT_LOSS)
LEAST_LOSS = 1e-12  # training losses below it count as equal to it; the logarithm is taken
COMPARED = (*FEATURES, TEST_ACCURACY)
AS_PUBLISHED, AS_PUBLISHED_TOO = "as published", "as published, and controls order them as well"
DIFFERENT, DIFFERENT_TOO = "different", "different, and controls differ as well"
AGAINST, NOT_SHOWN = "against", "not shown"
SHOWN = {(True, False): AS_PUBLISHED, (True, True): AS_PUBLISHED_TOO, (False, False): DIFFERENT}
SHOWN |= {(False, True): DIFFERENT_TOO}
ALL_SHOWN = (*SHOWN.values(), AGAINST)  # verdicts by which there is a difference
RULE = (
    f"At level {LEVEL:g}, for each pair of conditions, at equal step (the last) and at equal training loss (the lowest "
    "that all runs of both conditions reach; features are interpolated in its logarithm). A difference between the "
    "means over runs is shown if its permutation p, adjusted by Holm over all pairs, both views and the three measures "
    f"of neural persistence, is below the level. '{AS_PUBLISHED}', or '{AGAINST}': shown, in the published direction, "
    f"or the other. '{DIFFERENT}': shown, where no direction is published. '... and controls ... as well': the same "
    "runs differ, by a p below the level that is adjusted over these controls alone, in the neural persistence of "
    "permuted weights, in the same direction, or in the weight norm, the largest weight, the spectral norm or the "
    f"stable rank, in either; then nothing shows that structure makes the difference. '{NOT_SHOWN}': the adjusted p is "
    "not below the level. "
    f"'{UNDETERMINED}': the conditions have no common training loss, a value is not known, or no p of so few runs is "
    "significant."
)
PAIR: dict[str, type[pl.DataType]] = dict.fromkeys(("condition", "beside", "view", "feature", "kind"), pl.String)
NUMBERS = ("mean", "beside_mean", "difference", "low", "high", "effect", "p")
DIFFERENCES: dict[str, type[pl.DataType]] = {
    **PAIR,
    "at": pl.Float64,
    **dict.fromkeys(("n_runs", "n_beside"), pl.Int64),
    **dict.fromkeys(NUMBERS, pl.Float64),
}
VERDICTS: dict[str, type[pl.DataType]] = {
    **PAIR,
    "published": pl.String,
    **dict.fromkeys((*NUMBERS, "p_adjusted"), pl.Float64),
    **dict.fromkeys(("controls", "verdict", "reason"), pl.String),
}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Pairs of conditions compared."""

    # a row for each pair, view and quantity: ``at``, the step or the training loss; means over runs, ``mean`` and
    # ``beside_mean``; their ``difference`` with its 95% interval ``low`` to ``high`` (Welch), in pooled standard
    # deviations as ``effect``; and the permutation ``p``
    differences: pl.DataFrame
    # a row for each pair, view and measure of neural persistence: the same numbers, ``published`` (the direction),
    # ``p_adjusted``, ``controls`` that differ as well, ``verdict`` by `RULE`, and the ``reason`` where it is
    # undetermined
    verdicts: pl.DataFrame


def compare(measured: MeasuredRuns, contrasts: Sequence[Contrast] = CONTRASTS) -> Comparison:
    """Compare the conditions that have runs, by `RULE`."""
    present = measured.conditions
    rows: list[dict[str, object]] = []
    verdicts: list[dict[str, object]] = []
    least: list[float] = []
    for contrast in contrasts:
        if contrast.condition not in present or contrast.beside not in present:
            continue
        groups = measured.places(contrast.condition), measured.places(contrast.beside)
        for view in VIEWS:
            pair = {"condition": contrast.condition.name, "beside": contrast.beside.name, "view": view}
            at, values = _values(measured, groups, view)
            test = None if values is None else GroupDifference(*values)
            numbers = {} if test is None else _numbers(test)
            rows += [
                {**pair, **_feature(name), "at": at, "n_runs": len(groups[0]), "n_beside": len(groups[1]), **found}
                for name, found in numbers.items()
            ]
            verdicts += [
                {**pair, **_feature(name), "published": contrast.published, **_judged_alone(name, numbers)}
                for name in TESTED
            ]
            least += [1.0 if test is None else test.min_p] * len(TESTED)
    p_adjusted = adjusted(np.array([row.get("p", np.nan) for row in verdicts], dtype=np.float64))
    for row, p, min_p in zip(verdicts, p_adjusted, least, strict=True):
        row |= {"p_adjusted": p, **_verdict(row, float(p), min_p * len(verdicts))}
    return Comparison(pl.DataFrame(rows, schema=DIFFERENCES), pl.DataFrame(verdicts, schema=VERDICTS))


def _feature(name: str) -> dict[str, str]:
    return {"feature": name, "kind": KINDS.get(name, "accuracy")}


def _values(
    measured: MeasuredRuns, groups: tuple[Indices, Indices], view: str
) -> tuple[float | None, tuple[Matrix, Matrix] | None]:
    """Return the step or training loss at which two groups are compared, and all quantities of their runs there."""
    courses = np.array([measured.values[name] for name in COMPARED])
    if view == AT_STEP:
        return float(measured.steps[-1]), (courses[:, -1, groups[0]], courses[:, -1, groups[1]])
    losses = measured.values[TRAIN_LOSS]
    level = common_loss(losses[:, np.concatenate(groups)])
    if level is None:
        return None, None
    first, second = (np.array([at_loss(c[:, g], losses[:, g], level) for c in courses]) for g in groups)
    return level, (first, second)


def common_loss(losses: Matrix) -> float | None:
    """Return the lowest training loss that all runs reach, shape (t, runs); None if some run begins below it."""
    if not np.isfinite(losses).all():
        return None
    level = float(losses.min(axis=0).max())
    return level if level < losses[0].min() else None


def at_loss(values: Matrix, losses: Matrix, level: float) -> Vector:
    """Return the values of runs where each first reaches a training loss, linear in its logarithm in between."""
    logs, there = np.log(np.maximum(losses, LEAST_LOSS)), np.log(max(level, LEAST_LOSS))
    after = (losses <= level).argmax(axis=0)
    runs = np.arange(losses.shape[1])
    span = logs[after - 1, runs] - logs[after, runs]
    weight = np.divide(logs[after - 1, runs] - there, span, out=np.ones(len(runs)), where=span > 0)
    return np.asarray((1 - weight) * values[after - 1, runs] + weight * values[after, runs])


def _numbers(test: GroupDifference) -> dict[str, dict[str, float]]:
    """Return the numbers of each quantity."""
    return {
        name: {"mean": float(test.first_mean[i]), "beside_mean": float(test.second_mean[i]), **test.row(i)}
        for i, name in enumerate(COMPARED)
    }


def _judged_alone(feature: str, numbers: Mapping[str, Mapping[str, float]]) -> dict[str, object]:
    """Return the numbers of a feature, and which controls differ as well."""
    if not numbers:
        return {"controls": ""}
    difference, controls = numbers[feature]["difference"], CONTROLS_OF[feature]
    names = (*controls.same_sign, *controls.either_sign)
    p = dict(zip(names, adjusted(np.array([numbers[name]["p"] for name in names])), strict=True))
    other_way = {name for name in controls.same_sign if numbers[name]["difference"] * difference < 0}
    differing = [name for name in names if p[name] < LEVEL and name not in other_way]
    return {**numbers[feature], "controls": SEPARATOR.join(differing)}


def _verdict(row: Mapping[str, object], p_adjusted: float, least: float) -> dict[str, str]:
    """Judge a row by `RULE`."""
    if "p" not in row:
        return {"verdict": UNDETERMINED, "reason": "the conditions have no common training loss"}
    if not np.isfinite(p_adjusted):
        return {"verdict": UNDETERMINED, "reason": "not known in all runs"}
    if p_adjusted < LEVEL:
        rises = float(str(row["difference"])) > 0
        if row["published"] and rises != (row["published"] == HIGHER):
            return {"verdict": AGAINST, "reason": ""}
        return {"verdict": SHOWN[bool(row["published"]), bool(row["controls"])], "reason": ""}
    if least >= LEVEL:
        return {"verdict": UNDETERMINED, "reason": f"no p of so few runs is below {LEVEL:g} after adjustment"}
    return {"verdict": NOT_SHOWN, "reason": ""}
