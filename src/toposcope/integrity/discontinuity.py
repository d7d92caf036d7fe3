"""Checkpoints that do not lie on the way of training, judged by what their neighbours do.

Every rule compares distances with distances, or correlations with correlations, of the same tensor nearby; none of them
has a unit. What a healthy run may do, and the margin each rule leaves it, stands beside its threshold.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from toposcope.integrity.duplicates import final_weights
from toposcope.integrity.evidence import Evidence
from toposcope.integrity.exchange import exchanged
from toposcope.integrity.finding import Finding, Suspect, told_steps
from toposcope.integrity.tracks import (
    FEWEST_MATRICES,
    LONGEST,
    NEAR,
    QUARTERS,
    SEVERAL,
    WALKING,
    Array,
    Track,
    totals,
    tracks,
)

DETOUR = 2.0
"""A checkpoint, or a stretch of them, is off the way if it is so many times further from its neighbours than these are
from each other. Movement in one direction gives 1/2, a random walk 1/sqrt 2, noise about a fixed point 1; more than
that would take a run that swings between two places in time with its checkpoints."""
DETOUR_QUARTER = 1.4
"""The same in each quarter of the values: not the doing of a few."""
LOST_WAY = 0.5
"""Where a matrix does not walk (see `WALKING`), so much of the neighbours' correlation must be lost besides."""
LOUDER = 2.0
"""Or, of a single checkpoint, the detour must be so many times all but one nearby. Noise grows louder with the learning
rate, but that stays high for a while, or comes back to where it was again and again."""
DETOUR_OF_VECTOR = DETOUR**2
"""The same of a vector or two alone. It has few directions to go and may walk in a circle: the chance is a power
of the ratio, so it is squared here."""
DETOUR_OF_MOST = 1.25
"""The same of the median over the matrices, whose scatter is smaller."""
LOST = 0.15
"""Correlation with the checkpoint before that is as good as none: 256 independent values give 0.06."""
FASTER = 6.0
"""How many times faster than nearby, a step of training, the correlation's logarithm has to fall. A learning rate that
restarts ten times higher moves weights ten times further; to bring the correlation down to `LOST` that way it would
have to make them seven times larger."""
GROWN = 3.0
"""Weights that grow more than this are not another run's; they ran away."""
LOST_SHARE = 0.2
"""Share of the matrices, and `SEVERAL` at least, that must lose it."""
LEAP = 4.0
"""How many times further than in any other interval as long, before or after, most matrices have to move in one. A
learning rate that restarts moves them as it did at its peak, and goes on to do so in the intervals that follow."""
STRETCH = 4.0
"""How many times more than nearby a checkpoint has to be a multiple of the one before. Also the stretch has to be the
larger part of the movement, which in training is mostly across."""
PURE = 5.0
"""A lasting stretch of one tensor, and not of most, has to be so many times more than what else happens to it."""
NEARER = 0.5
"""A checkpoint has the final weights if it is so much nearer to them than many later ones are, and than it is to the
checkpoints around it."""
NEAREST = 1.1
"""No other checkpoint may be nearer, but for those just before the last, which may hardly differ from it."""
LATER = 1 / 3
"""So many of the later ones, and three at least, for some of them may be wrong themselves."""


def discontinuities(
    evidence: Sequence[Evidence],
    apart: Collection[int],
    elsewhere: Mapping[str, Collection[int]],
    strange: Collection[int],
) -> Iterator[Finding]:
    """Find what is out of place.

    Parameters
    ----------
    evidence : sequence of Evidence
    apart : collection of int
        Steps that other rules hold to be another checkpoint's.
    elsewhere : mapping of str to collection of int
        The same of single tensors, by name.
    strange : collection of int
        Steps that are wrong by their values alone. Whether these are the final weights remains to be told; nothing else
        is compared with them.
    """
    known = tracks(evidence, apart, elsewhere)
    if not known:
        return
    last = max(item.step for item in evidence if not item.error)
    early = _nearest_to_last(known, last)
    if 0 in early and 0 not in strange:
        # An initialisation to its values is no trained checkpoint: it is the run that came back to where it began.
        every = sorted({int(step) for track in known for step in track.steps})
        behind = next((k for k, step in enumerate(every) if step not in early), len(every))
        early = [step for step in early if step not in every[:behind]]
    if early:
        yield final_weights(early, last, "nearly those")
    known = _left([track.without({*early, *strange}) for track in known])
    vectors = {track.name for track in known if not track.is_matrix}
    told = set()
    for rule in (exchanged, _alone, _off_the_way, _stretched, _broken, _leapt):
        for suspect in rule(known):
            if suspect.check == "break" and suspect.steps in told:
                continue
            told.add(suspect.steps)
            yield suspect.finding()
            if suspect.check != "break":
                # What matrices show of a checkpoint holds for its vectors, which show less.
                concerned = vectors.union(suspect.layers)
                known = [track.without(suspect.steps) if track.name in concerned else track for track in known]
        known = _left(known)


def _left(known: Sequence[Track]) -> list[Track]:
    return [track for track in known if len(track.steps) > 3]


def _nearest_to_last(known: Sequence[Track], last: int) -> list[int]:
    """Return the early steps whose weights belong to the last checkpoint, as most matrices have it."""
    votes: dict[int, list[bool]] = defaultdict(list)
    for track in known:
        if track.is_matrix and track.steps[-1] == last:
            for step, near in zip(track.steps.tolist(), _belongs_to_last(track), strict=True):
                votes[step].append(near)
    return [step for step, said in sorted(votes.items()) if 2 * sum(said) > len(said)]


def _belongs_to_last(track: Track) -> list[bool]:
    """Tell which checkpoints are nearer to the last than many later ones are, and than to those around them.

    On any way the later checkpoints are the nearer ones; about a fixed point all are equally far.
    """
    floor = float(track.floor()[-1])
    way = np.sqrt(np.square(track.values - track.values[-1]).sum(axis=1) + floor / 4)
    steps = np.sqrt(np.square(np.diff(track.values, axis=0)).sum(axis=1) + floor)
    n = len(way)
    found = [False] * n
    for k in range(n - 2):
        later = way[k + 1 : -1]
        further = int((NEARER * later > way[k]).sum())
        found[k] = further >= max(min(3, len(later)), LATER * len(later))
    others = track.values[[k for k in range(n - 1) if not found[k]]]
    for k in np.flatnonzero(found).tolist():
        # Some other late checkpoint may be nearer still: then it is that one's.
        nearest = np.square(others - track.values[k]).sum(axis=1).min(initial=np.inf)
        found[k] = bool(way[k] <= NEAREST * np.sqrt(nearest + floor))
    begin = 0
    while begin < n:
        end = begin
        while end < n and found[end]:
            end += 1
        # A stretch of them must be set apart at both ends.
        around = [*steps[max(0, begin - 1) : begin], *steps[end - 1 : end]]
        if end > begin and (NEARER * min(around) < way[begin:end].max() or _is_between(track, begin, end)):
            found[begin:end] = [False] * (end - begin)
        begin = end + 1
    return found


def _is_between(track: Track, begin: int, end: int) -> bool:
    """Tell whether a stretch lies between its neighbours: where the learning rate falls, noise about a point does."""
    if begin == 0 or end == len(track.steps):
        return False
    there, back, across = (
        float(np.square(track.values[a] - track.values[b]).sum())
        for a, b in ((begin - 1, begin), (end - 1, end), (begin - 1, end))
    )
    return there + back < DETOUR_OF_MOST * across


def _alone(known: Sequence[Track]) -> list[Suspect]:
    """Find single checkpoints that are far off the way; what is less far may still be an exchange of neighbours."""
    return _off_the_way(known, longest=1)


def _off_the_way(known: Sequence[Track], longest: int = LONGEST) -> list[Suspect]:
    """Find stretches of checkpoints whose neighbours on either side know each other, but not them."""
    layers: dict[tuple[int, ...], list[str]] = defaultdict(list)
    ratios: dict[tuple[int, ...], list[float]] = defaultdict(list)
    single: dict[int, list[float]] = defaultdict(list)
    matrices = {track.name for track in known if track.is_matrix}
    for track in known:
        for steps, ratio in _detours(track, longest):
            layers[steps].append(track.name)
            ratios[steps].append(ratio)
        if track.is_matrix and longest > 1:
            walking = track.two_intervals()
            ratios_alone = _detour_ratios([totals(parts) for parts in track.lagged(2)], track.floor(), 1)
            for k, ratio in enumerate(ratios_alone, start=1):
                far = ratio > DETOUR_OF_MOST and (
                    _is_a_detour(track, walking, k, k + 1) or _is_louder(ratios_alone, k - 1)
                )
                single[int(track.steps[k])].append(float(ratio) if far else 0.0)
    for step, of_matrices in single.items():
        if len(of_matrices) >= FEWEST_MATRICES and (median := float(np.median(of_matrices))) > DETOUR_OF_MOST:
            layers[step,] = [track.name for track in known]
            ratios[step,] = [median]
    return [
        Suspect(
            steps,
            names,
            len(known),
            "off path",
            f"{told_steps(steps)} {'lies' if len(steps) == 1 else 'lie'} off the way: "
            f"{_times(float(np.median(ratios[steps])))} further from those before and after than these from each other",
        )
        for steps, names in sorted(layers.items())
        if len(names) >= SEVERAL or not matrices.isdisjoint(names) or max(ratios[steps]) > DETOUR_OF_VECTOR
    ]


def _times(ratio: float) -> str:
    return "more than 1000 times" if ratio > 1000 else f"{ratio:.3g} times"


def _detours(track: Track, longest: int) -> list[tuple[tuple[int, ...], float]]:
    """Return the shortest stretches of one tensor that are off its way, each with its ratio."""
    found: list[tuple[tuple[int, ...], float]] = []
    while len(track.steps) > 3:
        worst = _worst_detour(track, longest)
        if worst is None:
            break
        found.append(worst)
        track = track.without(worst[0])
    return found


def _worst_detour(track: Track, longest: int) -> tuple[tuple[int, ...], float] | None:
    """Return, of the shortest stretches off the way, the one that is furthest off.

    The others are looked at again without it: a checkpoint beside one that is wrong may seem to be wrong itself.
    """
    n = len(track.steps)
    lagged, walking, floor = track.lagged(min(longest + 1, n - 1)), track.two_intervals(), track.floor()
    wholes = [totals(parts) for parts in lagged]
    for length in range(1, min(len(lagged), (n + 1) // 2)):
        ratios = _detour_ratios(wholes, floor, length)
        far = ratios > DETOUR
        if not far.any():
            continue
        # By the same of each quarter: not the doing of a few.
        quarters = _detour_ratios(lagged, floor[:, None] / QUARTERS, length).min(axis=1)
        candidates = np.flatnonzero(far & (quarters > DETOUR_QUARTER))
        for k in sorted(candidates.tolist(), key=lambda k: -float(ratios[k])):
            alone = length == 1 and track.is_matrix and _is_louder(ratios, k)
            if alone or _is_a_detour(track, walking, k + 1, k + 1 + length):
                return tuple(track.steps[k + 1 : k + 1 + length].tolist()), float(ratios[k])
    return None


def _is_a_detour(track: Track, walking: tuple[Array, Array], begin: int, end: int) -> bool:
    """Tell a detour from noise about a fixed point that was louder for a while: the run walks, or its way is lost."""
    two, both = walking
    around = range(max(0, begin - NEAR - 2), min(len(two), end + NEAR))
    near = [k for k in around if k + 2 < begin or k >= end or begin <= k < end - 2]
    # Of the sums: where noise comes and goes with the learning rate, single ratios are anything up to 1.
    if near and two[near].sum() > WALKING * both[near].sum():
        return True
    if not track.is_matrix:
        return False
    there, back, across = (_correlation(track, a, b) for a, b in ((begin - 1, begin), (end - 1, end), (begin - 1, end)))
    return across > LOST_WAY and max(there, back) < LOST_WAY * across


def _is_louder(ratios: Array, k: int) -> bool:
    """Tell whether one detour stands out from those around it, beside each of which another may be one."""
    away = sorted((j for j in range(len(ratios)) if abs(j - k) > 1), key=lambda j: abs(j - k))
    others = sorted(ratios[away[: 4 * NEAR]])
    return len(others) > NEAR and bool(ratios[k] > LOUDER * others[-2])


def _correlation(track: Track, a: int, b: int) -> float:
    return float(Track(track.name, True, track.steps[[a, b]], track.values[[a, b]], track.rounding).correlations()[0])


def _detour_ratios(lagged: Sequence[Array], floor: Array, length: int) -> Array:
    """Return how far off stretches of some length are, by the checkpoint before.

    That is the nearer of the distances to the checkpoints before and after, over the distance between these; from
    squared distances by lag, and what rounding alone may make of them.
    """
    n = len(floor) - length - 1
    nearer = np.minimum(lagged[0][:n], lagged[0][length:])
    return np.asarray(np.sqrt((nearer + floor[:n]) / (lagged[length] + floor[:n])))


def _stretched(known: Sequence[Track]) -> list[Suspect]:
    """Find checkpoints that are a multiple of those around them, alone or from some step on."""
    pulses: dict[tuple[int, ...], list[str]] = defaultdict(list)
    jumps: dict[int, list[tuple[str, float, float]]] = defaultdict(list)
    for track in known:
        factors, rest = track.stretches()
        size = np.where(factors > 0, np.abs(np.log(np.where(factors > 0, factors, 1))), 0)
        rate = size + track.rounding
        radial = (np.abs(factors - 1) > rest) & (size > STRETCH * track.rounding)
        least, far = np.zeros(len(rest)), np.zeros(len(rest), dtype=np.bool_)
        for k in np.flatnonzero(radial).tolist():
            # A learning rate that restarts higher makes all of the movement larger, decay as well as noise.
            faster = rest[k] / max(1.0, factors[k]) / np.median(_nearby(rest, k, 2))
            least[k] = STRETCH * np.maximum(1, faster)
            far[k] = rate[k] > least[k] * _nearby(rate, k, 2).max()
        k = 0
        while k < len(far):
            if k + 1 < len(far) and far[k] and far[k + 1] and (factors[k] > 1) != (factors[k + 1] > 1):
                pulses[int(track.steps[k + 1]),].append(track.name)
                k += 2
                continue
            if track.is_matrix and far[k] and rate[k] > least[k] * _nearby(rate, k, 1).max():
                jumps[int(track.steps[k + 1])].append(
                    (track.name, float(factors[k]), float(abs(factors[k] - 1) / rest[k]))
                )
            k += 1
    return [
        *(
            Suspect(steps, names, len(known), "scaled", f"{told_steps(steps)} is a multiple of its neighbours")
            for steps, names in sorted(pulses.items())
        ),
        *_lasting(known, jumps),
    ]


def _nearby(values: Array, k: int, wide: int) -> Array:
    """Return the values on either side of the k-th, those next to it left out if `wide` is 2 (one of a pair)."""
    low, high = max(0, k - NEAR - wide + 1), k + NEAR + wide
    other = [j for j in range(low, min(high, len(values))) if abs(j - k) >= wide]
    return values[other] if other else values


def _lasting(known: Sequence[Track], jumps: dict[int, list[tuple[str, float, float]]]) -> Iterator[Suspect]:
    """Find stretches that last; at the last step, or behind the first, it is one checkpoint that is stretched."""
    matrices = {track.name for track in known if track.is_matrix}
    every = sorted({int(step) for track in known for step in track.steps})
    for step, layers in sorted(jumps.items()):
        most = 2 * len(layers) > len(matrices)
        named = [(n, f) for n, f, purity in layers if most or purity > PURE]
        if not named:
            continue
        factor = float(np.median([f for _, f in named]))
        if step == every[-1] or step == every[1]:
            wrong = step if step == every[-1] else every[0]
            told_factor = factor if step == every[-1] else 1 / factor
            reason = f"step {wrong} is {told_factor:.3g} times its neighbour"
            yield Suspect((wrong,), [n for n, _ in named], len(known), "scaled", reason)
        else:
            reason = f"from step {step} on the weights are {factor:.3g} times what they were"
            yield Suspect((step,), [n for n, _ in named], len(known), "break", reason)


def _broken(known: Sequence[Track]) -> Iterator[Suspect]:
    """Find steps from which on the weights have nothing to do with those before."""
    lost: dict[int, list[str]] = defaultdict(list)
    matrices = [track for track in known if track.is_matrix]
    for track in matrices:
        correlation = track.correlations()
        fall = -np.log(np.clip(correlation, 0.05, 1))
        elapsed = np.diff(track.steps)
        growth = track.squares()[1:] / track.squares()[:-1]
        for k in np.flatnonzero((correlation < LOST) & (growth < GROWN**2)):
            near = [j for j in range(max(0, int(k) - NEAR), min(len(fall), int(k) + NEAR + 1)) if j != k]
            pace = float(np.median(fall[near] / elapsed[near]))
            # Weights may forget where they began between the first two checkpoints, if these lie as far apart as later
            # ones; that nothing of the kind goes on afterwards speaks against it.
            settled = k > 0 or bool(np.all(fall[1:4] < -np.log(0.95)))
            if settled and fall[k] > FASTER * pace * elapsed[k]:
                lost[int(track.steps[k + 1])].append(track.name)
    every = sorted({int(step) for track in known for step in track.steps})
    enough = max(min(SEVERAL, len(matrices)), LOST_SHARE * len(matrices))
    breaks = {step: names for step, names in sorted(lost.items()) if len(names) >= enough}
    for step, names in breaks.items():
        layers = _all_if_most(names, known)
        if step in (every[1], every[-1]):
            wrong = every[0] if step == every[1] else step
            reason = f"step {wrong} has nothing in common with its neighbour"
            yield Suspect((wrong,), layers, len(known), "off path", reason)
        else:
            reason = f"from step {step} on the weights have nothing in common with those before"
            yield Suspect((step,), layers, len(known), "break", reason)


def _leapt(known: Sequence[Track]) -> Iterator[Suspect]:
    """Find intervals in which the weights move further than in any other."""
    leaps: dict[int, list[tuple[str, float]]] = defaultdict(list)
    matrices = [track for track in known if track.is_matrix]
    for track in matrices:
        way = np.sqrt(np.square(np.diff(track.values, axis=0)).sum(axis=1) + track.floor()[1:])
        elapsed = np.diff(track.steps)
        # Beside the beginning, where all is new, nothing is out of the ordinary.
        for k in range(1, len(way)):
            alike = (2 * elapsed >= elapsed[k]) & (np.arange(len(way)) != k)
            if alike.sum() > NEAR:
                most = np.max((way * np.maximum(1, elapsed[k] / elapsed))[alike])
                if way[k] > LEAP * most:
                    leaps[int(track.steps[k + 1])].append((track.name, float(way[k] / most)))
    last = max((int(track.steps[-1]) for track in matrices), default=0)
    for step, told in sorted(leaps.items()):
        if 2 * len(told) > len(matrices):
            further = f"{_times(float(np.median([r for _, r in told])))} further than in any other interval as long"
            layers = _all_if_most([name for name, _ in told], known)
            check = "off path" if step == last else "break"
            yield Suspect((step,), layers, len(known), check, f"just before step {step} the weights move {further}")


def _all_if_most(names: list[str], known: Sequence[Track]) -> list[str]:
    """Let vectors go with the matrices: theirs are alike in all runs."""
    matrices = [track.name for track in known if track.is_matrix]
    return [track.name for track in known] if 2 * len(names) > len(matrices) else names
