"""Whether a loss falls where training goes well: by its name, by the columns next to it, and by its signs."""

from collections.abc import Sequence

import numpy as np

from toposcope.logs.anomalies import NORMAL_MAD, last_place
from toposcope.logs.columns import AGENT_WORDS, GAME_WORDS, PREFERENCE_WORDS, Target, words_of
from toposcope.logs.raw import one_line
from toposcope.typing import Vector

N_NEIGHBOURS, MAX_SPREADS, MAX_PLACES = 8, 4.0, 5.0  # around a row at or below 0; how far from them it may lie
MAX_ROUND_OFF = 1e-4  # share of the first losses by which a rounded loss may lie below 0: -log(p + 1e-6) at p = 1
MIN_FIRST, MAX_FIRST, FIRST_SHARE = 5, 20, 0.2  # first rows whose size is that of the loss at its start


def why_need_not_fall(columns: Sequence[str], target: Target, losses: Vector) -> str:
    """Return why a loss need not fall where training goes well, a clause; empty if it should.

    It is one of several players, or the log, all columns of which are given, has the rewards or the policy of an agent;
    pairs of preferences have rewards too, and a loss that falls. Else rows at or below 0 decide (see `signed`).
    """
    if not GAME_WORDS.isdisjoint(words_of(target.name)):
        return f"{target.name!r} is a loss of one of several players, or of a policy"
    words = {name: set(words_of(name)) for name in columns}
    agents = [name for name in columns if not AGENT_WORDS.isdisjoint(words[name])]
    if agents and PREFERENCE_WORDS.isdisjoint(set().union(*words.values())):
        return f"its log is of an agent, by column {one_line(agents[0])!r}"
    return signed(losses[np.isfinite(losses)])


@np.errstate(over="ignore")
def signed(losses: Vector) -> str:
    """Return how the rows at or below 0 show that a loss is no positive quantity, a clause; empty if they do not.

    A row counts where it lies within the scatter of the nearest rows that are not 0. What lies apart from them is no
    value of the loss: a 0 or -1 where nothing was logged, zeros after a run that failed. Values below 0 by more than
    round-off then suffice. Zeros do where the loss began at 0: one that is rounded, or that a model of its training
    data reaches, has fallen to it.
    """
    before = losses[: int(np.flatnonzero(losses).max(initial=-1)) + 1]  # the zeros of its end say nothing of its start
    n = int(np.clip(FIRST_SHARE * len(losses), MIN_FIRST, MAX_FIRST))
    first = float(np.median(np.abs(before[:n]))) if len(before) else 0.0
    low = np.flatnonzero(_belongs(losses))
    below = low[losses[low] < -MAX_ROUND_OFF * first]
    rows = f"of {len(losses):,} rows"
    if len(below):
        return f"it is below 0 in {len(below):,} {rows}, first {losses[below[0]]:.4g}"
    rounding = MAX_PLACES * last_place(losses[losses > 0])
    if len(low) and first <= rounding < 1:  # whole numbers do not show how they were rounded
        return f"it began at 0, and is 0 in {len(low):,} {rows}"
    return ""


def _belongs(losses: Vector) -> Vector:
    """Return which rows are at or below 0, and within the scatter of their neighbours that are not 0."""
    found = np.zeros(len(losses), dtype=bool)
    other = np.flatnonzero(losses != 0)
    values = losses[other]
    negative = np.unique(values[values < 0])
    if len(negative) == 1 and negative[0] == np.round(negative[0]):  # -1, written where nothing was logged
        other, values = other[values > 0], values[values > 0]
    if len(values) < 2:
        return found
    place = last_place(np.abs(values))
    rows = np.flatnonzero(losses <= 0)
    # the nearest others on both sides, at the ends more of one side, but for the row itself
    middle = np.searchsorted(other, rows)
    starts = np.clip(middle - N_NEIGHBOURS // 2, 0, max(len(values) - N_NEIGHBOURS - 1, 0))
    index = np.minimum(starts[:, None] + np.arange(min(N_NEIGHBOURS + 1, len(values))), len(values) - 1)
    near = np.where(other[index] == rows[:, None], np.nan, values[index])
    centres = np.nanmedian(near, axis=1)
    spreads = NORMAL_MAD * np.nanmedian(np.abs(near - centres[:, None]), axis=1)
    found[rows] = np.abs(losses[rows] - centres) <= np.maximum(MAX_SPREADS * spreads, MAX_PLACES * place)
    return found
