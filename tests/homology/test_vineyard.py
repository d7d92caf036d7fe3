"""Points followed from diagram to diagram, against SciPy's assignment."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from property_examples import examples
from scipy.optimize import linear_sum_assignment

from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram, matching, vineyard, wasserstein

moderate = examples(80)


def diagram(seed: int, n: int, *, on_a_line: bool = False) -> Diagram:
    draw = np.random.default_rng(seed)
    births = np.zeros(n) if on_a_line else draw.uniform(0, 1, n)
    lengths = draw.exponential(0.3, n) * (draw.random(n) > 0.2)  # some of length zero
    return Diagram(np.column_stack([births, births + lengths]), 1)


def cost(first: Diagram, second: Diagram, partners: np.ndarray, order: int) -> float:
    """Sum of the costs of a matching, by hand."""
    matched = partners >= 0
    pairs = np.abs(first.pairs[matched] - second.pairs[partners[matched]]).max(axis=1, initial=0)
    alone = [first.lifetimes[~matched] / 2, np.delete(second.lifetimes, partners[matched]) / 2]
    return float(sum((part**order).sum() for part in (pairs, *alone)))


def least_cost(first: Diagram, second: Diagram, order: int) -> float:
    k, n = len(first.pairs), len(second.pairs)
    costs = np.zeros((k + n, k + n))
    costs[:k, :n] = np.abs(first.pairs[:, None] - second.pairs).max(axis=2) ** order
    costs[:k, n:] = (first.lifetimes[:, None] / 2) ** order
    costs[k:, :n] = (second.lifetimes / 2) ** order
    return float(costs[linear_sum_assignment(costs)].sum())


@pytest.mark.slow
@moderate
@given(st.integers(0, 2**32), st.integers(0, 12), st.integers(0, 12), st.sampled_from([1, 2]), st.booleans())
def test_a_matching_is_the_cheapest(seed: int, k: int, n: int, order: int, on_a_line: bool) -> None:
    first, second = diagram(seed, k, on_a_line=on_a_line), diagram(seed + 1, n, on_a_line=on_a_line)
    partners = matching(first, second, order)  # type: ignore[arg-type]
    assert len(set(partners[partners >= 0])) == (partners >= 0).sum()
    assert (partners[first.lifetimes == 0] == -1).all()
    found = cost(first, second, partners, order)
    assert found == pytest.approx(least_cost(first, second, order), rel=1e-9, abs=1e-15)
    assert found ** (1 / order) == pytest.approx(wasserstein(first, second, order), rel=1e-9, abs=1e-12)  # type: ignore[arg-type]
    assert_array_equal(partners, matching(first, second, order))  # type: ignore[arg-type]


def test_points_that_move_little_keep_their_vines() -> None:
    places = np.array([[0.0, 1.0], [0.0, 3.0], [2.0, 2.5]])
    moved = [Diagram(places + 0.02 * k, 1) for k in range(5)]
    vines = vineyard(moved)
    assert [vine.start for vine in vines] == [0, 0, 0]
    for number, vine in enumerate(vines):
        assert_array_equal(vine.pairs, [d.pairs[number] for d in moved])
    assert [vine.longest for vine in vines] == pytest.approx([1, 3, 0.5])


def test_points_come_and_go() -> None:
    """One is born at the second diagram, and one is gone after the second."""
    stays, goes, comes = [0.0, 3.0], [1.0, 1.5], [5.0, 5.4]
    diagrams = [Diagram(np.array(p), 1) for p in ([stays, goes], [stays, goes, comes], [stays, comes], [stays])]
    found = {(vine.start, *vine.pairs[0]): len(vine.pairs) for vine in vineyard(diagrams)}
    assert found == {(0, *stays): 4, (0, *goes): 2, (1, *comes): 2}
    assert repr(vineyard(diagrams)[0]) == "Vine(from 0 to 3, longest bar 3)"


@moderate
@given(st.integers(0, 2**32), st.lists(st.integers(0, 6), max_size=6))
def test_every_point_of_positive_length_is_on_one_vine(seed: int, sizes: list[int]) -> None:
    diagrams = [diagram(seed + i, n) for i, n in enumerate(sizes)]
    vines = vineyard(diagrams)
    for place, each in enumerate(diagrams):
        here = [v.pairs[place - v.start] for v in vines if 0 <= place - v.start < len(v.pairs)]
        expected = each.pairs[each.lifetimes > 0]
        assert sorted(map(tuple, here)) == sorted(map(tuple, expected))


def test_diagrams_of_two_dimensions_are_refused() -> None:
    with pytest.raises(ToposcopeError, match="dimensions 0 and 1 differ"):
        vineyard([Diagram(np.array([[0.0, 1.0]]), 0), Diagram(np.array([[0.0, 1.0]]), 1)])
    with pytest.raises(ToposcopeError, match="order: expected 1 or 2"):
        vineyard([diagram(0, 2), diagram(1, 2)], order=3)  # type: ignore[arg-type]
