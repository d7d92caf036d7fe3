"""Which features are called signs of generalisation, on embeddings and runs whose answer is known."""

from itertools import combinations

import numpy as np
import pytest
from made_up_grokking import GENERALISES, STEPS, made_up
from numpy.typing import NDArray

from toposcope import rips
from toposcope.analysis.verdict import UNDETERMINED
from toposcope.engine.pool import Workers
from toposcope_experiments.grokking.comparison import (
    ELSEWHERE,
    NOT_SHOWN,
    SIGN,
    compare,
    in_all_architectures,
)
from toposcope_experiments.grokking.design import CONDITIONS, CONTROLS, MLP, TRANSFORMER, TREATED, GrokkingRun
from toposcope_experiments.grokking.experiment import change_table, jump_table, measure_runs
from toposcope_experiments.grokking.features import FEATURES, FOURIER, TWINS, embedding_features, fourier_share
from toposcope_experiments.grokking.training import LOGGED, Trained
from toposcope_experiments.small_networks.group_difference import min_p_of, two_groups

P = 59
EVERYWHERE = {condition.name: 1.0 for condition in CONDITIONS}


def circle(*frequencies: int, p: int = P) -> NDArray[np.float64]:
    """Points on an embedded circle."""
    angles = 2 * np.pi * np.arange(p)[:, None] * np.array(frequencies) / p
    return np.hstack([np.cos(angles), np.sin(angles)])


@pytest.mark.parametrize(
    ("frequencies", "n_bars", "ratio"),
    [
        ((1,), 1, 1.268901),
        ((1, 7), 60, 0.626126),
        # 81 bars with those of rounding, which many equal distances have
        ((18, 15, 23), 61, 0.478315),
        ((17, 14, 8, 9, 22), 119, 0.409155),
    ],
)
def test_loops_of_embedded_circles(frequencies: tuple[int, ...], n_bars: int, ratio: float) -> None:
    points = circle(*frequencies)
    features = embedding_features(points)
    assert features[TWINS["H1 max"]] == pytest.approx(ratio, abs=1e-6)
    _, loops = rips(points)
    assert (loops.lifetimes > 1e-9).sum() == n_bars
    assert features["H1 count"] == len(loops.pairs)
    assert features[FOURIER] == pytest.approx(1)
    if len(frequencies) == 1:
        np.testing.assert_allclose(loops.pairs, [[0.106444, 1.749526]], atol=1e-6)


def test_twins_and_the_fourier_share_do_not_depend_on_the_scale() -> None:
    points = np.random.default_rng(0).normal(size=(23, 6))
    small, large = embedding_features(points), embedding_features(1000 * points + 5)
    for feature in FEATURES:
        free = feature in TWINS.values() or feature == FOURIER or feature.endswith(("entropy", "count"))
        factor = 1 if free else 1000
        if feature != "norm":
            assert large[feature] == pytest.approx(factor * small[feature], rel=1e-9), feature


@pytest.mark.parametrize("p", [22, 23])
def test_the_fourier_share_is_that_of_the_variance(p: int) -> None:
    points = circle(1, p=p) + 0.5 * circle(2, p=p) + 0.1 * circle(3, p=p)
    assert fourier_share(points, 1) == pytest.approx(1 / 1.26)
    assert fourier_share(points, 2) == pytest.approx(1.25 / 1.26)
    alternating = np.cos(np.pi * np.arange(p))[:, None]
    if p % 2 == 0:  # the highest mode has half the variance of a circle of radius 1 in one dimension, twice over
        assert fourier_share(np.hstack([alternating, circle(1, p=p)]), 1) == pytest.approx(0.5)


def test_noise_has_a_low_share_and_strange_embeddings_have_none() -> None:
    noise = np.random.default_rng(0).normal(size=(P, 32))
    assert 0.17 < fourier_share(noise) < 0.25
    assert np.isnan(list(embedding_features(np.full((P, 3), np.nan)).values())).all()
    equal = embedding_features(np.ones((P, 3)))
    assert equal["H1 max"] == 0
    assert np.isnan(equal[TWINS["H1 max"]])
    assert np.isnan(equal[FOURIER])


def trained(turns: bool) -> Trained:
    """Four runs whose embeddings wander; half-way those with true labels turn into a circle, or none does."""
    generator = np.random.default_rng(1)
    runs = [GrokkingRun(MLP, condition, 0) for condition in CONDITIONS]
    plane = np.linalg.qr(generator.normal(size=(12, 12)))[0][:2]
    steps = np.arange(0, 820, 20)
    embeddings = np.zeros((len(steps), len(runs), P, 12), dtype=np.float32)
    for i, run in enumerate(runs):
        points = generator.normal(size=(P, 12))
        for t in range(len(steps)):
            points = 0.98 * points + 0.1 * generator.normal(size=points.shape)
            turned = turns and t >= 20 and run.condition == TREATED
            noise = 0.01 * generator.normal(size=points.shape)
            embeddings[t, i] = 2 * circle(1) @ plane + noise if turned else points
    log = {name: np.zeros((len(steps), len(runs))) for name in LOGGED}
    after = np.arange(len(steps)) >= 20
    log["train_accuracy"][4:] = 1
    log["validation_accuracy"][after, 0] = 1
    return Trained("mlp", runs, steps, log, {"embedding": embeddings})


@pytest.mark.slow
def test_an_embedding_turned_into_a_circle_is_beyond_trend() -> None:
    with Workers(1) as engine:
        measured = measure_runs(trained(turns=True), engine)
        control = measure_runs(trained(turns=False), engine)
    changes = change_table([measured])
    for feature in ("H1 max", TWINS["H1 max"], FOURIER):
        (found,) = changes.filter(feature=feature, condition=TREATED.name, step=400).to_dicts()
        assert (found["low"], found["high"], found["beyond_trend"]) == (400, 400, True)
        row = jump_table([measured]).filter(feature=feature, condition=TREATED.name).row(0, named=True)
        assert (row["n_beyond_trend"], row["n_at_generalisation"], row["n_runs"]) == (1, 1, 1)
        assert (row["first_step"], row["last_step"]) == (80, 400)
        assert not len(change_table([control]).filter(feature=feature, step=400, beyond_trend=True))
    others = jump_table([measured]).filter(feature=TWINS["H1 max"])
    assert others["n_beyond_trend"].to_list() == [1, 0, 0, 0]


def verdicts(*arguments: object, **options: object) -> dict[str, str]:
    table = compare(made_up(*arguments, **options)).verdicts  # type: ignore[arg-type]
    return dict(table.select("feature", "verdict").iter_rows())


def test_raw_loops_that_rise_more_with_random_labels_are_no_sign_and_the_fourier_share_is() -> None:
    rises = {
        "H1 max": {"true labels": 0.12, "random labels": 0.24},
        TWINS["H1 max"]: {c.name: -0.3 for c in CONDITIONS},
        FOURIER: {"true labels": 0.25},
    }
    found = verdicts(rises)
    assert found["H1 max"] == ELSEWHERE
    assert found[TWINS["H1 max"]] == ELSEWHERE
    assert found[FOURIER] == SIGN


@pytest.mark.parametrize("control", [c.name for c in CONTROLS])
def test_each_control_can_refute(control: str) -> None:
    assert verdicts({"H1 max": {"true labels": 1.0, control: 0.6}})["H1 max"] == ELSEWHERE
    assert verdicts({"H1 max": {"true labels": 1.0, control: 0.3}})["H1 max"] == SIGN
    assert verdicts({"H1 max": {"true labels": 1.0, control: -3.0}})["H1 max"] == SIGN
    assert verdicts({"H1 max": {"true labels": -1.0, control: -0.6}})["H1 max"] == ELSEWHERE
    assert verdicts({"H1 max": {"true labels": -1.0}})["H1 max"] == SIGN


def test_chance_is_rarely_a_sign() -> None:
    """The largest p over three controls, adjusted over 14 features, is far below the level."""
    found = [compare(made_up({}, n_runs=5, seed=seed)).verdicts["verdict"].to_list() for seed in range(40)]
    assert not any(SIGN in each for each in found)


def test_noise_hides_a_difference() -> None:
    found = verdicts({"H1 max": {"true labels": 0.1}}, noise=0.1)["H1 max"]
    assert found in (NOT_SHOWN, ELSEWHERE)


def test_too_few_runs_cannot_be_judged() -> None:
    table = compare(made_up({FOURIER: {"true labels": 1.0}}, n_runs=4)).verdicts
    row = table.filter(feature=FOURIER).row(0, named=True)
    assert row["verdict"] == UNDETERMINED
    assert row["reason"] == "no p of so few runs is below 0.05 after adjustment"
    assert row["p"] == row["min_p"] == pytest.approx(2 / 70)


def test_conditions_that_generalise_are_no_controls() -> None:
    rises = {"H1 max": {"true labels": 1.0, "no weight decay": 1.0}}
    generalise = {"true labels": 8, "no weight decay": 3}
    found = compare(made_up(rises, generalise=generalise))
    assert found.left_out == {"no weight decay": (3, 8)}
    assert found.verdicts.filter(feature="H1 max").item(0, "verdict") == SIGN
    assert set(found.differences["control"]) == {"random labels", "too few pairs"}
    none = compare(made_up(rises, generalise={c.name: 8 for c in CONDITIONS}))
    assert set(none.verdicts["verdict"]) == {UNDETERMINED}
    assert set(none.verdicts["reason"]) == {"runs of every other condition generalised too"}


def test_runs_that_do_not_generalise_are_not_among_those_that_do() -> None:
    found = compare(made_up({FOURIER: {"true labels": 1.0}}, generalise={"true labels": 6}))
    assert set(found.verdicts["n_runs"]) == {6}
    nobody = compare(made_up({}, generalise={}))
    assert set(nobody.verdicts["reason"]) == {"0 of 8 runs with true labels generalised; train longer"}
    assert not len(nobody.differences)


def test_a_value_that_is_not_known_is_not_judged() -> None:
    measured = made_up({FOURIER: {"true labels": 1.0}, "norm": {"true labels": 1.0}})
    measured.features[FOURIER][:, 3] = np.nan
    table = compare(measured).verdicts
    assert table.filter(feature=FOURIER).item(0, "verdict") == UNDETERMINED
    assert table.filter(feature="norm").item(0, "verdict") == SIGN


def test_numbers_are_those_of_the_step_at_which_all_have_generalised() -> None:
    measured = made_up({FOURIER: {"true labels": 1.0}}, noise=0.01)
    measured.log["validation_accuracy"][:, 2] = STEPS >= GENERALISES + 40
    found = compare(measured)
    row = found.verdicts.filter(feature=FOURIER).row(0, named=True)
    assert row["step"] == GENERALISES + 40
    place = int(np.flatnonzero(row["step"] == STEPS)[0])
    values = measured.features[FOURIER]
    change = values[place] - values[0]
    assert row["change"] == pytest.approx(change[:8].mean())
    other = found.differences.filter(feature=FOURIER, control="random labels").row(0, named=True)
    assert other["difference"] == pytest.approx(change[:8].mean() - change[8:16].mean())
    assert other["low"] < other["difference"] < other["high"]
    from scipy.stats import ttest_ind

    interval = ttest_ind(change[:8], change[8:16], equal_var=False).confidence_interval()
    assert (other["low"], other["high"]) == pytest.approx((interval.low, interval.high))
    assert 0 < row["separate_from"] < GENERALISES


def test_a_sign_is_one_in_every_architecture() -> None:
    first = compare(made_up({FOURIER: {"true labels": 1.0}, "norm": {"true labels": 1.0}}))
    second = compare(made_up({FOURIER: {"true labels": 1.0}, "norm": EVERYWHERE}, architecture=TRANSFORMER))
    found = in_all_architectures([first, second])
    assert (found[FOURIER], found["norm"]) == (SIGN, ELSEWHERE)


def test_all_divisions_of_two_groups_are_counted() -> None:
    values = np.random.default_rng(0).normal(size=(9, 3))
    values[:4, 0] += 2
    observed = np.abs(values[:4].mean(axis=0) - values[4:].mean(axis=0))
    divisions = [list(chosen) for chosen in combinations(range(9), 4)]
    others = [[i for i in range(9) if i not in chosen] for chosen in divisions]
    differences = [abs(values[a].mean(axis=0) - values[b].mean(axis=0)) for a, b in zip(divisions, others, strict=True)]
    expected = (np.array(differences) >= observed * (1 - 1e-9)).mean(axis=0)
    np.testing.assert_allclose(two_groups(values[:4], values[4:]), expected)


def test_extremes_of_two_groups() -> None:
    low, high = np.arange(8.0)[:, None], np.arange(100.0, 108)[:, None]
    assert two_groups(low, high)[0] == min_p_of(8, 8) == pytest.approx(2 / 12870)
    assert two_groups(low[:3], high)[0] == min_p_of(3, 8) == pytest.approx(1 / 165)
    assert two_groups(np.ones((5, 1)), np.ones((5, 1)))[0] == 1
    assert np.isnan(two_groups(np.full((5, 1), np.nan), np.ones((5, 1)))[0])
    many = two_groups(np.tile(low, (2, 1)), np.tile(high, (2, 1)))[0]
    assert many == min_p_of(16, 16) == pytest.approx(1 / 16385)
