"""Which of several recipes wins at a larger scale, from small runs of each."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from toposcope.forecasting.downstream.predicted import Model
from toposcope.forecasting.downstream.recipes.approaches import AllScales, Approach, LawOfEach, Positions, SingleScale
from toposcope.forecasting.downstream.recipes.contest import (
    SURE,
    Contest,
    DecisionAccuracy,
    LeftOutTest,
    RecipeReport,
    SignalToNoise,
)
from toposcope.forecasting.downstream.recipes.forward import forward_test
from toposcope.forecasting.downstream.recipes.left_out import (
    CERTAIN,
    TOLERANCE,
    Correlation,
    Pairing,
    agreement_of,
    correlation,
    pairings,
)
from toposcope.forecasting.downstream.recipes.standings import QUESTIONS, UNKNOWN, Quantity, Scale, Standings, spread
from toposcope.forecasting.downstream.recipes.suite import Suite, suite_of
from toposcope.forecasting.wording import counted
from toposcope.logs.evaluations import Evaluations
from toposcope.progress import Progress, silent
from toposcope.typing import Matrix, Vector

SHORTLIST = 0.9
"""Probability that the best recipe is on the shortlist."""
MIN_RECIPES, MIN_RECIPES_TO_CHOOSE = 3, 5
"""Recipes whose order at scales left out says how often it is kept, and which approach keeps it best."""


def recipes(
    evaluations: Evaluations | str | Path,
    model: Model | None = None,
    *,
    tasks: Sequence[str] | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> RecipeReport:
    """Find which recipe (data, architecture) wins, at the largest scale measured or at a larger one.

    Parameters
    ----------
    evaluations : Evaluations, str or Path
        Of runs of two recipes or more; a path is read with `toposcope.logs.evaluations.read_evaluations`.
    model : Model, optional
        The larger scale; by default the largest one measured.
    tasks : sequence of str, optional
        Tasks with scores, or corpora; by default all tasks and their mean.
    seed : int
    progress : callable

    Returns
    -------
    RecipeReport

    Raises
    ------
    ToposcopeError
        If there is one recipe only, a task is unknown, or no scale was measured for two recipes.

    Notes
    -----
    Magnusson et al. 2025 (DataDecide), section 3, for single-scale rankings and decision accuracy; Heineman et al. 2025
    (Signal and Noise), section 3, for signal and noise. Probabilities: ``docs/methods/recipes.md``.
    """
    if not isinstance(evaluations, Evaluations):
        from toposcope.logs.evaluations import read_evaluations

        evaluations = read_evaluations(evaluations)
    suite = suite_of(evaluations, tasks)
    contests = []
    for i, quantity in enumerate(suite.targets):
        contests.append(_contest(suite, quantity, model, seed))
        progress("recipes", i + 1, len(suite.targets))
    remarks = [*suite.remarks, *(remark for contest in contests for remark in _remarks(contest))]
    if model is not None and (within := [each.scale.name for each in contests if each.model is None]):
        remarks.insert(0, f"{model.name}: no more compute than was measured; recipes are compared at {within[0]}")
    return RecipeReport(tuple(contests), tuple(dict.fromkeys(remarks)))


def _contest(suite: Suite, quantity: Quantity, model: Model | None, seed: int) -> Contest:
    standings = suite.standings[quantity]
    last, distance = standings.last, 0.0
    if model is not None:
        flops = 6 * model.N * model.D
        distance = float(np.log(flops / standings.scales[last].flops))
        if distance <= TOLERANCE:  # as small as what was measured
            last, distance, model = int(np.abs(np.log(flops / standings.flops)).argmin()), 0.0, None
    single, *others = _approaches(suite, quantity)
    paired = pairings(standings, distance, last) if model is not None else []
    tests, chosen = _tests((single, *others), standings, paired, seed)
    forward = forward_test(chosen, standings, paired or [Pairing(i, last) for i in range(last)])
    known = CERTAIN if model is None else replace(correlation(chosen, standings, paired), blur=forward.blur)
    flops = 6 * model.N * model.D if model is not None else standings.scales[last].flops
    positions = chosen.positions(last, flops)
    refusal = _refusal(standings, last, model, distance, paired)
    probability, best = _probabilities(standings, last, known, positions, seed, refused=bool(refusal))
    untested = model is not None and not forward.n
    winner, shortlist, unsupported = _winner(standings, best, tests, chosen, untested=untested)
    accuracies = tuple(_accuracies((single, *others), standings, last, seed))
    contest = Contest(
        quantity=quantity,
        standings=standings,
        scale=standings.scales[last],
        model=model,
        approach=chosen.name,
        probability=probability,
        best=best,
        winner=winner,
        shortlist=shortlist,
        refusal=refusal or unsupported,
        accuracies=accuracies,
        tests=tests,
        forward=forward,
        signals=tuple(_signals(suite, quantity)),
        ranking_scale=_ranking_scale([each for each in accuracies if each.approach == single.name]),
        deciding_flops=np.nan,
    )
    return contest if refusal else replace(contest, deciding_flops=_deciding_flops(contest, chosen, last, flops))


def _approaches(suite: Suite, quantity: Quantity) -> tuple[Approach, ...]:
    """Return the single-scale ranking first, then the others."""
    standings = suite.standings[quantity]
    proxies = (SingleScale(suite.standings[each], f"single scale, {each.name}") for each in suite.proxies(quantity))
    return (SingleScale(standings), AllScales(standings), LawOfEach(standings), *proxies)


def _refusal(standings: Standings, last: int, model: Model | None, distance: float, paired: Sequence[Pairing]) -> str:
    """Return why there can be no probabilities; empty if there can."""
    measured = int(np.isfinite(standings.values[:, last]).sum())
    if model is None:
        if standings.noise[last] in (UNKNOWN, QUESTIONS):
            return (
                f"no seeds and no last checkpoints at {standings.scales[last].name}: the noise of a run is unknown, "
                "and with it whether these differences would come again; give runs of several seeds, or evaluations of "
                "several of the last checkpoints"
            )
        return ""
    if last == 0:
        return "one scale only: nothing shows whether its order is kept at a larger one; add smaller scales"
    if measured < MIN_RECIPES:
        return f"only {measured} recipes: their order at scales left out says too little; {MIN_RECIPES} are needed"
    if not paired:
        flops = standings.flops
        return (
            f"the model takes {np.exp(distance):.3g} times the compute of the largest scale, all scales measured span "
            f"{flops[last] / flops[0]:.3g} times: no scale can be left out at that distance; add scales nearer to it"
        )
    return ""


def _probabilities(
    standings: Standings, last: int, known: Correlation, positions: Positions, seed: int, *, refused: bool
) -> tuple[Matrix, Vector]:
    """Return the probability of each recipe against each other, and of being the best; NaN where refused."""
    n = len(standings.recipes)
    if refused:
        return np.full((n, n), np.nan), np.full(n, np.nan)
    if int(np.isfinite(standings.values[:, last]).sum()) < MIN_RECIPES:
        # the spread between two recipes is not known apart from their difference
        from scipy.special import ndtr

        value, variance = standings.values[:, last], standings.variances[:, last]
        error = np.sqrt(np.maximum(variance[:, None] + variance[None, :], 1e-300))
        pairs: Matrix = ndtr((value[:, None] - value[None, :]) / error)
        told = np.isfinite(value)
        return pairs, np.where(told, np.where(np.eye(n) == 1, 1, np.nan_to_num(pairs, nan=1)).min(axis=1), np.nan)
    return known.probability(positions), known.best(positions, seed)


def _tests(
    approaches: Sequence[Approach], standings: Standings, paired: Sequence[Pairing], seed: int
) -> tuple[tuple[LeftOutTest, ...], Approach]:
    """Return how each approach did on the scales left out, and the one that probabilities are made from.

    That is the single-scale ranking, unless another one ordered more pairs with a 90% interval of the gain over
    resampled recipes that lies above 0, widened for the number of approaches.
    """
    single, chosen, most = approaches[0], approaches[0], 0.0
    tests = []
    for approach in approaches if paired else ():
        able = [each for each in paired if each.source + 1 >= approach.min_scales]
        found, base = (agreement_of(each, standings, able, seed) for each in (approach, single))
        if not found.n:
            continue
        level = 1 - 0.1 / max(len(approaches) - 1, 1)
        gain_low, gain_high = np.nanquantile(
            found.resampled - base.resampled, [(1 - level) / 2, (1 + level) / 2]
        ).tolist()
        gain = found.accuracy - base.accuracy
        tests.append(
            LeftOutTest(approach.name, len(able), found.accuracy, *found.interval(), gain, gain_low, gain_high)
        )
        enough = len(standings.recipes) >= MIN_RECIPES_TO_CHOOSE and len(able) == len(paired)
        if enough and gain_low > 0 and gain > most:
            chosen, most = approach, gain
    return tuple(tests), chosen


def _winner(
    standings: Standings, best: Vector, tests: Sequence[LeftOutTest], chosen: Approach, *, untested: bool
) -> tuple[str, tuple[str, ...], str]:
    """Return the winner, the shortlist, and why there is no winner though the probabilities would name one."""
    if not np.isfinite(best).any():
        return "", (), ""
    order = np.argsort(-np.nan_to_num(best), kind="stable")
    n = int(np.searchsorted(np.nan_to_num(best)[order].cumsum(), SHORTLIST - 1e-9)) + 1
    shortlist = tuple(standings.recipes[i] for i in order[:n])
    if best[order[0]] < SURE:
        return "", shortlist, ""
    test = next((each for each in tests if each.approach == chosen.name), None)
    if test is not None and test.low < 0.5:
        return "", shortlist, (
            f"on {counted(test.n_scales, 'scale')} left out {test.accuracy:.0%} of the pairs were ordered as measured "
            f"there (90% over recipes: {test.low:.0%} to {test.high:.0%}), which may be chance: no winner is named"
        )  # fmt: skip
    if untested:
        return "", shortlist, (
            f"{standings.recipes[order[0]]} is the best with a probability of {best[order[0]]:.0%}, but too few scales "
            "were measured to test such probabilities on pairs left out; add smaller scales"
        )  # fmt: skip
    return standings.recipes[order[0]], shortlist, ""


def _accuracies(
    approaches: Sequence[Approach], standings: Standings, last: int, seed: int
) -> Iterator[DecisionAccuracy]:
    """Yield the decision accuracy of each approach from each smaller scale."""
    for approach in approaches:
        for source in range(approach.min_scales - 1, last):
            found = agreement_of(approach, standings, [Pairing(source, last)], seed)
            if found.n:
                share = float(standings.flops[source] / standings.flops[last])
                scale = standings.scales[source]
                yield DecisionAccuracy(approach.name, scale, share, found.accuracy, *found.interval(), found.n)


def _signals(suite: Suite, quantity: Quantity) -> Iterator[SignalToNoise]:
    """Yield signal and noise of a quantity and of its proxies at every scale."""
    for each in (quantity, *suite.proxies(quantity)):
        standings = suite.standings[each]
        between, _ = spread(standings.values, standings.variances)
        for i, scale in enumerate(standings.scales):
            values = standings.values[np.isfinite(standings.values[:, i]), i]
            if len(values) > 1:
                width = float(np.ptp(values))
                noise = float(standings.deviations[i])
                yield SignalToNoise(each, scale, float(between[i]), width, noise, standings.noise[i])


def _ranking_scale(accuracies: Sequence[DecisionAccuracy]) -> Scale | None:
    """Return the smallest scale from which on single-scale rankings order `SURE` of the pairs."""
    found = None
    for each in reversed(accuracies):
        if each.accuracy < SURE:
            break
        found = each.scale
    return found


def _deciding_flops(contest: Contest, approach: Approach, last: int, flops: float) -> float:
    """Return the compute from which leader and runner-up would be told apart with probability `SURE`.

    Of scales measured where the largest of them is asked about. For a larger one, what a comparison at each distance
    below it would say if it showed the difference that the largest one shows, with its noise.
    """
    standings, (first, second) = contest.standings, contest.leaders
    x, found, blur = np.log(standings.flops[: last + 1]), float("inf"), contest.forward.blur
    if contest.model is None:
        if not contest.probability[first, second] >= SURE:
            return found
        found = float(np.exp(x[last]))
        for source in range(last - 1, -1, -1):
            paired = pairings(standings, float(x[last] - x[source]), last)
            known = replace(correlation(approach, standings, paired), blur=blur)
            if not known.probability(approach.positions(source, flops))[first, second] >= SURE:
                break
            found = float(np.exp(x[source]))
        return found
    positions = approach.positions(last, flops)
    distances = sorted({0.0, *(float(x[-1] - each) for each in x[:-1] if x[-1] - each < np.log(flops) - x[-1])})
    for distance in reversed([*distances, float(np.log(flops) - x[-1])]):
        paired = pairings(standings, distance, last)
        known = replace(correlation(approach, standings, paired), blur=blur) if distance else CERTAIN
        if known.probability(positions)[first, second] >= SURE:
            return float(flops * np.exp(-distance))
    return found


def _remarks(contest: Contest) -> Iterator[str]:
    """Yield what is not known or was left out."""
    standings = contest.standings
    last = standings.scales.index(contest.scale)
    absent = [n for n, v in zip(standings.recipes, standings.values[:, last], strict=True) if not np.isfinite(v)]
    if absent:
        yield f"not measured at {contest.scale.name}, so not ranked: {', '.join(absent[:5])}"
    if standings.noise[last] == UNKNOWN:
        yield "no seeds and no last checkpoints were evaluated: what noise does to a ranking is unknown"
    if standings.noise[last] == QUESTIONS:
        yield (
            "no seeds and no last checkpoints were evaluated: signal is set beside the error by the questions drawn, "
            "which all recipes share"
        )
    if contest.model is not None and not contest.refusal and not contest.forward.n:
        yield f"{contest.quantity.name}: too few scales to test the probabilities on pairs left out"
