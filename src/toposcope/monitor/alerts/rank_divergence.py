"""Detects data-parallel ranks whose weights differ."""

import math
from collections import Counter
from collections.abc import Mapping

from toposcope.monitor.alerts.latch import Latch
from toposcope.monitor.events import Alert

TOLERANCE = 1e-6
"""Largest relative difference between equal norms that are summed in different order."""
EXACT = ("hash", "checksum", "digest")
"""Words in the names of quantities that must be exactly equal."""
MAX_NAMED = 4


class RankDivergence:
    """Detects ranks that differ in quantities they should share."""

    def __init__(self) -> None:
        self._latch = Latch(1)
        self._last = 0

    def add(self, step: int, ranks: Mapping[int, Mapping[str, float]]) -> list[Alert]:
        """Check the quantities of each rank; return an alert if some differ from most."""
        last, self._last = self._last, step
        names = dict.fromkeys(name for values in ranks.values() for name in values)
        apart = {name: differing for name in names if (differing := _differing(name, ranks))}
        if not apart:
            self._latch.normal()
            return []
        if not self._latch.faulty():
            return []
        name, (usual, others) = next(iter(apart.items()))
        first = min(others)
        named = ", ".join(map(str, sorted(others)[:MAX_NAMED])) + (" ..." if len(others) > MAX_NAMED else "")
        message = (
            f"rank{'s'[: len(others) != 1]} {named} of {len(ranks)}: {name} is {others[first]!r} on rank {first} and"
            f" {usual!r} on the others at step {step:,}; they were equal at step {last:,}."
        )
        if last == 0:
            message = message.rpartition(";")[0] + "."
        evidence = {"value": others[first], "usual": usual, "ranks": float(len(others))}
        return [Alert("ranks differ", step, min(last + 1, step), f"rank {first}", message, evidence)]


def _differing(name: str, ranks: Mapping[int, Mapping[str, float]]) -> tuple[float, dict[int, float]] | None:
    """Return the most common value of a quantity, and the ranks that differ; of two ranks, the second one differs."""
    values = {rank: row[name] for rank, row in sorted(ranks.items()) if name in row}
    exact = any(word in name.lower() for word in EXACT)
    agreeing = Counter({rank: sum(_equal(a, b, exact) for b in values.values()) for rank, a in values.items()})
    if not agreeing:
        return None
    usual = values[agreeing.most_common(1)[0][0]]
    others = {rank: value for rank, value in values.items() if not _equal(value, usual, exact)}
    return (usual, others) if others else None


def _equal(a: float, b: float, exact: bool) -> bool:
    if a == b or (a != a and b != b):
        return True
    return not exact and math.isclose(a, b, rel_tol=TOLERANCE)
