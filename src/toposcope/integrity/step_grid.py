"""Steps that are missing from a series' own grid, or lie between its points.

A grid is a sequence of *pieces*: multiples of a spacing from some point on, or powers of two. Pythia's is 0, 1, 2, 4
... 512, then 1000, 2000 ... 143000. The pieces are the cheapest description of the steps: a piece costs `PIECE_COST`,
each of its points that is missing or extra 1, each step on no piece `LONE_STEP_COST`; step 0 is free.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from toposcope.integrity import tuning
from toposcope.integrity.finding import Finding, Severity, steps_text


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


def missing_and_extra(steps: Sequence[int]) -> list[Finding]:
    """Find missing and extra steps; a short or irregular series has neither.

    A step more is a note, as after a signal or at the end of an epoch, unless it may be the missing one renamed. So is
    a missing end of powers of two: where they end, nobody knows.
    """
    pieces = [_resumed(piece, steps) for piece in _pieces(list(steps))]
    judged = [s for s in steps[:-1] if s > 0]
    covered = [s for s in judged if any(p.start <= s <= p.stop for p in pieces)]
    # Rounded logarithmic grids begin with consecutive numbers, which are a grid only if every step lies on it.
    needed = 1 if any(0 < p.spacing <= tuning.MAX_ROUNDED_SPACING for p in pieces) else tuning.MIN_COVERAGE
    if not pieces or len(covered) < needed * len(judged):
        return []
    inside = {point for piece in pieces for point in piece.points()}
    missing = sorted((inside | _between(pieces)) - set(steps))
    # A step soon after the beginning is often saved for its own sake.
    first = min((p.start + p.spacing for p in pieces if p.start <= 0), default=0)
    extra = [s for s in covered if s not in inside and s > first]
    is_one_gap = bool(missing) and not any(missing[0] < s < missing[-1] for s in steps)
    if len(missing) > (1 - tuning.MIN_COVERAGE) * len(steps) + 1 and not is_one_gap:
        return []
    if needed == 1 and len(missing) > 1 and min(missing) > (steps[0] + steps[-1]) / 2:
        return []
    grid = ", then ".join(_text(piece) for piece in pieces)
    findings = []
    if missing:
        ends = {2 * piece.stop for piece in pieces if not piece.spacing}
        severity: Severity = "note" if ends.issuperset(missing) else "fault"
        message = f"{steps_text(missing)}: missing from the series' own grid ({grid})"
        findings.append(Finding("missing steps", severity, tuple(missing), "", message))
    if extra:
        renamed = any(not any(min(s, gap) < other < max(s, gap) for other in steps) for s in extra for gap in missing)
        message = f"{steps_text(extra)}: between the points of the series' own grid ({grid})"
        findings.append(Finding("extra steps", "fault" if renamed else "note", tuple(extra), "", message))
    return findings


def _resumed(piece: _Piece, steps: Sequence[int]) -> _Piece:
    """Return a piece without points that no neighbour shares: of a lone one, or two gaps alike, is another grid."""
    if not piece.spacing:
        return piece
    present = set(steps)
    points = [point for point in piece.points() if point in present]
    pairs = [k for k, (a, b) in enumerate(pairwise(points)) if b - a == piece.spacing]
    begins, ends = pairs[0], pairs[-1] + 1
    if begins == 1 and points[0] in (0, steps[0]):
        begins = 0
    if ends == len(points) - 2 and points[-1] == steps[-1]:
        ends += 1
    return _Piece(points[begins], points[ends], piece.spacing)


def _text(piece: _Piece) -> str:
    return f"every {piece.spacing} from {piece.start}" if piece.spacing else f"powers of two from {piece.start}"


_Description = tuple[float, tuple[_Piece, ...]]
_NEVER: _Description = (float("inf"), ())


def _pieces(steps: list[int]) -> list[_Piece]:
    """Return the cheapest description, by dynamic programming over the points where the distance changes."""
    distances = [b - a for a, b in pairwise(steps)]
    changes = [0, *(k for k in range(1, len(distances)) if distances[k] != distances[k - 1]), len(steps) - 1]
    spacings = sorted({d for d, run in groupby(distances) if len(list(run)) >= 2})
    if len(steps) <= tuning.MIN_POINTS or len(changes) > tuning.MAX_SPACING_CHANGES:
        return []
    # The cheapest descriptions of all steps up to a change: with the change itself, or without.
    through, to = [_NEVER] * len(changes), [(0.0, ()), *[_NEVER] * (len(changes) - 1)]
    for i, change in enumerate(changes):
        lone = tuning.LONE_STEP_COST if steps[change] > 0 else 0.0
        through[i] = min(through[i], (to[i][0] + lone, to[i][1]), key=_cost)
        cost, described = min(through[i], to[i], key=_cost)
        for spacing in (0, *spacings) if steps[change] > 0 else spacings:
            for j, piece, exceptions in _extensions(steps, changes, i, spacing):
                through[j] = min(through[j], (cost + tuning.PIECE_COST + exceptions, (*described, piece)), key=_cost)
        if i + 1 < len(changes):
            inside = changes[i + 1] - change - 1
            to[i + 1] = (through[i][0] + tuning.LONE_STEP_COST * inside, through[i][1])
    return _joined([_from_the_first(piece, steps) for piece in through[-1][1]])


def _cost(described: _Description) -> float:
    return described[0]


def _from_the_first(piece: _Piece, steps: list[int]) -> _Piece:
    """Start powers of two at the first positive step: the equal distances of 0, 1, 2 hide it."""
    before = [s for s in steps if 0 < s < piece.start]
    if piece.spacing == 0 and before and all(_index(s, before[0], 0) is not None for s in [*before, piece.start]):
        return _Piece(before[0], piece.stop, 0)
    return piece


def _extensions(steps: list[int], changes: list[int], i: int, spacing: int) -> list[tuple[int, _Piece, float]]:
    """Return the pieces that begin at the i-th change: the change where each ends, it, and its exceptions."""
    start = steps[changes[i]]
    on, at, extensions = 1, changes[i], []
    for j in range(i + 1, len(changes)):
        for k in range(at + 1, changes[j] + 1):
            on += _index(steps[k], start, spacing) is not None
        at = changes[j]
        last = _index(steps[at], start, spacing)
        extra = at - changes[i] + 1 - on
        if extra > len(steps) * (1 - tuning.MIN_COVERAGE) + 1:
            break
        if last is not None and on >= tuning.MIN_POINTS:
            missing = last + 1 - on
            if missing + extra <= on / 2:
                extensions.append((j, _Piece(start, steps[at], spacing), float(missing + extra)))
    return extensions


def _index(step: int, start: int, spacing: int) -> int | None:
    if spacing:
        return (step - start) // spacing if (step - start) % spacing == 0 else None
    ratio, rest = divmod(step, start)
    return ratio.bit_length() - 1 if rest == 0 and ratio & (ratio - 1) == 0 else None


def _joined(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Join neighbours of one spacing whose points are in phase: only a gap separates them."""
    joined: list[_Piece] = []
    for piece in pieces:
        before = joined[-1] if joined else None
        if before and before.spacing == piece.spacing and _index(piece.start, before.start, piece.spacing) is not None:
            joined[-1] = _Piece(before.start, piece.stop, piece.spacing)
        else:
            joined.append(piece)
    return joined


def _between(pieces: Sequence[_Piece]) -> set[int]:
    """Return the points expected between two pieces; powers of two go on for one more where exactly one fits."""
    found = set()
    for before, after in pairwise(pieces):
        lost = range(0)
        if after.spacing > before.spacing and after.start % after.spacing == 0:
            lost = range((before.stop // after.spacing + 1) * after.spacing, after.start, after.spacing)
            if len(lost) > tuning.PIECE_COST and not before.spacing and after.start <= 2 * before.stop:
                lost = range(0)  # up to 512, then every 100 from 1000: a round number where the next power would be
        found |= set(lost)
        if not before.spacing and 2 * before.stop < (lost.start if lost else after.start) <= 4 * before.stop:
            found.add(2 * before.stop)
    return found
