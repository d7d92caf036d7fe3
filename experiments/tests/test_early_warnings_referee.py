"""The detector and the referee of early warnings, on planted truths."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.signal import lfilter

from toposcope.extend import FALSE_ALARM_RATE, Vector, makers_of, sign_flip
from toposcope.monitor.alerts.logged import SpikeDetector
from toposcope_experiments.commands.early_warnings import early_warnings
from toposcope_experiments.early_warnings import population
from toposcope_experiments.early_warnings.detector import (
    BOTH,
    DOWN,
    MIN_SCORE,
    UP,
    Alarms,
    Choice,
    excursions,
    noise_units,
    previous_median,
    quantity_alarms,
    scores,
)
from toposcope_experiments.early_warnings.page import SECTIONS, early_warning_page
from toposcope_experiments.early_warnings.page import lead as sentences
from toposcope_experiments.early_warnings.published_rules import (
    RULES,
    deviations_before,
    deviations_moving,
    published_alarms,
)
from toposcope_experiments.early_warnings.referee import (
    MATRIX_NORM,
    MIN_APART,
    ScoredRun,
    count_alarms,
    halves,
    onset_follows,
    poisson_interval,
    reaction,
    resample,
    seldom,
    set_threshold,
    warning,
)
from toposcope_experiments.early_warnings.scoring import twins
from toposcope_experiments.early_warnings.tables import cadence_table, precursor_table, together_table
from toposcope_experiments.early_warnings.traces import NETWORK, QUIET, Quantity, Trace, write_traces
from toposcope_experiments.early_warnings.trials import (
    AT_CADENCE,
    GRADIENT,
    H0_TOTAL,
    IN_SOME,
    LEADS,
    NOT_SHOWN,
    UNDETERMINED,
    EarlyWarningData,
    most_alerts,
)

NOISE = {
    "white": lambda rng, n: rng.normal(size=n),
    "heavy": lambda rng, n: rng.standard_t(3, n),
    "log-normal": lambda rng, n: rng.lognormal(size=n),
    "autocorrelated": lambda rng, n: lfilter([1], [1, -0.9], rng.normal(size=n)),
    "drifting": lambda rng, n: rng.normal(size=n) + 0.002 * np.arange(n),
}
LEVEL_UP = Choice("level", NETWORK, UP)


def of_one(values: Vector, cadence: int = 1) -> dict[Choice, Alarms]:
    quantity = Quantity(cadence, values[:, None].astype(np.float32), (NETWORK,), 0.0)
    return dict(quantity_alarms(quantity))


# the detector


@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(1, 80))
def test_the_median_of_the_values_before(seed: int, window: int, n: int) -> None:
    values = np.random.default_rng(seed).integers(0, 9, n).astype(np.float64)
    found = previous_median(values, window)
    for k in range(1, n):
        before = sorted(values[max(0, k - window) : k])
        assert found[k] == before[len(before) // 2]


@given(st.integers(0, 10**6), st.sampled_from([name for name in NOISE if name != "drifting"]))
def test_units_of_noise_are_those_of_the_alerts_on_a_logged_value(seed: int, family: str) -> None:
    values = NOISE[family](np.random.default_rng(seed), 120)
    alert = SpikeDetector("loss spike", "loss")
    for step, value in enumerate(values[:-1].tolist()):
        alert._learn(step, value)
    assert noise_units(values, 7)[-1] == pytest.approx((values[-1] - alert._recent.median) / alert._noise())


@given(st.lists(st.integers(-2, 5), max_size=60))
def test_excursions_cover_what_is_above_the_level_and_end_within_sixteen_values(units: list[int]) -> None:
    values = np.array(units, np.float64)
    peaks, ends = excursions(values)
    covered = np.zeros(len(values), np.bool_)
    first = 0
    for peak, end in zip(peaks, ends, strict=True):
        first = next(k for k in range(first, len(values)) if values[k] > 0)
        assert peak == values[first:end].max()
        assert end - first <= 16
        covered[first:end] = values[first:end] > 0
        first = end
    assert (covered == (values > 0)).all()


@pytest.mark.parametrize("family", NOISE)
def test_a_score_of_three_is_as_rare_as_it_says(family: str) -> None:
    n = 30_000
    for choice, alarms in of_one(NOISE[family](np.random.default_rng(1), n)).items():
        if choice.transform != "trend":  # a mean of 16 wanders in excursions that are cut in parts
            assert len(alarms.steps) < n * 10**-MIN_SCORE * (4 if choice.side == BOTH else 2.5), choice


def test_a_score_does_not_depend_on_the_unit_nor_on_what_comes_later() -> None:
    values = NOISE["heavy"](np.random.default_rng(2), 3000)
    whole = scores(noise_units(values, 7), 1)
    assert (scores(noise_units(1024 * values, 7), 1) == whole).all()
    assert (scores(noise_units(values[:2000], 7), 1) == whole[:2000]).all()


def test_the_layer_that_leads_and_the_side_are_named() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(10, 1, (800, 4))
    values[600:, 2] -= 40
    places = (NETWORK, "layers.0", "layers.1", "layers.2")
    found = dict(quantity_alarms(Quantity(5, values.astype(np.float32), places, 0.0)))
    falls = found[Choice("level", "largest layer", DOWN)]
    late = (falls.steps >= 3000) & (falls.scores > 5)
    assert late.any()
    assert set(falls.places[late]) == {2}
    for choice in (Choice("level", NETWORK, BOTH), Choice("level", "median layer", DOWN)):
        assert not (found[choice].scores > 5).any()


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_an_alarm_and_the_last(broken: float) -> None:
    values = np.random.default_rng(4).normal(size=400)
    values[300:] = broken
    for alarms in of_one(values, 2).values():
        assert alarms.steps[-1] == 600
        assert alarms.scores[-1] == np.inf


def test_constant_and_short_series_raise_no_alarm() -> None:
    for values in (np.full(500, 3.0), np.zeros(500), np.ones(1), np.empty(0)):
        assert not any(len(alarms.steps) for alarms in of_one(values).values())


# published rules


def test_published_statistics_are_those_of_a_loop() -> None:
    values = np.random.default_rng(5).lognormal(size=(200, 1))
    window = deviations_before(values, 32)
    for k in range(32, 200):
        before = values[k - 32 : k, 0]
        assert window[k, 0] == pytest.approx((values[k, 0] - before.mean()) / before.std(ddof=1))
    found = deviations_moving(values)
    before = values[:25].mean()
    means, errors = [before], []
    for k in range(200):
        errors.append((values[k, 0] - (values[0, 0] if k == 0 else before)) ** 2)
        before = 0.97 * before + 0.03 * values[k, 0]
        means.append(before)
    spread = np.mean(errors[:25])
    for k in range(200):
        if k >= 25:
            assert found[k, 0] == pytest.approx((values[k, 0] - means[k]) / np.sqrt(spread))
        spread = 0.97 * spread + 0.03 * errors[k]


def test_published_rules_are_of_the_network_or_of_each_tensor() -> None:
    rng = np.random.default_rng(6)
    quantity = Quantity(1, rng.normal(10, 1, (300, 3)).astype(np.float32), (NETWORK, "a", "b"), 0.0)
    quantities = dict.fromkeys(("gradient_norm", "update_ratio", "weight_norm"), quantity)
    found = published_alarms({**quantities, "loss": Quantity(1, quantity.values[:, :1], (NETWORK,), 0.0)})
    assert found.keys() == {rule.name for rule in RULES}
    assert set(found["gradient norm, 1.05 of its mean"].places) == {0, 1}  # of the two tensors


# the referee


def alarms_of(rng: np.random.Generator, n: int, rise: int | None = None) -> Alarms:
    """Alarms of a calibrated score: one in 10^s steps exceeds s; from `rise` on, all do."""
    kept = np.flatnonzero(rng.random(n) < 10**-MIN_SCORE)
    high = MIN_SCORE - np.log10(rng.random(len(kept)))
    if rise is not None:
        kept, high = (
            np.append(kept[kept < rise], np.arange(rise, n)),
            np.append(high[kept < rise], np.full(n - rise, 20.0)),
        )
    return Alarms(kept, high, np.zeros(len(kept), np.int64))


def scored(name: str, kind: str, n: int, onset: int | None, alarms: Mapping[str, Alarms]) -> ScoredRun:
    by_choice = {quantity: {LEVEL_UP: each} for quantity, each in alarms.items()}
    return ScoredRun(name, kind, n, None, onset, by_choice, {}, dict.fromkeys(alarms, (NETWORK,)), {})


def population_of(
    rng: np.random.Generator,
    leads: Mapping[str, Mapping[str, int] | int | None],
    *,
    n_quiet: int = 20,
    quiet_steps: int = 25_000,
    per_kind: int = 5,
) -> list[ScoredRun]:
    """Runs of eight kinds; a lead is for all kinds, or by kind."""
    names = ("loss", *leads)
    runs = [
        scored(f"q{k}", QUIET, quiet_steps, None, {name: alarms_of(rng, quiet_steps) for name in names})
        for k in range(n_quiet)
    ]
    for kind in "abcdefgh":
        for k in range(per_kind):
            onset = int(rng.integers(600, 900))
            found = {"loss": alarms_of(rng, 1200, onset + 10)}
            for name, lead in leads.items():
                own = lead.get(kind) if isinstance(lead, Mapping) else lead
                found[name] = alarms_of(rng, 1200, None if own is None else onset + 10 - own)
            runs.append(scored(f"{kind}{k}", kind, 1200, onset, found))
    return runs


def refereed(runs: list[ScoredRun]) -> dict[str, dict[str, object]]:
    table = EarlyWarningData(runs, {"precursors": precursor_table}).tables["precursors"]
    return {row["precursor"]: row for row in table.to_dicts()}


@given(st.lists(st.text("abc", max_size=3), max_size=20))
def test_halves_differ_by_at_most_one_name_and_do_not_depend_on_the_order(names: list[str]) -> None:
    found = halves(names)
    assert found == halves(reversed(names))
    assert found.keys() == set(names)
    assert 0 <= len(found) - 2 * sum(found.values()) <= 1


@given(st.integers(0, 10**6), st.integers(1, 12))
def test_a_threshold_is_the_highest_score_at_which_as_many_alarms_are_reached(seed: int, allowed: int) -> None:
    rng = np.random.default_rng(seed)
    quiet = []
    for _ in range(3):
        steps = np.sort(rng.choice(3000, int(rng.integers(0, 30)), replace=False))
        quiet.append(Alarms(steps, rng.integers(3, 20, len(steps)) + rng.random(len(steps)), np.zeros_like(steps)))
    every = sorted((score for run in quiet for score in run.scores), reverse=True)

    def reached(score: float) -> int:
        return sum(count_alarms(run, np.nextafter(score, 0)) for run in quiet)

    expected = next((score for score in every if reached(score) >= allowed), 0.0)
    assert set_threshold(quiet, 1000 * allowed, 1e-3) == expected


def test_held_out_quiet_runs_raise_as_many_alarms_as_stated() -> None:
    rng = np.random.default_rng(7)
    n_steps, alarms, repetitions = 300_000, 0, 150
    for _ in range(repetitions):
        own, other = ([alarms_of(rng, 100_000) for _ in range(3)] for _ in range(2))
        threshold = set_threshold(own, n_steps, FALSE_ALARM_RATE)
        alarms += sum(count_alarms(run, threshold) for run in other)
    low, high = (value / (repetitions * n_steps) for value in poisson_interval(alarms))
    assert low / 1.2 < FALSE_ALARM_RATE < high * 1.2  # thresholds vary too


def test_alarms_close_to_each_other_are_one() -> None:
    steps = np.array([0, 50, 50 + MIN_APART, 51 + 2 * MIN_APART, 1000])
    assert count_alarms(Alarms(steps, np.full(5, 9.0), steps), 8.0) == 3
    assert count_alarms(Alarms(steps, np.full(5, 9.0), steps), 9.0) == 0


def test_an_alarm_before_the_fault_was_planted_warns_of_nothing() -> None:
    alarms = Alarms(np.array([450, 520]), np.array([9.0, 9.0]), np.array([1, 2]))
    run = scored("r", "a", 1000, 600, {})
    assert reaction(run, alarms, 5.0) == (-150, 1)
    planted = ScoredRun("r", "a", 1000, 500, 600, {}, {}, {}, {})
    assert reaction(planted, alarms, 5.0) == (-80, 2)
    assert reaction(planted, alarms, 9.0) == (200, -1)


def test_a_warning_is_of_five_to_two_hundred_steps() -> None:
    assert warning([-400, -200, -60, -5, -4, 0, 30, 200]).tolist() == [200, 200, 60, 5, 0, 0, 0, 0]


def test_what_follows_an_alarm_is_an_onset_within_two_hundred_steps() -> None:
    def follows(onset: int | None, *steps: int) -> bool | None:
        alarms = Alarms(np.array(steps, np.int64), np.full(len(steps), 9.0), np.zeros(len(steps), np.int64))
        return onset_follows(scored("r", "a", 2000, onset, {}), alarms, 5.0)

    assert [follows(700, 500), follows(700, 499, 650), follows(None, 500)] == [True, False, False]
    assert follows(700, 700) is follows(700) is follows(None) is None


def test_resampled_weights_keep_kinds_alike() -> None:
    weights = resample(("a",) * 3 + ("b",) * 5)
    assert np.allclose(weights.sum(axis=1), 1)
    assert weights[1:, :3].sum(axis=1).mean() == pytest.approx(0.5, abs=0.02)


def test_planted_leads_are_found_and_nothing_else_is() -> None:
    found = refereed(
        population_of(
            np.random.default_rng(8),
            {"leads": 60, "in two kinds": {"a": 100, "e": 90}, "lags": -30, "never": None, "with the loss": 0},
        )
    )
    assert [found[name]["verdict"] for name in ("leads", "in two kinds")] == [LEADS, IN_SOME]
    assert found["leads"]["over_loss_low"] <= 60 <= found["leads"]["over_loss_high"]  # type: ignore[operator]
    assert found["in two kinds"]["led_kinds"] == "a, e"
    assert all(found[name]["verdict"] == NOT_SHOWN for name in ("lags", "never", "with the loss"))


def test_alarms_after_the_onset_gain_nothing_even_where_the_loss_never_alarms() -> None:
    rng = np.random.default_rng(15)
    runs = population_of(rng, {"late": -20})
    for run in runs:
        if run.kind in "abcd":  # as where the loss rises slowly
            run.alarms["loss"][LEVEL_UP] = alarms_of(rng, 1200)  # type: ignore[index]
    row = refereed(runs)["late"]
    assert row["ahead"] > 0.4  # type: ignore[operator]
    assert abs(row["gained"]) < 1  # type: ignore[arg-type]
    assert row["verdict"] == NOT_SHOWN


def test_alarms_of_quiet_runs_are_those_of_the_same_model_and_step() -> None:
    rng = np.random.default_rng(16)
    runs = population_of(rng, {"restless": None}, n_quiet=44)
    for k, run in enumerate(runs):  # every run of one model, of which few are quiet, alarms at the same step
        if k < 4 or not run.quiet:
            run.alarms["restless"][LEVEL_UP] = Alarms(np.array([500]), np.array([30.0]), np.array([0]))  # type: ignore[index]
            runs[k] = replace(run, shape="rare")
    row = refereed(runs)["restless"]
    assert row["warned"] == pytest.approx(1) == row["by_chance"]
    assert row["verdict"] == NOT_SHOWN
    assert refereed([r for r in runs if not (r.quiet and r.shape)])["restless"]["verdict"] == UNDETERMINED


@pytest.mark.parametrize("control", [None, 60])
def test_what_the_gradient_norm_loses_at_a_cadence_is_not_held_against_the_quantity(control: int | None) -> None:
    leads = {GRADIENT: 60, "rare": None, "dense": None, seldom(GRADIENT, 25): control, seldom("loss", 25): None}
    runs = population_of(np.random.default_rng(17), leads)
    data = [replace(run, cadences={"rare": 25, "dense": 1}) for run in runs]
    found = refereed(data)
    assert found.keys() == {"loss", GRADIENT, "rare", "dense"}  # controls are no contestants
    assert (found["rare"]["verdict"], found["dense"]["verdict"]) == (NOT_SHOWN if control else AT_CADENCE, NOT_SHOWN)
    table = EarlyWarningData(data, {"cadences": cadence_table}).tables["cadences"]
    assert table["control"].to_list() == [seldom("loss", 25), seldom(GRADIENT, 25)]
    assert (table["gained"][1] < -40) is (control is not None)


@pytest.mark.parametrize("twin", [30, None])
def test_h0_totals_are_set_against_the_norm_of_the_same_matrices(twin: int | None) -> None:
    name = seldom(MATRIX_NORM, 5)
    runs = population_of(np.random.default_rng(18), {H0_TOTAL: 30, name: twin, seldom("loss", 5): None})
    data = EarlyWarningData([replace(run, cadences={H0_TOTAL: 5, name: 5}) for run in runs], makers_of(SECTIONS))
    (row,) = data.tables["cadences"].filter(control=name).to_dicts()
    assert name not in data.tables["precursors"]["precursor"].to_list()  # a control is no contestant
    assert (row["gained_low"] > 0) is (twin is None)
    first, *_, last = sentences(data)
    assert ("but no more than the norm of the same matrices" in first) is (twin is not None)
    assert last.endswith("nothing is shown beyond the growth of the weights." if twin else "more than the norm.")


def test_the_twin_of_an_h0_total_is_the_scale_of_the_matrices() -> None:
    rng = np.random.default_rng(19)
    free, norms = rng.uniform(1, 2, (50, 3)).astype(np.float32), rng.uniform(5, 9, (50, 1)).astype(np.float32)
    places = (NETWORK, "layers.0", "layers.1")
    total, shape = (Quantity(5, values, places, 1.0) for values in (norms * free, free))
    (found,) = twins({"h0_total": total, "h0_scale_free": shape}).values()
    assert found.values == pytest.approx(np.repeat(norms, 3, axis=1), rel=1e-6)
    assert not twins({"h0_total": total})


def test_models_of_one_block_are_tried_by_what_they_have() -> None:
    runs = population_of(np.random.default_rng(20), {"leads": 30})
    for k, run in enumerate(runs):
        if k % 3 == 0:
            run.alarms["leads"][Choice("level", "median layer", UP)] = run.alarms["leads"][LEVEL_UP]  # type: ignore[index]
    assert refereed(runs)["leads"]["verdict"] == LEADS


def test_alerts_that_share_a_rate_keep_it_together() -> None:
    rng = np.random.default_rng(18)
    runs = population_of(rng, {"a": 60, "b": 60}, n_quiet=80)
    data = EarlyWarningData(runs, {"precursors": precursor_table, "together": together_table})
    joint = data.together
    assert joint is not None
    assert set(joint.names) == {"loss", "a", "b"}
    low, high = (100_000 * count / joint.quiet_steps for count in poisson_interval(joint.false_alarms))
    assert low / 1.3 < 1 < high * 1.3
    each = sum(data.trials[name].false_alarms for name in joint.names)
    assert joint.false_alarms < 0.6 * each  # what they would raise with the whole rate each
    row = data.tables["together"].row(0, named=True)
    assert row["warned"] == pytest.approx(1)
    assert 40 < row["gained_low"] <= row["gained"]
    assert most_alerts(data.trials) == 9  # of half of the quiet steps, rounded down


RARE = (5, 20, 25)  # steps


def sparse_verdicts(seed: int) -> dict[str, dict[str, object]]:
    """Quantities in white noise, half of which jump 60 steps before the onset, measured every so many steps."""
    rng = np.random.default_rng(seed)

    def run(name: str, kind: str, n: int, onset: int | None) -> ScoredRun:
        alarms = {"loss": {LEVEL_UP: alarms_of(rng, n, None if onset is None else onset + 10)}}
        for cadence in RARE:
            for useful in (True, False):
                values = rng.normal(size=n)
                if useful and onset is not None:
                    values[onset - 60 :] += 12  # standard deviations
                alarms[f"{'leads' if useful else 'never'} {cadence}"] = of_one(values[::cadence], cadence)
        return ScoredRun(name, kind, n, None, onset, alarms, {}, dict.fromkeys(alarms, (NETWORK,)), {})

    quiet = [run(f"quiet {k}", QUIET, 22_000, None) for k in range(20)]
    onsets = rng.integers(1800, 2300, 24)  # where there are as few values before as in the population
    return refereed(quiet + [run(f"{k}", "abcdefgh"[k % 8], 3200, int(at)) for k, at in enumerate(onsets)])


@pytest.mark.slow
def test_what_is_measured_rarely_is_found_if_it_leads_and_never_if_it_does_not() -> None:
    found = sparse_verdicts(19)
    for cadence in RARE:
        assert found[f"leads {cadence}"]["verdict"] == LEADS, cadence
        assert found[f"leads {cadence}"]["gained"] > 60 - 2 * cadence - 10, cadence  # type: ignore[operator]
        assert found[f"never {cadence}"]["verdict"] == NOT_SHOWN, cadence


def test_alarms_early_in_every_run_warn_of_nothing() -> None:
    rng = np.random.default_rng(13)
    runs = population_of(rng, {"restless": None}, n_quiet=200, quiet_steps=10_000, per_kind=40)
    for run in runs:  # one run in 25, troubled or not, has an alarm where the others have their onset
        own = run.alarms["restless"][LEVEL_UP]
        if rng.random() < 0.04:
            place = int(np.searchsorted(own.steps, step := int(rng.integers(400, 700))))
            early = (np.insert(of, place, value) for of, value in zip(own, (step, 12 + rng.random(), 0), strict=True))
            run.alarms["restless"][LEVEL_UP] = Alarms(*early)  # type: ignore[index]
    data = EarlyWarningData(runs, {"precursors": precursor_table})
    row = data.tables["precursors"].row(0, named=True)
    assert row["warned"] == pytest.approx(row["by_chance"], abs=0.02)
    assert row["verdict"] == NOT_SHOWN
    assert sign_flip(np.sign(np.array(list(data.gained("restless").values()), np.float64))) < 0.05  # which misleads


def test_with_few_quiet_steps_nothing_is_said() -> None:
    runs = population_of(np.random.default_rng(10), {"leads": 60})
    found = refereed([run for run in runs if run.run not in {f"q{k}" for k in range(8)}])
    assert found["leads"]["verdict"] == UNDETERMINED


@pytest.mark.slow
def test_eighty_populations_as_the_page_says() -> None:
    rng, n, found, some, covered = np.random.default_rng(77), 80, 0, 0, 0
    useless = {f"never {k}": None for k in range(10)} | {f"lags {k}": -20 for k in range(5)}
    for _ in range(n):
        rows = refereed(population_of(rng, {**useless, "leads": 30, "two kinds": {"a": 60, "e": 60}}))
        assert all(rows[name]["verdict"] == NOT_SHOWN for name in useless)
        found += rows["leads"]["verdict"] == LEADS
        some += rows["two kinds"]["verdict"] == IN_SOME
        covered += rows["leads"]["over_loss_low"] <= 30 <= rows["leads"]["over_loss_high"]  # type: ignore[operator]
    assert (found, some, covered) == (80, 77, 80)


@pytest.mark.slow
@pytest.mark.parametrize("cadence", [1, 20])
@pytest.mark.parametrize("family", NOISE)
def test_held_out_noise_raises_no_more_alarms_than_stated(family: str, cadence: int) -> None:
    rng, n_steps = np.random.default_rng(5), 25_000
    runs = {f"{family} {k}": of_one(NOISE[family](rng, n_steps // cadence), cadence) for k in range(40)}
    half = halves(runs)
    counts = []
    for choice in runs[f"{family} 0"]:
        count = 0
        for own in (0, 1):
            quiet = [alarms[choice] for name, alarms in runs.items() if half[name] == own]
            threshold = set_threshold(quiet, 20 * n_steps, FALSE_ALARM_RATE)
            count += sum(count_alarms(each[choice], threshold) for name, each in runs.items() if half[name] != own)
        counts.append(count)
    assert 0.5 < np.mean(counts) / 10 < 1.2  # in 100,000 steps


@pytest.fixture(scope="module")
def series() -> list[ScoredRun]:
    """Runs made from values: quantities measured every 20 steps in noise of each family, one of which moves early."""
    rng = np.random.default_rng(11)

    def run(name: str, kind: str, n: int, onset: int | None) -> ScoredRun:
        rises = dict.fromkeys(("loss", *NOISE)) | ({"loss": onset, "heavy": onset - 120} if onset else {})
        alarms = {}
        for quantity, rise in rises.items():
            values: NDArray[np.float64] = NOISE.get(quantity, NOISE["white"])(rng, n)
            if rise is not None:
                values = values + 3 * np.clip(np.arange(n) - rise, 0, 60)
            cadence = 5 if quantity == "loss" else 20
            alarms[quantity] = of_one(values[::cadence], cadence)
        return ScoredRun(name, kind, n, None, onset, alarms, {}, dict.fromkeys(rises, (NETWORK,)), {})

    quiet = [run(f"quiet {k}", QUIET, 42_000, None) for k in range(10)]
    return quiet + [run(f"{kind}{k}", kind, 1200, int(rng.integers(800, 950))) for kind in "abcde" for k in range(3)]


def test_a_quantity_that_moves_first_is_credited_in_any_noise(series: list[ScoredRun]) -> None:
    found = refereed(series)
    assert found["heavy"]["verdict"] == LEADS
    assert found["heavy"]["over_loss_low"] - 20 <= 120 <= found["heavy"]["over_loss_high"] + 20  # type: ignore[operator]
    assert all(found[name]["verdict"] == NOT_SHOWN for name in NOISE if name != "heavy")
    assert all(float(str(row["rate_low"])) < 2 for row in found.values())


def test_the_page_says_what_leads_and_by_how_much(series: list[ScoredRun]) -> None:
    page = early_warning_page(series)
    assert not page.notes()
    longer = [replace(run, shape="new") if run.run == "a0" else run for run in series]
    assert early_warning_page(longer).notes() == [
        "1 troubled run without a held-out quiet run of the same model as long: not used."
    ]
    answer, how, together, rest = page.summary()  # no topology was measured
    assert answer == (
        "Of 5 quantities 1 warns of trouble before the loss does, at one false alarm in 100,000 steps: heavy."
    )
    assert how.startswith("Heavy leads the loss: next to it, 100% of troubles are warned of before their onset")
    assert together.startswith("As alerts that share the one rate, loss and heavy raise ")
    assert rest.startswith("Not shown to lead it, so not worth their cost: ")
    assert early_warning_page(series[5:]).summary()[0].endswith("cannot be told from these runs.")
    first = page.tables()["groups"].group_by("precursor").agg(pl.col("first").mean()).sort("first")["precursor"][-1]
    assert first == "heavy"


def test_the_page_says_where_topology_saves_more_than_any_plain_quantity() -> None:
    rng = np.random.default_rng(14)
    leads = {"H0 total of the rows": {"a": 90, "b": 30}, "weight norm": {"a": 60, "b": 60}}
    first, *_, last = early_warning_page(population_of(rng, leads)).summary()
    assert first.endswith("; topology does.")
    assert last == "Topology gains more steps of warning than every plain quantity in a, on average, untested."


def test_the_command_referees_what_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(12)

    def trained(design: object, folder: Path, workers: int | None, progress: object) -> None:
        folder.mkdir(parents=True)
        for name, kind, rise in (("q", QUIET, 0.0), ("t", "spikes", 9.0)):
            loss = rng.normal(size=600) + rise * (np.arange(600) > 400)
            norm = Quantity(2, rng.normal(size=(300, 2)).astype(np.float32), (NETWORK, "layers.0"), 1e-3)
            trace = Trace(name, kind, "v", 0, 400 if rise else None, 600, loss, {"gradient_norm": norm})
            write_traces(folder / f"{name}.traces.safetensors", [trace])

    monkeypatch.setattr(population, "train_population", trained)
    out = tmp_path / "out"
    arguments = ["--quick", "--out", str(out), "--workers", "1"]
    done = CliRunner().invoke(early_warnings, arguments, help_option_names=["-h", "--help"])  # as of all commands
    assert done.exit_code == 0, done.output
    assert "cannot be told from these runs." in done.output
    assert "gradient norm" in done.output
    assert (out / "index.html").is_file()
