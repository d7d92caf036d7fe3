"""Distances between diagrams whose bars share one birth, against exact matchings and the general algorithms."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from cpu_time import cpu_time_below
from exact_matching import exact_bottleneck, exact_wasserstein
from gudhi import bottleneck_distance
from gudhi.hera import wasserstein_distance
from hard_cases import Array, halves, quarters
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from property_examples import examples

from toposcope.homology import Diagram, bottleneck, diagram_distances, distances, rips, wasserstein
from toposcope.kernels import plane_matching
from toposcope.kernels.noncrossing_matching import cheapest_matching

thorough = examples(300)

Order = Literal[1, 2]
ORDERS: tuple[Order, ...] = (1, 2)
orders = pytest.mark.parametrize("order", ORDERS)


def born_at(birth: float, lifetimes: Array, sign: float = 1.0) -> Diagram:
    return Diagram(np.column_stack([np.full(len(lifetimes), birth), birth + sign * lifetimes]), 0)


@st.composite
def on_a_line(draw: st.DrawFn, max_bars: int = 7) -> tuple[Diagram, Diagram]:
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
        second = np.concatenate([np.abs(first + size * draw(hnp.arrays(np.float64, len(first), elements=halves)))])
        second = second[draw(st.integers(0, min(2, len(second)))) :]
    elif kind == "clustered":
        first, second = 0.5 + size * first, 0.5 + size * second
    exponent = draw(st.sampled_from([0, 0, -900, 900]))
    a, b = (born_at(birth, lifetimes, sign) for lifetimes in (first, second))
    return Diagram(np.ldexp(a.pairs, exponent), 0), Diagram(np.ldexp(b.pairs, exponent), 0)


def random_on_a_line(seed: int, max_bars: int) -> tuple[Diagram, Diagram]:
    """Two diagrams of one birth, from equal but for a little to nothing alike."""
    rng = np.random.default_rng(seed)
    first = rng.gamma(rng.choice([0.3, 2, 50]), size=rng.integers(0, max_bars + 1))
    second = first + rng.choice([1e-8, 1e-3, 0.1, 3]) * rng.normal(size=len(first))
    second = second[rng.integers(0, 4) :] if rng.random() < 0.5 else rng.gamma(2, size=rng.integers(0, max_bars + 1))
    birth, sign = rng.choice([0.0, 1.0]), rng.choice([1.0, -1.0])
    return born_at(birth, first, sign), born_at(birth, np.abs(second), sign)


def general_wasserstein(first: Diagram, second: Diagram, order: Order) -> float:
    """What would be computed if no birth were shared."""
    return as_if_in_plane(first, second).wasserstein(order)


def general_bottleneck(first: Diagram, second: Diagram) -> float:
    return as_if_in_plane(first, second).bottleneck()


def as_if_in_plane(first: Diagram, second: Diagram) -> "distances._Prepared":
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(distances, "_on_a_line", lambda a, b: None)
        return distances._Prepared.of(first, second)


# Against exact matchings and the general algorithms


@orders
@thorough
@given(on_a_line())
def test_wasserstein_is_the_best_assignment(order: Order, pair: tuple[Diagram, Diagram]) -> None:
    got = wasserstein(*pair, order=order)
    # No tolerance relative to the coordinates: what differs, differs in one coordinate only.
    assert got == pytest.approx(exact_wasserstein(pair[0].pairs, pair[1].pairs, order), rel=1e-14, abs=0)
    assert got == pytest.approx(general_wasserstein(*pair, order), rel=1e-14, abs=0)
    assert got == wasserstein(*pair[::-1], order=order)


@thorough
@given(on_a_line())
def test_bottleneck_is_that_of_the_general_algorithm_to_the_bit(pair: tuple[Diagram, Diagram]) -> None:
    got = bottleneck(*pair)
    assert got == exact_bottleneck(pair[0].pairs, pair[1].pairs)
    assert got == general_bottleneck(*pair)
    assert got == bottleneck(*pair[::-1])


@thorough
@given(st.integers(0, 2**32))
def test_longer_diagrams(seed: int) -> None:
    # Long enough for the band to leave most of the table out.
    pair = random_on_a_line(seed, 60)
    for order in ORDERS:
        expected = general_wasserstein(*pair, order)
        assert wasserstein(*pair, order=order) == pytest.approx(expected, rel=1e-13, abs=0)
    assert bottleneck(*pair) == general_bottleneck(*pair)


@pytest.mark.parametrize(("order", "n"), [(1, 1000), (2, 2000)])
def test_clouds_of_many_points(order: Order, n: int) -> None:
    rng = np.random.default_rng(order)
    first, second = (rips(rng.normal(size=(m, 8)), max_dimension=0)[0] for m in (n, n - 50))
    expected = general_wasserstein(first, second, order)
    assert wasserstein(first, second, order=order) == pytest.approx(expected, rel=1e-13, abs=0)
    if n == 1000:
        assert bottleneck(first, second) == general_bottleneck(first, second)


@pytest.mark.parametrize("seed", range(20))
def test_other_libraries(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = (born_at(0.0, rng.gamma(3, size=size)) for size in rng.integers(50, 400, size=2))
    for order in ORDERS:
        ours = wasserstein(first, second, order=order)
        hera = wasserstein_distance(first.pairs, second.pairs, order=order, internal_p=np.inf)
        # Hera's is the cost of some matching, and at most 1 percent from the least.
        assert ours * (1 - 1e-12) <= hera <= ours * 1.0101
    assert bottleneck(first, second) <= bottleneck_distance(first.pairs, second.pairs) * (1 + 1e-12)


@orders
@thorough
@given(on_a_line(), st.floats(0, 3))
def test_prices_of_staying_alone_may_be_any_that_ascend(
    order: Order, pair: tuple[Diagram, Diagram], price: float
) -> None:
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


# Digits


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
@pytest.mark.parametrize("size", [1e-6, 1e-12])
@pytest.mark.parametrize(("birth", "sign"), [(0.0, 1.0), (1.0, -1.0)])
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


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_tiny_and_huge_bars(scale: float) -> None:
    first, second = born_at(0.0, np.array([1.0]) * scale), born_at(0.0, np.array([2.0, 0.5]) * scale)
    assert wasserstein(first, second, order=1) == pytest.approx(1.25 * scale, rel=1e-14, abs=0)
    assert wasserstein(first, second, order=2) == pytest.approx(math.hypot(1, 0.25) * scale, rel=1e-14, abs=0)
    assert bottleneck(first, second) == 1.0 * scale


def test_tiny_beside_huge_bars() -> None:
    first, second = born_at(0.0, np.array([1e-300, 1e300])), born_at(0.0, np.array([1e-300, 1e-200, 3e300]))
    assert bottleneck(first, second) == general_bottleneck(first, second) == 1.5e300
    for order in ORDERS:
        expected = general_wasserstein(first, second, order)
        assert wasserstein(first, second, order=order) == pytest.approx(expected, rel=1e-14, abs=0)


# The path that is taken


@pytest.mark.parametrize("distance", [bottleneck, wasserstein, lambda a, b: sum(diagram_distances(a, b))])
def test_one_birth_never_takes_the_general_path(
    distance: Callable[[Diagram, Diagram], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane_matching, "cheapest_partners", None)
    monkeypatch.setattr(distances, "_bottleneck_in_plane", None)
    up, down, empty = (
        born_at(0.0, np.arange(1.0, 5.0)),
        born_at(1.0, np.arange(1.0, 4.0), -1.0),
        born_at(0.0, np.empty(0)),
    )
    for first, second in ((up, up), (down, down), (up, empty), (empty, down), (empty, empty)):
        distance(first, second)
    # A bar of length zero elsewhere is not looked at.
    distance(up, Diagram(np.concatenate([up.pairs, [[7.0, 7.0]]]), 0))
    with pytest.raises(TypeError):
        distance(up, down)


@orders
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_empty_diagram_and_a_single_bar(order: Order, sign: float) -> None:
    empty, bar = born_at(1.0, np.empty(0), sign), born_at(1.0, np.array([0.5]), sign)
    assert wasserstein(empty, empty, order=order) == bottleneck(empty, empty) == 0
    assert wasserstein(empty, bar, order=order) == bottleneck(bar, empty) == 0.25
    assert wasserstein(bar, bar, order=order) == bottleneck(bar, bar) == 0


def test_no_points_cost_nothing() -> None:
    none = np.empty(0)
    assert cheapest_matching(none, none, none, none, 2) == 0


def test_twenty_thousand_points_take_seconds() -> None:
    rng = np.random.default_rng(0)
    # Many short bars and few long ones: the band leaves nothing out.
    first, second = (born_at(0.0, rng.standard_cauchy(size=20_000) ** 2) for _ in "ab")
    with cpu_time_below(30):
        assert bottleneck(first, second) <= wasserstein(first, second) <= wasserstein(first, second, order=1)
