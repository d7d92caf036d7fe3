"""Faults that looks at the parameters show: no gradient, no step, a step uphill, dead units, several times in a row."""

from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median

from toposcope.integrity.finding import layers_text
from toposcope.monitor.events import Alert, Looked

# Looks at the parameters: exact zeros and signs, which have no noise; chosen so that what passes by itself is learnt
# first, of blocks dropped at random and experts without tokens (``tests/monitor/test_looks.py``).
MIN_FAULTY_LOOKS, MIN_UPHILL_LOOKS = 2, 4  # looks in a row that show a fault
MIN_LOOKS = 6  # looks from which on that many suffice, and of what was zero from the beginning
PASSED_LOOKS = 3  # times as many looks as a fault lasted that passed by itself, and one more
MIN_DEAD_JUMP, MIN_DEAD_RANGES = 0.25, 2.0  # rise of the share of dead units over its highest; in ranges of it so far
MIN_MOVED = 0.5  # share of the weights of the median matrix that a step changes, where one that changes none is frozen
MIN_UPHILL = 0.2  # least cosine between step and gradient of a step uphill: three deviations of random directions


class Lasting:
    """Detects places that look faulty several times in a row, more often the longer other faults passed by themselves.

    What is exactly 0 has no noise by which a limit could follow; that it may pass, as of an expert that no token chose
    or of a block that is dropped at random, is seen in the other places as well.
    """

    def __init__(self, kind: str, what: str, least: int = MIN_FAULTY_LOOKS) -> None:
        self._kind, self._what, self._least = kind, what, least
        self._sound: dict[str, int] = {}  # place -> last step at which it was sound
        self._streaks: dict[str, int] = {}
        self._n_looks = self._longest = 0  # looks; and the longest streak that ended
        self.faulty: set[str] = set()

    def looked(self, event: Looked, faults: Mapping[str, bool], reported: Collection[str]) -> list[Alert]:
        """Check which places look faulty now; `reported` ones raise no alert. If all do, they say nothing."""
        if all(faults.values()):
            return []
        self._n_looks += 1
        streaks = {place: self._streaks.get(place, 0) + 1 for place, is_faulty in faults.items() if is_faulty}
        ended = [n for place, n in self._streaks.items() if place in self._sound and not faults.get(place, True)]
        self._longest, self._streaks = max([self._longest, *ended]), streaks
        self._sound |= {place: event.step for place, is_faulty in faults.items() if not is_faulty}
        is_known = self._n_looks > MIN_LOOKS
        needed = max(self._least + (not is_known), PASSED_LOOKS * self._longest + 1)
        at_first = max(needed, MIN_LOOKS)  # what is zero in the beginning may become something else
        down = {place for place, n in streaks.items() if n >= (needed if place in self._sound else at_first)}
        new = [place for place in faults if place in down - self.faulty - set(reported)]
        new.sort(key=lambda place: self._sound.get(place, 0))
        self.faulty = down
        return [self._alert(event.step, new, len(faults), streaks[new[0]])] if new else []

    def _alert(self, step: int, places: Sequence[str], n_places: int, n_looks: int) -> Alert:
        first, last = places[0], self._sound.get(places[0], 0)
        before = f"after step {last:,}" if last else "since training began"
        which = f" Affected: {layers_text(places, n_places, 'parameters')}." if len(places) > 1 else ""
        message = f"{first}: {self._what} {before}, at {n_looks} looks in a row, the last at step {step:,}.{which}"
        return Alert(self._kind, step, last + 1, first, message, {"looks": n_looks, "layers": float(len(places))})


class LookChecks:
    """All checks of looks at the parameters, which raise one alert for each fault."""

    def __init__(self) -> None:
        self._checks: dict[Lasting, Callable[[Looked], Mapping[str, bool]]] = {
            Lasting("dead layer", "its gradient is missing or 0"): _without_gradient,
            Lasting("frozen layer", "the optimizer does not change it, though it has a gradient"): _unchanged,
            Lasting("wrong sign", "each step goes along its gradient, uphill", MIN_UPHILL_LOOKS): _uphill,
            Lasting("dead units", "many more of its units than before have no gradient"): self._more_dead_units,
        }
        self._shares: dict[str, tuple[int, float, float]] = {}  # values, lowest, highest share of dead units
        self.n_looks = self.first = self.last = self.n_updated = self.n_layers = 0

    @property
    def faulty(self) -> set[str]:
        """Places that are faulty now."""
        return set[str]().union(*(check.faulty for check in self._checks))

    @property
    def idle(self) -> set[str]:
        """Places without a gradient or a step now."""
        return set[str]().union(*(check.faulty for check in list(self._checks)[:2]))

    def looked(self, event: Looked, reported: Collection[str]) -> list[Alert]:
        """Check a look; `reported` places raise no alert."""
        if not any(event.gradients.values()):  # an optimizer that deletes them leaves nothing to look at
            return []
        self.n_looks, self.first, self.last = self.n_looks + 1, self.first or event.step, event.step
        self.n_layers, self.n_updated = len(event.changed), sum(event.gradients[name] for name in event.changed)
        alerts = []
        for check, faults in self._checks.items():
            others = set[str]().union(*(other.faulty for other in self._checks if other is not check))
            alerts += check.looked(event, faults(event), others | set(reported))
        return alerts

    def _more_dead_units(self, event: Looked) -> Mapping[str, bool]:
        faults = {}
        for layer, share in event.dead_units.items():
            n, low, high = self._shares.get(layer, (0, share, share))
            least = max(MIN_DEAD_JUMP, MIN_DEAD_RANGES * (high - low))
            faults[layer] = n >= MIN_LOOKS and share > high + least
            if not faults[layer]:
                self._shares[layer] = n + 1, min(low, share), max(high, share)
        return faults


def _without_gradient(event: Looked) -> Mapping[str, bool]:
    return {name: not has for name, has in event.gradients.items()}


def _unchanged(event: Looked) -> Mapping[str, bool]:
    changed = {name: share for name, share in event.changed.items() if event.gradients[name]}
    # a rate of 0, or one too small for the weights' dtype, is no fault of a layer
    return {n: not s for n, s in changed.items()} if changed and median(changed.values()) >= MIN_MOVED else {}


def _uphill(event: Looked) -> Mapping[str, bool]:
    if not event.cosines or median(event.cosines.values()) >= 0:
        return {}
    return {name: cosine > MIN_UPHILL for name, cosine in event.cosines.items()}
