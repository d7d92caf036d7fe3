"""Steps that are missing from the grid a series itself lays down, or that stand between its points.

A grid is a few *pieces*, one after another: multiples of a spacing, from some point on, and powers of two. Pythia's is
0, 1, 2, 4 ... 512, then 1000, 2000 ... 143000. The pieces are found as the cheapest description of the steps: a piece
costs `PIECE`, each point of it that is missing or superfluous 1, each step on no piece `LONE`; step 0 is free.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from toposcope.integrity.finding import Finding, told_steps

PIECE = 2.5
"""Two exceptions are told as exceptions; three could as well be a grid of their own."""
LONE = 2.25
"""A step beyond a gap of two still belongs to the piece before it."""
FEWEST = 5
"""Points from which on a piece is believed: four equal distances, or four doublings, are no chance."""
EXPLAINED = 0.85
"""Share of the steps that must lie on pieces; a series with less of a grid is not judged by one."""
ROUNDED = 2
"""Spacings that rounding alone may bring about."""
MOST_RUNS = 200
"""A series whose spacing changes more often has no grid."""


@dataclass(frozen=True)
class _Piece:
    """Points ``start + k * spacing`` up to ``stop``; with a spacing of 0, ``start * 2**k``."""

    start: int
    stop: int
    spacing: int

    def points(self) -> list[int]:
        if self.spacing:
            return list(range(self.start, self.stop + 1, self.spacing))
        found = [self.start]
        while 2 * found[-1] <= self.stop:
            found.append(2 * found[-1])
        return found


def off_grid(steps: Sequence[int]) -> list[Finding]:
    """Find missing and extra steps; of a short or irregular series nothing is said.

    Parameters
    ----------
    steps : sequence of int
        Ascending.
    """
    pieces = _pieces(list(steps))
    judged = [s for s in steps[:-1] if s > 0]
    covered = [s for s in judged if any(p.start <= s <= p.stop for p in pieces)]
    # Rounded logarithmic grids begin with whole numbers in a row: such are a grid only if they are all of it.
    needed = 1 if any(0 < p.spacing <= ROUNDED for p in pieces) else EXPLAINED
    if not pieces or len(covered) < needed * len(judged):
        return []
    expected = {point for piece in pieces for point in piece.points()} | _between(pieces)
    missing = sorted(expected - set(steps))
    # A step soon after the beginning is often saved for its own sake.
    first = min((p.start + p.spacing for p in pieces if p.start <= 0), default=0)
    extra = [s for s in covered if s not in expected and s > first]
    if len(missing) + len(extra) > (1 - EXPLAINED) * len(steps) + 1 and not _is_one_gap(missing, steps):
        return []
    if needed == 1 and len(missing) > 1 and min(missing) > (steps[0] + steps[-1]) / 2:
        return []
    grid = ", then ".join(_told(piece) for piece in pieces)
    found = []
    if missing:
        message = f"{told_steps(missing)}: missing from the series' own grid ({grid})"
        found.append(Finding("missing steps", "fault", tuple(missing), "", message))
    if extra:
        message = f"{told_steps(extra)}: between the points of the series' own grid ({grid})"
        found.append(Finding("extra steps", "fault", tuple(extra), "", message))
    return found


def _told(piece: _Piece) -> str:
    return f"every {piece.spacing} from {piece.start}" if piece.spacing else f"powers of two from {piece.start}"


def _is_one_gap(missing: Sequence[int], steps: Sequence[int]) -> bool:
    """Tell whether all that is missing is missing in one place."""
    return bool(missing) and not any(missing[0] < s < missing[-1] for s in steps)


_Told = tuple[float, tuple[_Piece, ...]]
_NEVER: _Told = (float("inf"), ())


def _pieces(steps: list[int]) -> list[_Piece]:
    """Return the cheapest description, by dynamic programming over the points where the distance changes."""
    distances = [b - a for a, b in pairwise(steps)]
    turns = [0, *(k for k in range(1, len(distances)) if distances[k] != distances[k - 1]), len(steps) - 1]
    spacings = sorted({d for d, run in groupby(distances) if len(list(run)) >= 2})
    if len(steps) <= FEWEST or len(turns) > MOST_RUNS:
        return []
    # The cheapest ways to a turn with all before it told: the turn itself told as well, or not yet.
    through, to = [_NEVER] * len(turns), [(0.0, ()), *[_NEVER] * (len(turns) - 1)]
    for i, turn in enumerate(turns):
        lone = LONE if steps[turn] > 0 else 0.0
        through[i] = min(through[i], (to[i][0] + lone, to[i][1]), key=_cost)
        cost, told = min(through[i], to[i], key=_cost)
        for spacing in (0, *spacings) if steps[turn] > 0 else spacings:
            for j, piece, exceptions in _runs_on(steps, turns, i, spacing):
                through[j] = min(through[j], (cost + PIECE + exceptions, (*told, piece)), key=_cost)
        if i + 1 < len(turns):
            inside = turns[i + 1] - turn - 1
            to[i + 1] = (through[i][0] + LONE * inside, through[i][1])
    return _joined([_from_the_first(piece, steps) for piece in through[-1][1]])


def _cost(told: _Told) -> float:
    return told[0]


def _from_the_first(piece: _Piece, steps: list[int]) -> _Piece:
    """Let powers of two begin with the first step there is: 0, 1, 2, 4 begins with equal distances, which hid it."""
    before = [s for s in steps if 0 < s < piece.start]
    if piece.spacing == 0 and before and all(_index(s, before[0], 0) is not None for s in [*before, piece.start]):
        return _Piece(before[0], piece.stop, 0)
    return piece


def _runs_on(steps: list[int], turns: list[int], i: int, spacing: int) -> list[tuple[int, _Piece, float]]:
    """Return how far a piece may go that begins at the i-th turn: the turn where it ends, it, and its exceptions."""
    start = steps[turns[i]]
    on, at, found = 1, turns[i], []
    for j in range(i + 1, len(turns)):
        for k in range(at + 1, turns[j] + 1):
            on += _index(steps[k], start, spacing) is not None
        at = turns[j]
        last = _index(steps[at], start, spacing)
        extra = at - turns[i] + 1 - on
        if extra > len(steps) * (1 - EXPLAINED) + 1:
            break
        if last is not None and on >= FEWEST:
            missing = last + 1 - on
            if missing + extra <= on / 2:
                found.append((j, _Piece(start, steps[at], spacing), float(missing + extra)))
    return found


def _index(step: int, start: int, spacing: int) -> int | None:
    """Return which point of a piece a step is."""
    if spacing:
        return (step - start) // spacing if (step - start) % spacing == 0 else None
    ratio, rest = divmod(step, start)
    return ratio.bit_length() - 1 if rest == 0 and ratio & (ratio - 1) == 0 else None


def _joined(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Join neighbours of one spacing that lie on one line: what parts them is a gap."""
    joined: list[_Piece] = []
    for piece in pieces:
        before = joined[-1] if joined else None
        if before and before.spacing == piece.spacing and _index(piece.start, before.start, piece.spacing) is not None:
            joined[-1] = _Piece(before.start, piece.stop, piece.spacing)
        else:
            joined.append(piece)
    return joined


def _between(pieces: Sequence[_Piece]) -> set[int]:
    """Return points where one piece hands over to the next that belong to either and are easily lost.

    Multiples of a spacing begin with the first multiple after the piece before; powers of two go on as long as one more
    fits, where only one does.
    """
    found = set()
    for before, after in pairwise(pieces):
        if after.spacing > before.spacing and after.start % after.spacing == 0:
            begin = (before.stop // after.spacing + 1) * after.spacing
            lost = range(begin, after.start, after.spacing)
            if len(lost) > PIECE and not before.spacing and after.start <= 2 * before.stop:
                # Powers of two up to 512, then every 100 from 1000: a round number where the next power would be.
                lost = range(after.start, after.start)
            found |= set(lost)
            after_start = lost.start if lost else after.start
        else:
            after_start = after.start
        if not before.spacing and 2 * before.stop < after_start <= 4 * before.stop:
            found.add(2 * before.stop)
    return found
