"""Steps that are missing from a series' own grid, or lie between its points.

A grid is a sequence of *pieces*: multiples of a spacing from some point on, or, first, powers of two. Pythia's is 0, 1,
2, 4 ... 512, then 1000, 2000 ... 143000. A piece begins and ends where the same distance occurs twice in a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from toposcope.integrity.finding import Finding, Severity, steps_text

# Chosen on real trainings and on made-up ones that were damaged (docs/doctor.md, benchmarks/doctor.py).
MAX_END = 3  # spacings from the first step, or to the last, past which a single step is on no grid
MIN_POINTS = 5  # of a piece: four equal distances, or four doublings, are no coincidence
MIN_COVERAGE = 0.85  # share of the steps on pieces, for a series to be judged by its grid
MAX_ROUNDED_SPACING = 2  # largest spacing that the rounding of a logarithmic grid can produce
MAX_SPACING_CHANGES = 200  # a series whose spacing changes more often has no grid


@dataclass(frozen=True)
class _Piece:
    """Points ``start + k * spacing`` up to ``stop``; with a spacing of 0, ``start * 2**k``."""

    start: int
    stop: int
    spacing: int

    def points(self) -> list[int]:
        if self.spacing:
            return list(range(self.start, self.stop + 1, self.spacing))
        return [self.start << k for k in range((self.stop // self.start).bit_length())]

    def has(self, step: int) -> bool:
        """Return whether a step, which may lie past its ends, is a point of it."""
        return (step - self.start) % self.spacing == 0

    def text(self) -> str:
        return f"every {self.spacing} from {self.start}" if self.spacing else f"powers of two from {self.start}"


def missing_and_extra(steps: Sequence[int]) -> list[Finding]:
    """Find missing and extra steps; a short or irregular series has neither.

    A step more is a note, as after a signal or at the end of an epoch, unless it may be the missing one renamed. So is
    a missing end of powers of two: where they end, nobody knows.
    """
    pieces = _pieces(list(steps))
    judged = [s for s in steps[:-1] if s > 0]
    covered = [s for s in judged if any(p.start <= s <= p.stop for p in pieces)]
    # Rounded logarithmic grids begin with consecutive numbers, which are a grid only if every step lies on it.
    needed = 1 if any(0 < p.spacing <= MAX_ROUNDED_SPACING for p in pieces) else MIN_COVERAGE
    if not pieces or len(covered) < needed * len(judged):
        return []
    inside = {point for piece in pieces for point in piece.points()}
    missing = sorted((inside | _between(pieces)) - set(steps))
    # A step soon after the beginning is often saved for its own sake.
    first = min((p.start + p.spacing for p in pieces if p.start <= 0), default=0)
    extra = [s for s in covered if s not in inside and s > first]
    is_one_gap = bool(missing) and not any(missing[0] < s < missing[-1] for s in steps)
    if len(missing) > (1 - MIN_COVERAGE) * len(steps) + 1 and not is_one_gap:
        return []
    if needed == 1 and len(missing) > 1 and min(missing) > (steps[0] + steps[-1]) / 2:
        return []
    grid = ", then ".join(piece.text() for piece in pieces)
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


def _pieces(steps: list[int]) -> list[_Piece]:
    """Return powers of two, then stretches of one distance, joined where only gaps and odd steps lie between them."""
    powers = _powers_of_two([s for s in steps if s > 0])
    rest = [s for s in steps if not powers or s >= powers[0].stop]
    lengths = [(distance, len(list(run))) for distance, run in groupby(b - a for a, b in pairwise(rest))]
    if len(steps) <= MIN_POINTS or len(lengths) > MAX_SPACING_CHANGES:
        return []
    place, pieces = 0, list[_Piece]()
    for distance, length in lengths:
        piece = _Piece(rest[place], rest[place + length], distance)
        place += length
        for k in reversed(range(len(pieces))):
            if pieces[k].spacing == distance and pieces[k].has(piece.start):
                piece = replace(pieces[k], stop=piece.stop)
                del pieces[k:]
                break
            if len(pieces[k].points()) >= MIN_POINTS:
                break  # what lies between two parts of a piece is shorter, as two gaps alike
        pieces.append(piece)
    kept = [piece for piece in pieces if _is_kept_to(piece, rest)]
    if kept:  # the first and the last step have no neighbour on the other side
        first, last = kept[0], kept[-1]
        if rest[1] == first.start <= rest[0] + MAX_END * first.spacing and first.has(rest[0]):
            kept[0] = replace(first, start=rest[0])
        if rest[-2] == last.stop >= rest[-1] - MAX_END * last.spacing and last.has(rest[-1]):
            kept[-1] = replace(kept[-1], stop=rest[-1])
    return powers + kept


def _is_kept_to(piece: _Piece, steps: Sequence[int]) -> bool:
    """Return whether a piece has enough points, and at most half as many that are missing or steps between them."""
    covered = [s for s in steps if piece.start <= s <= piece.stop]
    on = sum(piece.has(s) for s in covered)
    return on >= MIN_POINTS and len(piece.points()) + len(covered) - 2 * on <= on / 2


def _powers_of_two(steps: list[int]) -> list[_Piece]:
    """Return the piece of powers of two, times the first step, with which steps begin, if there is one."""
    on, stop = 0, 0
    for place, step in enumerate(steps, start=1):
        ratio, rest = divmod(step, steps[0])
        if rest == 0 and ratio & (ratio - 1) == 0:
            on += 1
            if on >= MIN_POINTS and place + ratio.bit_length() - 2 * on <= on / 2:
                stop = step
    return [_Piece(steps[0], stop, 0)] if stop else []


def _between(pieces: Sequence[_Piece]) -> set[int]:
    """Return the points expected between two pieces; powers of two go on for one more where exactly one fits."""
    found = set()
    for before, after in pairwise(pieces):
        lost = range(0)
        if after.spacing > before.spacing and after.start % after.spacing == 0:
            lost = range((before.stop // after.spacing + 1) * after.spacing, after.start, after.spacing)
            if len(lost) > 2 and not before.spacing and after.start <= 2 * before.stop:
                lost = range(0)  # up to 512, then every 100 from 1000: a round number where the next power would be
        found |= set(lost)
        if not before.spacing and 2 * before.stop < (lost.start if lost else after.start) <= 4 * before.stop:
            found.add(2 * before.stop)
    return found
