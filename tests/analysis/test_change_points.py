"""Change points: the best lines beside ruptures, their intervals, and the test against a smooth trend."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import ruptures
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from toposcope.analysis.change_points import ChangePoint, change_points, fit_lines, optimal_segmentation, segment
from toposcope.analysis.smooth_trend import ColouredNoise, trends
from toposcope.errors import ToposcopeError

N = 51
STEPS = np.arange(0, 100 * N, 100)
INDEX = np.arange(N, dtype=np.float64)

SMOOTH: dict[str, Callable[[], np.ndarray]] = {
    "constant": lambda: np.zeros(N),
    "line": lambda: INDEX / 50,
    "fast relaxation": lambda: 1 - np.exp(-INDEX / 1.5),
    "relaxation": lambda: 1 - np.exp(-INDEX / 3),
    "slow relaxation": lambda: 1 - np.exp(-INDEX / 10),
    "power law": lambda: 4 * (INDEX + 1) ** -0.5,
    "logarithm": lambda: np.log1p(INDEX) / 4,
    "root": lambda: np.sqrt(INDEX / 50),
    "sigmoid": lambda: 1 / (1 + np.exp(-(INDEX - 20) / 5)),
    "steep sigmoid": lambda: 1 / (1 + np.exp(-(INDEX - 20) / 3)),
    "rise and decay": lambda: 1.3 * (1 - np.exp(-INDEX / 2)) * np.exp(-INDEX / 60),
    "dip and rise": lambda: 0.36 - INDEX / 6 * np.exp(-INDEX / 1.5) + 0.14 * (1 - np.exp(-INDEX / 4)),
    "relaxation and turn": lambda: np.exp(-INDEX / 4) + 0.3 * np.cos(np.pi * INDEX / 50),
}
JUMPS: dict[str, tuple[Callable[[], np.ndarray], list[int]]] = {
    "jump": (lambda: 1.0 * (INDEX >= 25), [25]),
    "relaxation and jump": (lambda: 2 * (1 - np.exp(-INDEX / 4)) + (INDEX >= 30), [30]),
    "up twice": (lambda: 1.0 * (INDEX >= 15) + (INDEX >= 35), [15, 35]),
    "up and down": (lambda: 1.0 * ((INDEX >= 15) & (INDEX < 35)), [15, 35]),
    "relaxation, down and up": (lambda: 2 * (1 - np.exp(-INDEX / 3)) - (INDEX >= 18) + (INDEX >= 36), [18, 36]),
}
TURNS: dict[str, tuple[Callable[[], np.ndarray], list[int]]] = {
    "turn": (lambda: np.maximum(INDEX - 25, 0) / 25, [25]),
    "relaxation and turn": (lambda: 2 * (1 - np.exp(-INDEX / 4)) + np.maximum(INDEX - 30, 0) / 20, [30]),
}


def noise(kind: str, rng: np.random.Generator) -> np.ndarray:
    """White; of correlation .5; the same and decaying to a twentieth; white and annealed by a cosine to 2%."""
    white = rng.normal(size=N + 50)
    if kind in ("correlated", "decaying"):
        for i in range(1, len(white)):
            white[i] = 0.5 * white[i - 1] + np.sqrt(0.75) * white[i]
    loudness = {"decaying": 1.5 * np.exp(-3 * INDEX / 50), "annealed": 0.03 + 0.685 * (1 + np.cos(np.pi * INDEX / 50))}
    return np.asarray(white[50:] * loudness.get(kind, 1.0))


@pytest.mark.parametrize("n", [301, 700, 5000])
@pytest.mark.parametrize("share", [0.2, 0.61])
def test_a_long_trajectory_is_divided_by_blocks(n: int, share: float) -> None:
    place, rng = int(share * n), np.random.default_rng(n)
    values = np.exp(-np.arange(n) / n * 3) + 0.5 * (np.arange(n) >= place) + rng.normal(size=n) * 0.02
    tracemalloc.start()
    found = [p for p in change_points(np.arange(n) * 10, values, 1) if not p.explained]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert any(p.low <= 10 * place <= p.high and abs(p.step - 10 * place) <= 10 * (n // 300 + 1) for p in found)
    assert peak < 200e6


def near(found: list[ChangePoint], place: int) -> list[ChangePoint]:
    return [c for c in found if abs(c.step - STEPS[place]) <= 200]


@given(st.integers(0, 10_000), st.sampled_from([8, 10, 13]), st.floats(0.1, 10))
@examples(12)
def test_the_lines_are_the_best_of_any_number(seed: int, n: int, penalty: float) -> None:
    """As dynamic programming over every number of changes; PELT of ruptures prunes a little too much (min_size 3)."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(size=n))
    series = np.cumsum(rng.normal(size=(n, 2)), axis=0)

    def cost(j: int, changes: list[int]) -> float:
        return float(((series[:, j] - fit_lines(times, series[:, j], changes)) ** 2).sum() + penalty * len(changes))

    for j, found in enumerate(segment(times, series, penalty)):
        signal = np.column_stack([series[:, j], times, np.ones(n)])
        exact = ruptures.Dynp(model="linear", min_size=3, jump=1).fit(signal)
        every = [[], *(exact.predict(n_bkps=k)[:-1] for k in range(1, n // 3))]
        assert cost(j, found) == pytest.approx(min(cost(j, changes) for changes in every), abs=1e-9)
        pelt = ruptures.Pelt(model="linear", min_size=3, jump=1).fit(signal).predict(pen=penalty)[:-1]
        assert cost(j, found) <= cost(j, pelt) + 1e-9


@pytest.mark.parametrize("n_changes", [1, 3])
def test_a_given_number_of_lines_is_that_of_dynamic_programming(n_changes: int) -> None:
    rng = np.random.default_rng(3)
    times = np.linspace(0, 1, 25)
    series = np.cumsum(rng.normal(size=(25, 4)), axis=0)
    found = optimal_segmentation(times, series, n_changes)
    for j in range(4):
        signal = np.column_stack([series[:, j], times, np.ones(25)])
        expected = ruptures.Dynp(model="linear", min_size=3, jump=1).fit(signal).predict(n_bkps=n_changes)
        assert found[:, j].tolist() == expected[:-1]


def test_what_a_break_gains_is_what_a_regression_says() -> None:
    rng = np.random.default_rng(1)
    times, y = np.linspace(0, 1, N), np.cumsum(rng.normal(size=N))
    curves, places = trends(times, ColouredNoise.white(N)), np.arange(N)
    for family in (0, 3, len(curves.bases) - 1):
        basis = curves.bases[family][:, np.abs(curves.bases[family]).sum(axis=0) > 0]
        gains = curves.gains(curves.bases[family], y[:, None])[:, 0]
        for c in (5, 25, 40):
            columns = np.column_stack([basis, places >= c, np.maximum(times - times[c], 0)])
            without, with_it = (((y - x @ np.linalg.lstsq(x, y)[0]) ** 2).sum() for x in (basis, columns))
            assert gains[c] == pytest.approx(without - with_it, rel=1e-6)


def test_whitening_and_colouring_are_inverse() -> None:
    rng = np.random.default_rng(2)
    coloured = ColouredNoise(0.7, np.exp(-INDEX / 20))
    innovations = rng.normal(size=(N, 3))
    assert coloured.whiten(coloured.colour(innovations)) == pytest.approx(innovations)


def test_the_noise_is_recovered() -> None:
    rng = np.random.default_rng(5)
    truth = ColouredNoise(0.5, np.exp(-2 * (INDEX / N - 0.5)))
    draws = truth.colour(rng.normal(size=(N, 200)))
    found = [ColouredNoise.estimate(draws[:, j] - draws[:, j].mean(), 1) for j in range(200)]
    assert np.mean([f.correlation for f in found]) == pytest.approx(0.5, abs=0.05)
    assert np.mean([np.log(f.scale[0] / f.scale[-1]) for f in found]) == pytest.approx(2, abs=0.3)


@pytest.mark.parametrize("name", JUMPS)
def test_jumps_are_found_and_not_explained(name: str) -> None:
    curve, places = JUMPS[name]
    found = change_points(STEPS, curve() + 0.05 * noise("correlated", np.random.default_rng(0)), seed=1)
    for place in places:
        assert [c.explained for c in near(found, place)] == [False]
        assert all(c.low <= STEPS[place] <= c.high for c in near(found, place))


@pytest.mark.parametrize("name", ["slow relaxation", "power law", "steep sigmoid", "dip and rise"])
def test_a_smooth_curve_is_cut_and_explained(name: str) -> None:
    found = change_points(STEPS, SMOOTH[name]() + 0.01 * noise("white", np.random.default_rng(0)), seed=1)
    assert found
    assert all(c.explained for c in found)


def test_neither_unit_nor_origin_matters() -> None:
    values = JUMPS["up and down"][0]() + 0.1 * noise("white", np.random.default_rng(4))
    expected = change_points(STEPS, values, seed=1)
    assert expected
    assert change_points(STEPS, np.ldexp(-values, 600), seed=1) == expected
    assert change_points(STEPS, values + 8, seed=1) == expected
    assert [c.step for c in change_points(7 * STEPS + 3, values, seed=1)] == [7 * c.step + 3 for c in expected]


def test_a_trajectory_without_noise_has_its_jump() -> None:
    found = change_points(STEPS, JUMPS["jump"][0](), seed=1)
    assert [(c.step, c.low, c.high, c.explained) for c in found] == [(2500, 2500, 2500, False)]


def test_steps_on_a_logarithmic_grid() -> None:
    steps = np.array([0, *2 ** np.arange(10), *range(1000, 20_000, 1000)])
    noisy = 0.02 * np.random.default_rng(0).normal(size=len(steps))
    values = np.asarray(np.log1p(steps / 100) + 1.0 * (steps >= 12_000) + noisy, dtype=np.float64)
    assert [c.step for c in change_points(steps, values, seed=1) if not c.explained] == [12_000]


@pytest.mark.parametrize("n", range(12))
def test_short_and_constant_trajectories(n: int) -> None:
    rng = np.random.default_rng(n)
    assert change_points(np.arange(n), np.full(n, 0.3), seed=1) == []
    found = change_points(np.arange(n), rng.normal(size=n), seed=1)
    assert found == [] or n >= 6


def test_what_cannot_be_read_is_said() -> None:
    values = np.arange(10.0)
    with pytest.raises(ToposcopeError, match="1 of 10 values are not finite"):
        change_points(np.arange(10), np.where(values == 3, np.nan, values), seed=1)
    with pytest.raises(ToposcopeError, match="steps do not increase"):
        change_points(np.zeros(10, dtype=np.int64), values, seed=1)
    with pytest.raises(ToposcopeError, match="9 steps for 10 values"):
        change_points(np.arange(9), values, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.05, 0.005])
@pytest.mark.parametrize("kind", ["white", "correlated", "decaying", "annealed"])
def test_false_alarms_on_smooth_curves(kind: str, size: float) -> None:
    """At most 5% of smooth trajectories have an unexplained change point; 3 standard errors of 260 allowed."""
    alarms = []
    for i, curve in enumerate(SMOOTH.values()):
        for r in range(20):
            values = curve() + size * noise(kind, np.random.default_rng([r, i]))
            alarms.append(any(not c.explained for c in change_points(STEPS, values, seed=r)))
    assert np.mean(alarms) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / len(alarms))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["white", "correlated", "decaying"])
@pytest.mark.parametrize(("truths", "size"), [(JUMPS, 0.05), (TURNS, 0.01)])
def test_power_and_coverage(
    truths: dict[str, tuple[Callable[[], np.ndarray], list[int]]], size: float, kind: str
) -> None:
    hits, covered, others = [], [], []
    for i, (curve, places) in enumerate(truths.values()):
        for r in range(20):
            found = change_points(STEPS, curve() + size * noise(kind, np.random.default_rng([r, 100 + i])), seed=r)
            for place in places:
                hits.append(any(not c.explained for c in near(found, place)))
                covered += (
                    [any(c.low <= STEPS[place] <= c.high for c in near(found, place))] if near(found, place) else []
                )
            others.append(sum(not c.explained and all(c not in near(found, p) for p in places) for c in found))
    assert np.mean(hits) >= 0.9
    assert np.mean(covered) >= 0.9
    assert np.mean(others) <= 0.15
