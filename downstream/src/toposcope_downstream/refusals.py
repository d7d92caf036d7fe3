"""Whether a ladder predicts a score at all, and if not, why and what would help."""

from dataclasses import replace

import numpy as np

from toposcope.extend import MIN_INDEPENDENT_SPREAD, Vector, counted
from toposcope_downstream.held_out import Mask
from toposcope_downstream.ladder import LEAST_ERROR, Endpoints, Ladder, score_error

# Scores of tasks: docs/downstream.md; made ladders, and the OLMo ladder without its two targets
MIN_STANDARD_ERRORS, MIN_ABOVE_CHANCE = 3.0, 3  # by which a score must leave chance, and runs that must
MAX_RESIDUAL, MAX_RESIDUAL_SHARE = 3.0, 0.1  # of a law, in noise and in the range of scores: the runs disagree
MAX_REACH = 2.0  # how far beyond the ladder's compute: so many times what sizes and tokens span, in logarithms
MAX_WIDTH = 0.5  # of an interval, in what is left above chance
MIN_PLATEAU_RISE = 10.0  # deviations of a plateau by which the best score shows that it is chance

MIN_MODELS, MIN_SIZES = 5, 3  # runs of a ladder, and sizes where the model is much larger than all
REACH_OF_FEW_SIZES = 4.0  # how many times the largest size the model may have if there are fewer
SAME_RATIO = 1.5  # where N, D or their ratio is the same at all runs: how far that of the model may be from it


def chance_of(ladder: Ladder) -> float | None:
    """Return the score of guessing: what is stated, else that of a clear plateau at little compute, else None.

    The evaluations of the least third of compute, along all runs, are such a plateau if they have no trend and the best
    score lies ten of their standard deviations above them.
    """
    if ladder.target.chance is not None or not ladder.models:
        return ladder.target.chance
    compute = np.concatenate([model.N * model.D for model in ladder.models])
    score = np.concatenate([model.score for model in ladder.models])
    known = np.isfinite(score)
    compute, score = compute[known], score[known]
    least = score[np.argsort(compute, kind="stable")][: int(1 / 3 * len(score))]
    if len(least) < 4 or score.max() < least.mean() + MIN_PLATEAU_RISE * max(float(least.std()), LEAST_ERROR):
        return None
    slope, error = _slope(np.arange(len(least), dtype=np.float64), least)
    return None if abs(slope) > 2 * error else float(least.mean())


def refusal_of_ladder(ladder: Ladder, points: Endpoints, chance: float | None) -> str:
    """Return why the ladder predicts no score of any model; empty if it does."""
    if ladder.target.lower_is_better:
        return f"{ladder.target.name} is in {ladder.target.unit}, not a share of right answers"
    if not len(points):
        return "no run has a score at its end"
    if outside := [run for run, score in zip(points.run, points.score, strict=True) if not 0 <= score <= 1]:
        return f"the score of {outside[0]} is not a share from 0 to 1; divide percentages by 100"
    if chance is None:
        return (
            "chance is unknown and the ladder has no plateau that shows it; state the score of guessing, "
            f"--chance {ladder.target.name}=SHARE"
        )
    if len(points) < MIN_MODELS:
        more = MIN_MODELS - len(points)
        return f"only {counted(len(points), 'run')}; at least {MIN_MODELS} are needed: {more} more, best of other sizes"
    if reason := _falling(points, ladder.target.n):
        return reason
    return _at_chance(points, chance, ladder.target.n)


def refusal_of_model(points: Endpoints, N: float, D: float) -> str:
    """Return why the ladder predicts no model of such size and length; empty if it does."""
    sizes = len(np.unique(np.round(np.log(points.N), 2)))
    if sizes < MIN_SIZES and REACH_OF_FEW_SIZES * points.N.max() < N:
        return (
            f"the runs have {counted(sizes, 'size')}, and the model is "
            f"{N / points.N.max():.1f} times the largest; at least {MIN_SIZES} sizes are needed beyond "
            f"{REACH_OF_FEW_SIZES:.0f} times"
        )
    x, y = np.log(points.N), np.log(points.D)
    span, beyond = float(np.ptp(x) + np.ptp(y)), float(np.log(N * D / (points.N * points.D).max()))
    if beyond > MAX_REACH * span:
        return (
            f"the model has {np.exp(beyond):.2g} times the compute of the largest run, and sizes and tokens of the "
            f"ladder span a factor of {np.exp(span):,.0f} together; nothing is predicted beyond the square of that: "
            "larger runs are needed"
        )
    if not _varies(y - y.mean(), y):
        return _apart("every run saw about the same tokens", D, float(np.exp(y.mean())), "tokens", "other lengths")
    if not _varies(x - x.mean(), x):
        return _apart("every run has about the same size", N, float(np.exp(x.mean())), "parameters", "other sizes")
    slope = float((x - x.mean()) @ (y - y.mean()) / ((x - x.mean()) @ (x - x.mean())))
    if _varies(y - y.mean() - slope * (x - x.mean()), y):
        return ""
    expected = float(np.exp(y.mean() + slope * (np.log(N) - x.mean())))
    why = (
        f"tokens grow as N^{slope:.2f} at every run, so that what parameters and what tokens bring cannot be separated"
    )
    return _apart(why, D, expected, "tokens", "another length at the same size")


def refusal_of_fit(points: Endpoints, residuals: Vector, n: int | None) -> str:
    """Return why the runs disagree with any law; empty if they agree within their noise."""
    misfit = float(np.sqrt(np.mean(residuals**2)))
    of_scores = replace(points, scatter=0.0)  # which is what is judged here
    noise = _noise(float(points.score.mean()), of_scores, n)
    if misfit <= MAX_RESIDUAL * noise or misfit <= MAX_RESIDUAL_SHARE * float(np.ptp(points.score)):
        return ""
    worst = points.run[int(np.argmax(np.abs(residuals)))]
    return (
        f"the runs disagree beyond their noise: they lie {100 * misfit:.1f} points from a common law, where "
        f"noise explains {100 * noise:.1f} ({worst} is farthest); are they of one recipe?"
    )


def refusal_of_width(low: float, high: float, chance: float) -> str:
    """Return why an interval says too little; empty if it does not."""
    if high - low <= MAX_WIDTH * (1 - chance):
        return ""
    return (
        f"the 90% interval, {100 * low:.0f}% to {100 * high:.0f}%, is most of what is possible; runs nearer to the "
        "model would help"
    )


def above_chance(points: Endpoints, chance: float, n: int | None) -> Mask:
    """Return which runs have left chance."""
    return np.asarray(points.score - chance >= MIN_STANDARD_ERRORS * _noise(chance, points, n))


def leaves_chance(points: Endpoints, trained: Mask, chance: float, n: int | None) -> bool:
    """Return whether enough of some runs have left chance: others show neither a law nor a link."""
    return int(above_chance(points, chance, n)[trained].sum()) >= MIN_ABOVE_CHANCE


def _noise(score: float, points: Endpoints, n: int | None) -> float:
    return max(score_error(score, points, n), LEAST_ERROR)


def _at_chance(points: Endpoints, chance: float, n: int | None) -> str:
    error, leaving = _noise(chance, points, n), int(above_chance(points, chance, n).sum())
    best = int(np.argmax(points.score))
    if not leaving:
        return (
            f"the ladder never leaves chance ({100 * chance:.1f}%) by {MIN_STANDARD_ERRORS:.0f} standard errors "
            f"of {100 * error:.1f} points: its best score is {100 * points.score[best]:.1f}% ({points.run[best]}); "
            "larger runs or more questions would help"
        )
    if leaving < MIN_ABOVE_CHANCE:
        return (
            f"only {counted(leaving, 'run')} leave{'s' if leaving == 1 else ''} chance ({100 * chance:.1f}%) by "
            f"{MIN_STANDARD_ERRORS:.0f} standard errors of {100 * error:.1f} points; at least "
            f"{MIN_ABOVE_CHANCE} are needed: larger runs or more questions would help"
        )
    return ""


def _falling(points: Endpoints, n: int | None) -> str:
    """Return a refusal if scores fall with compute."""
    slope, error = _slope(np.log(points.compute), points.score)
    fall = slope * float(np.ptp(np.log(points.compute)))
    noise = _noise(float(points.score.mean()), points, n)
    if slope > -MIN_STANDARD_ERRORS * error or -fall < MIN_STANDARD_ERRORS * noise:
        return ""
    return f"the score falls with scale, by {-100 * fall:.1f} points along the ladder; no law of rising scores holds"


def _slope(x: Vector, y: Vector) -> tuple[float, float]:
    """Return a least-squares slope and its standard error."""
    centred = x - x.mean()
    squares = float(centred @ centred)
    if squares == 0 or len(x) < 3:
        return 0.0, np.inf
    slope = float(centred @ y) / squares
    residual = y - y.mean() - slope * centred
    return slope, float(np.sqrt(residual @ residual / (len(x) - 2) / squares))


def _varies(deviations: Vector, of: Vector) -> bool:
    """Return whether deviations of logarithms are more than rounding, of sizes or of the lengths of trainings."""
    return float(np.std(deviations)) > max(MIN_INDEPENDENT_SPREAD * float(np.std(of)), float(np.log(SAME_RATIO)) / 4)


def _apart(why: str, value: float, expected: float, unit: str, more: str) -> str:
    """Return a refusal if a value is not the one that all runs have."""
    if abs(np.log(value / expected)) <= np.log(SAME_RATIO):
        return ""
    return f"{why}: {value:.3g} {unit} are not near {expected:.3g}; add runs of {more}"
