"""Distances and matchings of diagrams against exact ones, whatever the bars: in the plane, and on a line."""

import math
from collections.abc import Callable
from itertools import permutations
from typing import Any, Literal

import numpy as np
import pytest
from exact_matching import assert_exact, exact_bottleneck, exact_wasserstein, pairing_costs, rounding
from hard_cases import Array, diagrams, halves, quarters
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from property_examples import examples
from scipy.optimize import linear_sum_assignment

from toposcope.errors import ToposcopeError
from toposcope.homology import (
    Diagram,
    bottleneck,
    diagram_distances,
    distances,
    matching,
    neural_persistence,
    rips,
    sublevel_graph,
    wasserstein,
)
from toposcope.kernels import plane_matching
from toposcope.kernels.noncrossing_matching import cheapest_matching

thorough = examples(200)
moderate = examples(100)

Order = Literal[1, 2]
ORDERS: tuple[Order, ...] = (1, 2)
orders = pytest.mark.parametrize("order", ORDERS)
EMPTY = Diagram(np.empty((0, 2)), 1)
THICK_EMPTY = Diagram(np.array([[1.0, 1.0], [-2.0, -2.0]]), 1)
"""Empty too: both of its bars lie on the diagonal."""
Pair = tuple[Diagram, Diagram]


# Small diagrams of every hard kind


@st.composite
def near_equal(draw: st.DrawFn) -> Pair:
    """A diagram, and the same after a small step of training."""
    diagram, size = draw(diagrams(max_bars=7)), draw(st.sampled_from([1e-1, 1e-2, 1e-3, 1e-6, 1e-9, 1e-12]))
    noise = np.random.default_rng(draw(st.integers(0, 2**32))).normal(size=diagram.pairs.shape)
    return diagram, Diagram(diagram.pairs + size * noise, 1)


@st.composite
def clustered(draw: st.DrawFn) -> Pair:
    """Bars close to each other: which goes to which is decided far below their lifetimes."""
    rng, size = np.random.default_rng(draw(st.integers(0, 2**32))), 10.0 ** -draw(st.integers(3, 6))
    n = draw(st.integers(2, 11))
    return Diagram([[0.0, 1.0]] + size * rng.normal(size=(n, 2)), 1), Diagram(
        [[0.0, 1.0]] + size * rng.normal(size=(n, 2)), 1
    )


@st.composite
def tied(draw: st.DrawFn) -> Pair:
    """Few distinct bars, so that many pairs cost the same and many points are equal."""
    rng, levels = np.random.default_rng(draw(st.integers(0, 2**32))), draw(st.integers(2, 7))
    first, second = (
        Diagram(rng.integers(0, levels, size=(draw(st.integers(1, 70)), 2)).astype(float), 1) for _ in "ab"
    )
    return first, second


CASES: dict[str, st.SearchStrategy[Pair]] = {
    "any": st.tuples(diagrams(max_bars=7), diagrams(max_bars=7)),
    "near equal": near_equal(),
    "clustered": clustered(),
    "tied": tied(),
    "a few bars more": st.tuples(diagrams(max_bars=7), diagrams(max_bars=2)).map(
        lambda pair: (pair[0], Diagram(np.concatenate([pair[0].pairs, pair[1].pairs]), 1))
    ),
}


@pytest.mark.parametrize("case", CASES)
@thorough
@given(data=st.data())
def test_distances_are_those_of_the_best_assignment(case: str, data: st.DataObject) -> None:
    # of eleven close bars each difference is rounded, and in another way in either matching
    tolerance = 4e-15 if case == "clustered" else None
    assert_exact(*data.draw(CASES[case]), rel=1e-12 if case == "tied" else 1e-14, tolerance=tolerance)


@pytest.mark.parametrize("size", [1e-8, 1e-10, 1e-12])
def test_bars_far_closer_than_their_lifetimes(size: float) -> None:
    rng = np.random.default_rng(6)
    for n in range(2, 12):
        first, second = (Diagram([[0.0, 1.0]] + size * rng.normal(size=(n, 2)), 1) for _ in range(2))
        assert_exact(first, second, tolerance=4e-15)


@moderate
@given(st.integers(0, 2**32), st.integers(2, 60), st.integers(7, 14))
def test_bars_closer_than_squares_can_tell_are_within_the_stated_bound(seed: int, n: int, digits: int) -> None:
    rng, size = np.random.default_rng(seed), 10.0**-digits
    first, second = (Diagram([[0.0, 1.0]] + size * rng.normal(size=(n, 2)), 1) for _ in range(2))
    excess = wasserstein(first, second, order=2) - exact_wasserstein(first.pairs, second.pairs, 2)
    assert -1e-15 * size * n < excess < 1e-8 * math.sqrt(n)
    assert wasserstein(first, second, order=1) == pytest.approx(
        exact_wasserstein(first.pairs, second.pairs, 1), abs=1e-14
    )


@moderate
@given(diagrams(max_bars=3), diagrams(max_bars=2))
@example(Diagram(np.array([[0.0, 1.0]]), 1), Diagram(np.array([[0.0, 1.0 + 1e-15]]), 1))
def test_matchings_of_tiny_diagrams_one_by_one(first: Diagram, second: Diagram) -> None:
    # No solver at all: every permutation. This also vouches for the exact matchings of the other tests.
    matrix = pairing_costs(first.pairs, second.pairs)
    rows = range(len(matrix))
    matchings = [matrix[rows, list(columns)] for columns in permutations(rows)]
    assert exact_bottleneck(first.pairs, second.pairs) == min(float(m.max(initial=0)) for m in matchings)
    for order in ORDERS:
        best = min(float(np.sum(matching**order)) for matching in matchings) ** (1 / order)
        assert exact_wasserstein(first.pairs, second.pairs, order) == pytest.approx(best, rel=1e-14, abs=0)
    assert_exact(first, second)
    assert wasserstein(first, second) == wasserstein(first, second, order=2)


# Large diagrams


def band(n: int, seed: int, shift: float = 0.0, spread: float = 0.1) -> Diagram:
    """Bars as H1 of many dimensions has: births far apart, lifetimes short."""
    rng = np.random.default_rng(seed)
    births = shift + rng.normal(size=n)
    return Diagram(np.column_stack([births, births + spread * rng.exponential(size=n)]), 1)


def moved_band(size: float) -> Pair:
    first = band(200, 0)
    return first, Diagram(first.pairs + size * np.random.default_rng(1).normal(size=first.pairs.shape), 1)


def crowds(k: int, n: int, width: float) -> Pair:
    """More bars in one place than the other diagram has there: prices that few pairs decide would be far too high."""
    rng = np.random.default_rng(0)
    places = np.array([[0.0, 1.0], [0.3, 1.5], [0.9, 1.4]])
    first, second = (
        Diagram(places[rng.choice(3, size, p=shares)] + width * rng.uniform(0, 0.1, (size, 2)), 1)
        for size, shares in ((k, [0.8, 0.1, 0.1]), (n, [0.1, 0.2, 0.7]))
    )
    return first, second


def clouds_of(dimension: int, seed: int) -> Pair:
    rng = np.random.default_rng(seed)
    return rips(rng.normal(size=(60, 3)))[dimension], rips(rng.normal(size=(50, 3)) * 1.5)[dimension]


def weights() -> Pair:
    rng = np.random.default_rng(2)
    first = neural_persistence(rng.normal(size=(20, 30))).diagram
    return first, neural_persistence(rng.standard_cauchy(size=(25, 10))).diagram


def neighbouring_checkpoints(dimension: int, size: float, n: int = 120, d: int = 64) -> Pair:
    rng = np.random.default_rng(0)
    scales = np.arange(1, d + 1) ** -0.5
    points = rng.normal(size=(n, d)) * scales
    moved = points + size * rng.normal(size=points.shape) * scales
    return rips(points)[dimension], rips(moved)[dimension]


LARGE: dict[str, Any] = {
    **{f"bands of {k} and {n}": lambda k=k, n=n: (band(k, 0), band(n, 1)) for k, n in ((250, 90), (1, 150))},
    **{f"bands {w} wide": lambda w=w: (band(200, 0, spread=w), band(200, 1, spread=w)) for w in (1e-3, 0.1, 3.0)},
    # The nearest neighbours are all at the edge of the other: most pairs of the best matching are not among them.
    **{f"shifted by {shift}": lambda s=shift: (band(180, 0), band(160, 1, s)) for shift in (0.01, 0.1, 1.0, 100.0)},
    **{f"near, by {size}": lambda size=size: moved_band(size) for size in (1e-2, 1e-6, 1e-12)},
    **{f"crowds {w} wide": lambda w=w: crowds(150, 150, w) for w in (1e-9, 1e-2, 1.0)},
    "uneven crowds": lambda: crowds(200, 60, 1e-2),
    **{f"clouds' H{k}, {seed}": lambda k=k, s=seed: clouds_of(k, s) for k in (0, 1) for seed in range(2)},
    "weights": weights,
    "loops of neighbouring clouds": lambda: neighbouring_checkpoints(1, 0.2),
    **{f"near, trees by {size}": lambda s=size: neighbouring_checkpoints(0, s, 200, 8) for size in (1e-3, 1e-8)},
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_distances_of_larger_diagrams(name: str) -> None:
    assert_exact(*LARGE[name](), rel=1e-12, tolerance=0 if name.startswith("near") else 1e-14)


@orders
def test_many_bars(order: Order) -> None:
    first, second = band(2000, 0, spread=0.3), band(1900, 1, shift=0.1, spread=0.3)
    (a, a_alone), (b, b_alone) = ((d.pairs, (d.lifetimes / 2) ** order) for d in (first, second))
    costs = np.abs(a[:, None] - b[None]).max(axis=2) ** order
    # What each pair saves beside two points alone.
    savings = np.minimum(costs - a_alone[:, None] - b_alone, 0)
    expected = a_alone.sum() + b_alone.sum() + savings[linear_sum_assignment(savings)].sum()
    assert wasserstein(first, second, order) ** order == pytest.approx(expected, rel=1e-11)


# A metric


@moderate
@given(diagrams(), st.data())
def test_equal_diagrams_are_at_no_distance_in_any_order(diagram: Diagram, data: st.DataObject) -> None:
    shuffled = Diagram(diagram.pairs[data.draw(st.permutations(range(len(diagram.pairs))))], 1)
    assert diagram_distances(diagram, shuffled) == (0, 0, 0)
    first, second = band(150, 0), band(170, 1)
    mixed = Diagram(np.random.default_rng(2).permutation(second.pairs), 1)
    assert diagram_distances(first, mixed) == diagram_distances(first, second)


@moderate
@given(diagrams(max_bars=5), diagrams(max_bars=5), diagrams(max_bars=5))
def test_triangle_inequality_and_order_of_the_three(a: Diagram, b: Diagram, c: Diagram) -> None:
    slack = 3 * rounding(a, b, c)
    direct, one, other = diagram_distances(a, c), diagram_distances(a, b), diagram_distances(b, c)
    for through, first, second in zip(direct, one, other, strict=True):
        assert through <= (first + second) * (1 + 1e-14) + slack
    assert direct.bottleneck <= direct.wasserstein_2 * (1 + 1e-14) + slack
    assert direct.wasserstein_2 <= direct.wasserstein_1 * (1 + 1e-14) + slack


@moderate
@given(diagrams(max_bars=6), diagrams(max_bars=6), st.integers(-300, 300))
def test_a_power_of_two_scales_them(first: Diagram, second: Diagram, exponent: int) -> None:
    far, away = (Diagram(np.ldexp(diagram.pairs, exponent), 1) for diagram in (first, second))
    assert bottleneck(far, away) == math.ldexp(bottleneck(first, second), exponent)
    tolerance = math.ldexp(rounding(first, second), exponent)
    for order in ORDERS:
        expected = math.ldexp(wasserstein(first, second, order=order), exponent)
        assert wasserstein(far, away, order=order) == pytest.approx(expected, rel=1e-14, abs=tolerance)


@pytest.mark.parametrize("empty", [EMPTY, THICK_EMPTY])
@moderate
@given(diagrams())
@example(EMPTY)
@example(THICK_EMPTY)
def test_distance_to_an_empty_diagram_is_that_to_the_diagonal(empty: Diagram, diagram: Diagram) -> None:
    halves = (diagram.lifetimes / 2).tolist()
    expected = (math.fsum(halves), math.sqrt(math.fsum(half**2 for half in halves)), max(halves, default=0))
    for pair in ((diagram, empty), (empty, diagram)):
        assert diagram_distances(*pair) == pytest.approx(expected, rel=1e-14, abs=rounding(diagram))


counts = st.tuples(st.integers(0, 2), st.integers(0, 2))


@moderate
@given(diagrams(max_bars=4), diagrams(max_bars=4), counts, counts)
def test_classes_without_a_death_are_matched_with_their_like_or_infinitely_far(
    first: Diagram, second: Diagram, of_first: tuple[int, int], of_second: tuple[int, int]
) -> None:
    finite = diagram_distances(first, second)
    first, second = (Diagram(d.pairs, 1, *n) for d, n in ((first, of_first), (second, of_second)))
    expected = finite if of_first == of_second else (math.inf,) * 3
    assert diagram_distances(first, second) == expected
    assert (wasserstein(first, second, 1), wasserstein(first, second, 2), bottleneck(first, second)) == expected
    if of_first == of_second:
        assert len(matching(first, second)) == len(first.pairs)
        return
    with pytest.raises(ToposcopeError, match=r"\Adiagrams: no matching has a finite cost, their n_[^\n]*\Z"):
        matching(first, second)


@moderate
@given(diagrams(max_bars=6), diagrams(max_bars=6))
def test_only_finite_bars_of_positive_length_count(first: Diagram, second: Diagram) -> None:
    padded = Diagram(np.concatenate([second.pairs, [[0.5, 0.5], [3.0, 3.0]]]), 1)
    for other in (padded, Diagram(second.pairs[:, ::-1], 1)):
        assert diagram_distances(first, other) == diagram_distances(first, second)


@moderate
@given(
    st.tuples(diagrams(max_bars=4), diagrams(max_bars=4)),
    st.integers(0, 4).flatmap(lambda n: st.tuples(*[hnp.arrays(np.float64, n, elements=quarters)] * 2)),
    st.sampled_from(["essential_births", "truncated_births"]),
)
def test_classes_without_a_death_are_matched_by_their_births(
    finite: Pair, births: tuple[Array, Array], field: Any
) -> None:
    """Against every permutation of them, as GUDHI and giotto-tda match them."""
    fields: list[dict[str, Any]] = [{field: born} for born in (*births, np.append(births[1], 1.0))]
    first, second = (Diagram(d.pairs, 1, **born) for d, born in zip(finite, fields, strict=False))
    counted = Diagram(first.pairs, 1, first.n_essential, first.n_truncated)
    without, found = diagram_distances(*finite), diagram_distances(first, second)
    assert diagram_distances(counted, second) == without
    costs = np.array([np.abs(births[0] - np.array(order)) for order in permutations(births[1].tolist())])
    for order in ORDERS:
        least = (costs**order).sum(axis=1).min()
        assert found[order - 1] ** order == pytest.approx(without[order - 1] ** order + least, rel=1e-12, abs=1e-12)
    assert found.bottleneck == max(without.bottleneck, costs.max(axis=1, initial=0).min())
    for other in (Diagram(second.pairs, 1, **fields[2]), Diagram(second.pairs, 1, 9, 9)):
        assert diagram_distances(first, other) == (math.inf,) * 3


def test_sublevel_sets_are_as_far_apart_as_their_minima() -> None:
    low, high = (sublevel_graph(np.array([height, height + 1]), [[0, 1]]).diagram for height in (0.0, 5.0))
    assert diagram_distances(low, high) == (5, 5, 5)
    with pytest.raises(ToposcopeError, match=r"\Aessential_births: expected 3 finite numbers, one of "):
        Diagram(low.pairs, 0, 3, essential_births=np.arange(2.0))


@pytest.mark.parametrize("dimensions", [(0, 1), (2, 1)])
def test_diagrams_of_different_dimensions_are_refused(dimensions: tuple[int, int]) -> None:
    first, second = (Diagram(np.array([[0.0, 1.0]]), dimension) for dimension in dimensions)
    for distance in (wasserstein, bottleneck):
        with pytest.raises(ToposcopeError, match=rf"\A[^\n]*{dimensions[0]} and {dimensions[1]}[^\n]*\Z"):
            distance(first, second)


@pytest.mark.parametrize("order", [0, 3, 0.5, None, "2"])
def test_other_orders_are_refused(order: Any) -> None:
    with pytest.raises(ToposcopeError, match=r"\Aorder: [^\n]*\Z"):
        wasserstein(EMPTY, EMPTY, order=order)


# On a line: all bars share one end


def born_at(birth: float, lifetimes: Array, sign: float = 1.0) -> Diagram:
    return Diagram(np.column_stack([np.full(len(lifetimes), birth), birth + sign * lifetimes]), 0)


@st.composite
def on_a_line(draw: st.DrawFn, max_bars: int = 7) -> Pair:
    """Two diagrams of one birth: ties, duplicates, zeros, near-equal ones, distant scales; ascending or descending."""
    birth, sign = draw(st.sampled_from([0.0, 1.0, -0.3])), draw(st.sampled_from([1.0, -1.0]))
    kind = draw(st.sampled_from(["ties", "halves", "heavy", "near", "clustered"]))
    elements: st.SearchStrategy[float] = quarters if kind == "ties" else halves
    if kind == "heavy":
        elements = st.integers(-9, 6).map(lambda e: 10.0**e)
    first, second = (
        np.abs(draw(hnp.arrays(np.float64, draw(st.integers(0, max_bars)), elements=elements))) for _ in "ab"
    )
    size = draw(st.sampled_from([1e-1, 1e-3, 1e-6, 1e-9, 1e-12, 1e-15]))
    if kind == "near":
        second = np.abs(first + size * draw(hnp.arrays(np.float64, len(first), elements=halves)))
        second = second[draw(st.integers(0, min(2, len(second)))) :]
    elif kind == "clustered":
        first, second = 0.5 + size * first, 0.5 + size * second
    exponent = draw(st.sampled_from([0, 0, -900, 900]))
    a, b = (born_at(birth, lifetimes, sign) for lifetimes in (first, second))
    return Diagram(np.ldexp(a.pairs, exponent), 0), Diagram(np.ldexp(b.pairs, exponent), 0)


@st.composite
def long_on_a_line(draw: st.DrawFn, max_bars: int = 60) -> Pair:
    """Long enough for the band to leave most of the table out; from equal but for a little to nothing alike."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    first = rng.gamma(rng.choice([0.3, 2, 50]), size=rng.integers(0, max_bars + 1))
    second = first + rng.choice([1e-8, 1e-3, 0.1, 3]) * rng.normal(size=len(first))
    second = second[rng.integers(0, 4) :] if rng.random() < 0.5 else rng.gamma(2, size=rng.integers(0, max_bars + 1))
    birth, sign = rng.choice([0.0, 1.0]), rng.choice([1.0, -1.0])
    return born_at(birth, first, sign), born_at(birth, np.abs(second), sign)


def as_if_in_plane(first: Diagram, second: Diagram) -> "distances._Matching":
    """What would be computed if no birth were shared."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(distances, "_on_a_line", lambda a, b: None)
        return distances._Matching(first, second)


@examples(300)
@given(on_a_line())
def test_on_a_line_nothing_is_lost_beside_the_coordinates(pair: Pair) -> None:
    # No tolerance relative to the coordinates: what differs, differs in one coordinate only.
    assert_exact(*pair, tolerance=0)
    assert bottleneck(*pair) == exact_bottleneck(pair[0].pairs, pair[1].pairs) == as_if_in_plane(*pair).bottleneck()


@examples(300)
@given(st.one_of(on_a_line(), long_on_a_line()))
def test_on_a_line_distances_are_those_of_the_general_algorithms(pair: Pair) -> None:
    general = as_if_in_plane(*pair)
    for order in ORDERS:
        got = wasserstein(*pair, order=order)
        assert got == pytest.approx(general.wasserstein(order), rel=1e-13, abs=0)
        assert got == wasserstein(*pair[::-1], order=order)
    assert bottleneck(*pair) == general.bottleneck()


@orders
@examples(300)
@given(on_a_line(), st.floats(0, 3))
def test_prices_of_staying_alone_may_be_any_that_ascend(order: Order, pair: Pair, price: float) -> None:
    # The kernel knows nothing of diagonals: against the recurrence in its plainest form.
    x, y = (np.sort(diagram.lifetimes) for diagram in pair)
    unit = max(x.max(initial=0), y.max(initial=0)) or 1.0
    x, y = x / unit, y / unit
    x_alone, y_alone = price * np.sqrt(x), price + y
    table = np.full((len(x) + 1, len(y) + 1), np.inf)
    for i, j in np.ndindex(table.shape):
        pairing = table[i - 1, j - 1] + abs(x[i - 1] - y[j - 1]) ** order if i and j else np.inf
        left = table[i - 1, j] + x_alone[i - 1] if i else np.inf
        right = table[i, j - 1] + y_alone[j - 1] if j else np.inf
        table[i, j] = min(pairing, left, right) if i + j else 0.0
    got = cheapest_matching(x, y, x_alone, y_alone, order)
    assert got == pytest.approx(float(table[-1, -1]), rel=1e-14, abs=0)


@orders
@pytest.mark.parametrize("step", [0.05, 1 / 3, 1e-9])
def test_sums_of_many_terms_lose_no_digits(order: Order, step: float) -> None:
    # Equal terms are all rounded the same way when simply added up: an error of 4e-13 here.
    first, second = born_at(0.0, np.full(20_000, 1.0)), born_at(0.0, np.full(20_000, 1.0 + step))
    gap = float(second.pairs[0, 1] - 1.0)
    expected = math.fsum([gap**order] * 20_000) ** (1 / order)
    assert wasserstein(first, second, order=order) == pytest.approx(expected, rel=1e-15, abs=0)
    assert bottleneck(first, second) == gap


@orders
@pytest.mark.parametrize(("size", "birth", "sign"), [(1e-6, 0.0, 1.0), (1e-12, 1.0, -1.0)])
def test_near_equal_diagrams_of_many_points(order: Order, size: float, birth: float, sign: float) -> None:
    # Bars that move by less than half their spacing keep their partners.
    n = 20_000
    lifetimes = (1 + np.arange(n)) / n
    moved = lifetimes + size * np.random.default_rng(0).uniform(-1, 1, size=n)
    first, second = born_at(birth, lifetimes, sign), born_at(birth, moved, sign)
    moves = np.abs(second.pairs[:, 1] - first.pairs[:, 1])
    expected = math.fsum((moves**order).tolist()) ** (1 / order)
    assert wasserstein(first, second, order=order) == pytest.approx(expected, rel=1e-14, abs=0)
    assert bottleneck(first, second) == moves.max()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e300])
def test_tiny_and_huge_bars(scale: float) -> None:
    first, second = born_at(0.0, np.array([1.0]) * scale), born_at(0.0, np.array([2.0, 0.5]) * scale)
    expected = (1.25 * scale, math.hypot(1, 0.25) * scale, scale)
    assert diagram_distances(first, second) == pytest.approx(expected, rel=1e-14, abs=0)


def test_tiny_beside_huge_bars() -> None:
    pair = born_at(0.0, np.array([1e-300, 1e300])), born_at(0.0, np.array([1e-300, 1e-200, 3e300]))
    general = as_if_in_plane(*pair)
    assert bottleneck(*pair) == general.bottleneck() == 1.5e300
    for order in ORDERS:
        assert wasserstein(*pair, order=order) == pytest.approx(general.wasserstein(order), rel=1e-14, abs=0)


@pytest.mark.parametrize("distance", [bottleneck, wasserstein, lambda a, b: sum(diagram_distances(a, b))])
def test_one_birth_never_takes_the_general_path(
    distance: Callable[[Diagram, Diagram], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane_matching, "cheapest_partners", None)
    monkeypatch.setattr(distances._Matching, "_covers_in_plane", None)
    up, down = born_at(0.0, np.arange(1.0, 5.0)), born_at(1.0, np.arange(1.0, 4.0), -1.0)
    empty = born_at(0.0, np.empty(0))
    for first, second in ((up, up), (down, down), (up, empty), (empty, down), (empty, empty)):
        distance(first, second)
    # A bar of length zero elsewhere is not looked at.
    distance(up, Diagram(np.concatenate([up.pairs, [[7.0, 7.0]]]), 0))
    with pytest.raises((TypeError, AttributeError)):
        distance(up, down)
    none = np.empty(0)
    assert cheapest_matching(none, none, none, none, 2) == 0
