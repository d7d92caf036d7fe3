"""Turns of a trajectory beside exhaustive search, their false alarms and power, and the table of phases."""

from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from named_features import by_feature, by_group
from property_examples import examples
from sklearn.isotonic import isotonic_regression

from toposcope.analysis.trajectory import Trajectory
from toposcope.errors import ToposcopeError
from toposcope_experiments.published_study.feature_file import read_features
from toposcope_experiments.representation_phases.alternating import alternating_errors, alternating_places
from toposcope_experiments.representation_phases.phases import SCHEMA, _chance, _Cut, representation_phases
from toposcope_experiments.representation_phases.turns import Turn, Turns, turning_points

N = 31
STEPS = np.array([0, *np.unique(np.geomspace(1, 143_000, N + 5).astype(np.int64))])[:N]
MONOTONE = ("constant", "line", "relaxation", "slow relaxation", "sigmoid", "step")


def monotone(kind: str, n: int) -> np.ndarray:
    t = np.arange(n) / (n - 1)
    return {
        "constant": 0 * t,
        "line": t,
        "relaxation": 1 - np.exp(-10 * t),
        "slow relaxation": 1 - np.exp(-3 * t),
        "sigmoid": 1 / (1 + np.exp(-(t - 0.5) / 0.08)),
        "step": 1.0 * (t >= 0.5),
    }[kind]


def zigzag(n: int, n_turns: int) -> np.ndarray:
    """Down, up, down ... between 1 and 0, in straight lines of equal length."""
    return np.interp(np.arange(n), np.linspace(0, n - 1, n_turns + 2), [1, 0, 1, 0, 1][: n_turns + 2])


def drifting(n: int, correlation: float, rng: np.random.Generator) -> np.ndarray:
    noise = rng.normal(size=n)
    for i in range(1, n):
        noise[i] = correlation * noise[i - 1] + np.sqrt(1 - correlation**2) * noise[i]
    return noise


def run(features: dict[str, np.ndarray], twins: dict[str, np.ndarray] | None = None) -> Trajectory:
    steps = STEPS[: len(next(iter(features.values())))]
    return Trajectory(
        "run", steps, by_feature(features), {}, {"step": steps.astype(float)}, twins=by_group({"network": twins or {}})
    )


def by_search(y: np.ndarray, rising: int, count: int) -> float:
    """The least error over every way to cut, each stretch by scikit-learn."""

    def error(piece: np.ndarray, s: int) -> float:
        fit = isotonic_regression(piece, increasing=bool((rising + s) % 2)) if len(piece) else piece
        return float(((piece - fit) ** 2).sum())

    cuts = combinations_with_replacement(range(len(y) + 1), count - 1)
    return min(sum(error(piece, s) for s, piece in enumerate(np.split(y, list(cut)))) for cut in cuts)


@pytest.mark.slow
@given(st.integers(0, 10_000), st.integers(4, 9), st.booleans())
@examples(15)
def test_the_stretches_are_the_best_of_all(seed: int, n: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    series = rng.integers(0, 4, (2, n)).astype(float) if ties else rng.normal(size=(2, n))
    errors = alternating_errors(series, 3)
    for j, rising, count in ((0, 0, 1), (0, 1, 2), (1, 0, 3), (1, 1, 3)):
        assert errors[j, rising, count - 1] == pytest.approx(by_search(series[j], rising, count), abs=1e-12)
    begins, turns = alternating_places(series, 1, 3)
    assert ((begins >= 0) & (begins <= n) & (turns >= 0) & (turns < n)).all()
    assert (np.diff(begins, axis=1) >= 0).all()


@pytest.mark.slow
def test_a_turn_is_the_middle_of_the_extreme_level() -> None:
    series = np.array([[5.0, 3, 1, 1, 1, 4, 6, 9, 7, 2]])
    assert alternating_places(series, 0, 3)[1].tolist() == [[3, 7]]
    assert alternating_errors(series, 3)[0, 0, 2] == 0


@pytest.mark.parametrize("n_turns", [0, 1, 2, 3])
def test_turns_without_noise_are_found_where_they_are(n_turns: int) -> None:
    found = turning_points(zigzag(N, n_turns), seed=1)
    assert found
    assert found.directions == " ".join(["down", "up", "down", "up"][: n_turns + 1])
    expected = np.linspace(0, N - 1, n_turns + 2)[1:-1]
    assert [turn.place for turn in found.turns] == pytest.approx(expected, abs=0.51)
    assert all(turn.low <= turn.place <= turn.high for turn in found.turns)
    assert found.levels == pytest.approx([1, 0, 1, 0, 1][: n_turns + 2], abs=0.1)
    assert len(found.p) == 3


def test_neither_unit_nor_origin_nor_sign_matters() -> None:
    values = 10 * zigzag(N, 2) + np.random.default_rng(0).normal(size=N)
    expected = turning_points(values, seed=1)
    assert expected
    assert len(expected.turns) == 2
    for other in (np.ldexp(values, 600), values + 8):
        found = turning_points(other, seed=1)
        assert found
        assert (found.turns, found.p, found.directions) == (expected.turns, expected.p, expected.directions)
    mirrored = turning_points(-values, seed=1)
    assert mirrored
    assert (mirrored.turns, mirrored.directions) == (expected.turns, "up down up")
    assert mirrored.levels == pytest.approx(-expected.levels)


@pytest.mark.parametrize("n", [0, 1, 9, 10])
def test_few_and_equal_values_have_none(n: int) -> None:
    assert turning_points(np.full(n, 0.3), seed=1) is None
    assert (turning_points(np.arange(n, dtype=float), seed=1) is None) == (n < 10)


def test_what_is_not_finite_is_said() -> None:
    with pytest.raises(ToposcopeError, match="1 of 12 values are not finite"):
        turning_points(np.where(np.arange(12) == 3, np.nan, 1.0), seed=1)


def test_the_phases_are_named_and_followed() -> None:
    rng = np.random.default_rng(0)
    rank = 20 + 20 * zigzag(N, 2) + 0.5 * rng.normal(size=N)
    along = 5 + 10 * zigzag(N, 2) + 0.2 * rng.normal(size=N)
    rises = np.arange(N) + 0.2 * rng.normal(size=N)
    label = "hidden_states:points=texts"
    found = representation_phases(
        [
            run(
                {
                    f"{label} rankme": rank,
                    f"{label} effective_rank": rises,
                    f"{label} eigenspectrum_decay": -rank,
                    f"{label} H0.total": along,
                    f"{label} H1.total": rises,
                    f"{label} H1.total@0.5": along,
                    "rips H0.total": along,
                },
                {f"{label} H0.total": rises, "rips H0.total": along},
            )
        ]
    )
    assert list(found.schema) == list(SCHEMA)
    names = ["rankme", "eigenspectrum_decay", "H0.total", "H1.total", "H0.total / scale"]
    assert found["feature"].to_list() == [f"{label} {name}" for name in names]
    assert found["kind"].to_list() == ["spectral"] * 2 + ["diagram"] * 3
    assert found["directions"].to_list() == ["down up down", "up down up", "down up down", "up", "up"]
    three = "warm-up, entropy-seeking, compression-seeking"
    assert found["phases"].to_list() == [three, three, "", "", ""]
    assert found["follows"].to_list() == [None, None, "both", "none", "none"]
    assert found["chance"][2] < 0.2
    assert found["chance"].to_list()[3:] == [1, 1]
    first = found.row(0, named=True)
    assert first["turn_1_low"] <= STEPS[10] <= first["turn_1_high"]
    assert first["turn_2_low"] <= STEPS[20] <= first["turn_2_high"]
    assert [first[f"change_{i}"] for i in (1, 2, 3, 4)] == pytest.approx([-0.5, 1, -0.5, None], abs=0.1)
    assert first["change_point_1"] is True
    assert first["turn_3"] is None


@pytest.mark.parametrize(
    ("n_turns", "sign", "phases"),
    [
        (0, 1, ""),
        (1, 1, "warm-up, entropy-seeking"),
        (1, -1, "entropy-seeking, compression-seeking"),
        (3, 1, "warm-up, entropy-seeking, compression-seeking, entropy-seeking"),
    ],
)
def test_other_patterns_are_named_as_far_as_they_go(n_turns: int, sign: int, phases: str) -> None:
    found = representation_phases([run({"hidden_states effective_rank": 30 + 9.0 * sign * zigzag(N, n_turns)})])
    assert found["phases"].to_list() == [phases]


@pytest.mark.parametrize(("width", "share"), [(0, 3 / 29), (2, 7 / 29), (30, 1)])
def test_wide_intervals_are_not_agreement(width: int, share: float) -> None:
    """The chance counts the checkpoints where a turn with such an interval meets a target of three checkpoints."""
    turns = Turns(False, [Turn(15, max(15 - width, 0), min(15 + width, N - 1))], (0.01, 1.0, 1.0), np.zeros(3))
    cut = _Cut("run", "hidden_states H0.total", STEPS, np.zeros(N), turns)
    assert _chance([(int(STEPS[14]), int(STEPS[16]))], 1, cut) == pytest.approx(share, abs=0.04)


def test_what_is_missing_is_left_out() -> None:
    assert representation_phases([]).height == 0
    weights = run({"published H0.total": zigzag(N, 2), "rips H0.total": zigzag(N, 2), "hidden_states H0.total": STEPS})
    assert representation_phases([weights]).height == 0
    gaps = np.where(np.arange(N) < 25, np.nan, 1.0 * np.arange(N))
    (row,) = representation_phases([run({"hidden_states rankme": gaps})]).rows(named=True)
    assert (row["n"], row["n_turns"], row["directions"], row["phases"]) == (6, None, None, "")


@pytest.mark.reference
def test_the_published_model_collapses_and_expands(published_study: Path) -> None:
    """Pythia-70m: the rank collapses to step 128 and more than doubles; the decay does the reverse.

    Whether the rank turns twice more, in the last checkpoints, hangs on how loud the noise is thought to be.
    """
    runs = read_features(published_study / "pythia-70m-hidden-states.json")
    ((name, told),) = runs.items()
    steps = np.array(sorted(told.features))
    features = {
        f"published {statistic}": np.array([told.features[step][statistic] for step in steps.tolist()])
        for statistic in ("effective_rank", "eigenspectrum_decay", "H0.total", "H1.entropy")
    }
    found = representation_phases([Trajectory(name, steps, by_feature(features), {}, {})])
    rank, decay, *_ = found.rows(named=True)
    assert rank["directions"].startswith("down up")
    assert rank["turn_1"] == 128
    assert rank["change_1"] == pytest.approx(20.82 / 72.32 - 1, abs=0.01)
    assert decay["directions"].startswith("up down")
    assert rank["phases"].startswith("warm-up, entropy-seeking")


def told_turns(curve: np.ndarray, correlation: float, repeats: int, stream: int) -> np.ndarray:
    n = len(curve)
    series = [curve + drifting(n, correlation, np.random.default_rng([r, n, stream])) for r in range(repeats)]
    return np.array([len(found.turns) for r, y in enumerate(series) if (found := turning_points(y, seed=r))])


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.5])
@pytest.mark.parametrize("n", [19, 31, 51, 154])
def test_monotone_trends_do_not_turn(n: int, correlation: float) -> None:
    """At most 5% of monotone trends turn; 3 standard errors allowed."""
    repeats = 6 if n > 100 else 20
    told = [
        told_turns(amplitude * monotone(kind, n), correlation, repeats, 1) for kind in MONOTONE for amplitude in (3, 20)
    ]
    share = np.mean(np.concatenate(told) > 0)
    assert share <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / (repeats * len(told)))


@pytest.mark.slow
@pytest.mark.parametrize("n", [31, 51])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_three_phases_of_twelve_standard_deviations_are_found(n: int, correlation: float) -> None:
    told = told_turns(12 * zigzag(n, 2), correlation, 20, 2)
    assert np.mean(told == 2) >= 0.7
    assert np.mean(told > 2) <= 0.15
