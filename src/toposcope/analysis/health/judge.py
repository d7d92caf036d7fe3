"""Whether a run is healthy: the one place that decides it. Pure: from what is known of the run alone."""

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from toposcope.analysis.health import check as words
from toposcope.analysis.health.check import BAD, GOOD, OPEN, WORDS, Check, Health
from toposcope.analysis.health.course import (
    FALLS,
    MIN_FALL_ERRORS,
    MIN_LEARNED_FALL,
    MIN_ROWS,
    RISES,
    STALLS,
    Course,
    course,
    fall_since_start,
    stalled_since,
)
from toposcope.analysis.health.evaluations import evaluations
from toposcope.analysis.health.levels import Levels, Rise, levels, thinned
from toposcope.analysis.health.monitored import monitored_checks, row_seconds, silence
from toposcope.logs import Run
from toposcope.logs.schedules.departures import departures
from toposcope.logs.schedules.logged import known_rates
from toposcope.logs.schedules.recognised import Plan
from toposcope.logs.table import ByStep
from toposcope.logs.watched import FAILED
from toposcope.typing import Vector
from toposcope.wording import capitalised, counted, joined, loss_words, sentence

STOP = "A reason to stop, unless the learning rate is about to change."
HIDDEN = "hidden"  # of a check that does not know whether the loss falls
MIN_SINCE_BEST = 3  # evaluations above the best from which that is said
MAX_BLOCKS = 40  # of a training loss, whose means are compared as evaluations are: its rows are noisier
MAX_RATE_RISE = 1.02  # factor by which the learning rate may lie above that at the lowest loss, and not explain a rise


def health(run: Run, now: float | None = None, plan: Plan | None = None) -> Health:
    """Return whether a run is healthy: a word, the reason, and the checks that it rests on.

    ``docs/methods/health.md`` has the rules.

    Parameters
    ----------
    run : Run
        As far as it is known; ``last_step`` is its plan, ``watched`` what a monitor stored of it.
    now : float, optional
        The time in seconds since 1970, for a run in training that may be silent.
    plan : callable, optional
        The declared learning rate at any steps: where the log keeps to it, its rises are no fault.
    """
    checks = [*_loss_checks(run), *_rate_check(run, plan), *monitored_checks(run), *_finite_check(run)]
    if run.diverged is not None:
        reason = f"at step {run.diverged.step:,}: {run.diverged.reason}"
        return Health(words.DIVERGED, sentence(reason), "", [Check(BAD, f"Diverged {reason}", words.DIVERGED), *checks])
    if run.failed or (run.watched is not None and run.watched.status == FAILED):
        reason = f"training ended with an error at {run.axis} {run.last_seen:,}"
        return Health(words.FAILED, sentence(f"{reason}: {run.failed}" if run.failed else reason), "", checks)
    bad = sorted((check for check in checks if check.mark == BAD), key=lambda check: WORDS.index(check.word))
    if run.is_complete:
        # a run may end when it has nothing left to learn
        stood = next((check for check in bad if check.word != words.STALLED), None)
        if stood is None:
            return Health(words.FINISHED, checks=checks)
        return Health(words.FINISHED, sentence(stood.text), stood.detail, checks, kept=stood.word)
    # where the time of a row is unknown, what its losses show is surer
    if now is not None and (row_seconds(run) or not bad) and (silent := silence(run, now)):
        return Health(words.SILENT, silent, "Training may have been stopped, or it evaluates.", checks)
    if bad:
        others = [word[0].lower() + word[1:] for word in dict.fromkeys(c.word for c in bad) if word != bad[0].word]
        more = f"; also {joined(others)}" if others else ""
        return Health(bad[0].word, sentence(f"{bad[0].text}{more}"), bad[0].detail, checks)
    if run.need_not_fall:
        return Health(words.UNJUDGED, sentence(f"its loss need not fall: {run.need_not_fall}"), "", checks)
    if not any(check.word == FALLS for check in checks):
        return Health(words.EARLY, _why_early(run, checks), "", checks)
    return Health(words.HEALTHY, checks=checks)


def _why_early(run: Run, checks: list[Check]) -> str:
    """Return why nothing is said of a run against which nothing stands: it is not known to learn."""
    hidden = next((check.text for check in checks if check.word == HIDDEN), None)
    if hidden is not None:
        return sentence(hidden)
    if run.is_warming_up:
        return "The learning rate still warms up."
    n = max(len(rows.steps) for rows in (run.training, run.validation) if rows is not None)
    if n >= MIN_ROWS:
        return "Too few of its losses lie in the second quarter of its steps, or in the last, to say whether they fall."
    return f"The checks need {MIN_ROWS} logged losses; {n} so far."


def _loss_checks(run: Run) -> Iterator[Check]:
    """Yield whether the loss rose suddenly, still falls, and whether the validation loss is past its best."""
    training, validation = run.training, run.validation
    if run.need_not_fall:
        return
    past_best = None if validation is None else _evaluation_check(validation, training)
    rows = training if training is not None and len(training.steps) >= MIN_ROWS else validation or training
    is_past_best = past_best is not None and past_best.mark == BAD
    if rows is not None and not (is_past_best and rows is validation):
        loss_levels = levels(*rows, _rates(run, rows))
        yield from () if loss_levels is None else (_level_check(loss_levels, run),)
    if past_best is not None:
        yield past_best
    if not is_past_best and run.diverged is None and not run.is_warming_up:
        yield from _course_check(run, training, validation)


def _rates(run: Run, rows: ByStep) -> Vector | None:
    """Return the learning rate at the rows of a loss; None where none was logged."""
    known = np.isfinite(run.learning_rate)
    return np.interp(rows.steps, run.steps[known], run.learning_rate[known]) if known.any() else None


def _level_check(loss_levels: Levels, run: Run) -> Check:
    """Return the worst rise that stands, else that there is none that would have been seen."""
    check = partial(Check, power=loss_levels.power, first=loss_levels.first, last=loss_levels.last, looks=loss_levels.n)
    n_planned = loss_levels.n * (run.last_step or 0) / max(run.last_seen, 1)
    standing = [rise for rise in loss_levels.rises if loss_levels.standing(rise, n_planned)]
    if standing:
        worst = max(standing, key=lambda rise: (rise.from_start, not rise.is_back, rise.level / rise.before))
        word, text = _rise_words(worst)
        return check(BAD, text, word)
    if loss_levels.rises:
        last, n = loss_levels.rises[-1], counted(len(loss_levels.rises), "sudden rise")
        return check(OPEN, f"{n} of the loss, the last to {loss_words(last.peak)} at step {last.step:,}; over")
    spike, lasting = f"{loss_levels.spike_power:.2g}", f"{loss_levels.power:.2g} for {loss_levels.power_rows:,} rows"
    return check(GOOD, f"No spike of the loss above {spike}, none above {lasting}, in {loss_levels.n:,} losses")


def _rise_words(rise: Rise) -> tuple[str, str]:
    """Return the word of a run with a rise, and the reason."""
    before, at = loss_words(rise.before), f"at step {rise.step:,}"
    if rise.from_start:
        return words.RESTARTED, f"the loss went from {before} back to its first level {at}: were the weights loaded?"
    if rise.is_back:
        rows = counted(rise.n_rows, "row")
        return words.SPIKED, f"the loss rose from {before} to {loss_words(rise.peak)} {at}, and fell back within {rows}"
    if rise.is_short:
        return words.SPIKED, f"the loss rose from {before} to {loss_words(rise.peak)} {at}"
    return words.STEPPED_UP, f"the loss rose from {before} to {loss_words(rise.level)} {at}, and is not back"


def _evaluation_check(validation: ByStep, training: ByStep | None) -> Check | None:
    """Return whether the validation loss is past its best; None of too few evaluations."""
    evaluated = evaluations(*validation, training)
    if evaluated is None:
        return None
    steps, n = validation.steps, len(validation.steps)
    check = partial(Check, power=evaluated.power, first=int(steps[0]), last=int(steps[-1]), looks=n)
    best = f"best validation loss {loss_words(evaluated.best)} at step {evaluated.step:,}"
    if evaluated.rise:
        text = f"{best}; the last evaluations are {loss_words(evaluated.rise)} above its level then"
        why = "it has risen beyond its noise" if evaluated.power > 0 else "the training loss fell meanwhile"
        return check(BAD, text, words.PAST_BEST, f"A reason to stop: {why}.")
    if evaluated.since >= MIN_SINCE_BEST:
        return check(OPEN, f"{best}; {evaluated.since:,} evaluations since are above it, within their noise")
    return check(GOOD, f"No rise of the validation loss above {evaluated.power:.2g} in {n:,} evaluations")


def _course_check(run: Run, training: ByStep | None, validation: ByStep | None) -> Iterator[Check]:
    """Yield whether the training loss rose, else whether the loss falls: of validation where there is enough of it."""
    if training is not None and (risen := _risen_check(run, training)) is not None:
        yield risen
        return
    loss_course = None if validation is None else course(*validation, MIN_ROWS // 2)
    rows, name = (validation, "validation loss") if loss_course is not None else (training, "training loss")
    if loss_course is None and training is not None:
        loss_course = course(*training)
    if loss_course is None or rows is None:
        return
    check = partial(Check, power=loss_course.power, first=loss_course.first, last=loss_course.last, looks=loss_course.n)
    both = _levels_in_words(loss_course)
    if loss_course.word == RISES:
        yield check(BAD, f"the {name} rises: {both}", words.PAST_BEST, STOP)
    elif loss_course.word == STALLS:
        yield check(BAD, f"the {name} no longer falls: {both}", words.STALLED, STOP)
    elif run.keeps_its_rate and (since := stalled_since(*thinned(*rows))) is not None:
        yield check(BAD, f"the {name} no longer falls since about step {since:,}", words.STALLED, STOP)
    elif rows is training and (least := fall_since_start(*thinned(*rows))) is not None and least < MIN_LEARNED_FALL:
        yield check(BAD, f"the {name} has not fallen since its start", words.STALLED, STOP)
    elif loss_course.word != FALLS:
        text = f"Whether the {name} falls is not seen: its noise hides a fall of less than {loss_course.power:.2g}"
        yield check(OPEN, text, HIDDEN)
    elif loss_course.late_fall > MIN_FALL_ERRORS * loss_course.late_error:
        fall = f"{loss_words(loss_course.late_fall)} in the second half of the steps"
        yield check(GOOD, f"The {name} still falls: {fall}", FALLS)
    else:
        text = (
            f"The {name} fell, but is not seen to fall since about step {loss_course.middle:,}; its noise may hide it"
        )
        yield check(OPEN, text, HIDDEN)


def _risen_check(run: Run, training: ByStep) -> Check | None:
    """Return that the training loss rises, or rose and is not back at its lowest level; None if neither is seen."""
    found = course(*training)
    if found is None:
        return None
    check = partial(Check, BAD, power=found.power, first=found.first, last=found.last, looks=found.n)
    if found.word == RISES:
        return check(f"the training loss rises: {_levels_in_words(found)}", words.RISING, STOP)
    low = evaluations(*thinned(*training, MAX_BLOCKS))
    rates = _rates(run, training)
    if low is None or not low.rise or (rates is not None and _rate_rose(rates, training.steps <= low.step)):
        return None
    text = f"the training loss is {loss_words(low.rise)} above its lowest level, that of step {low.step:,}"
    return check(text, words.PAST_BEST, STOP)


def _rate_rose(rates: Vector, until: NDArray[np.bool_]) -> bool:
    """Return whether the learning rate of the last rows lies above that of the last of some first rows."""
    return bool(np.median(rates[-MIN_ROWS:]) > MAX_RATE_RISE * np.median(rates[until][-MIN_ROWS:]))


def _levels_in_words(found: Course) -> str:
    after, before = loss_words(found.after), loss_words(found.before)
    return f"{after} in the last quarter of the steps, {before} in the second"


def _rate_check(run: Run, plan: Plan | None) -> Iterator[Check]:
    """Yield whether the learning rate is, or once was, off its schedule."""
    steps = known_rates(run).steps
    n = len(steps)
    if n < MIN_ROWS:
        return
    check = partial(Check, first=int(steps[0]), last=int(steps[-1]), looks=n)
    if found := departures(run, plan):
        # a declaration may be a rough one
        is_rough = found[-1].kind == "declared"
        yield check(OPEN, capitalised(str(found[0]))) if is_rough else check(BAD, str(found[-1]), words.OFF_SCHEDULE)
    else:
        yield check(GOOD, f"No departure of the learning rate from its schedule in {n:,} rows")


def _finite_check(run: Run) -> Iterator[Check]:
    """Yield whether losses were NaN."""
    n_nan = 0 if run.table is None else len(run.table.nan_steps.get("loss", ()))
    n = len(run.steps)
    if n_nan:
        yield Check(OPEN, f"{counted(n_nan, 'logged loss', 'logged losses')} NaN; the last ones are numbers")
    else:
        first = int(run.steps[0])
        yield Check(GOOD, f"No NaN in {counted(n, 'loss', 'losses')}", first=first, last=run.last_seen, looks=n)
