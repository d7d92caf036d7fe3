"""``last``, ``power_law``, ``s1`` and the laws with annealing, on runs whose law is known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import LAWS, Truth, annealed, copied, flattened, made_up_family, made_up_run, rates, seen
from property_examples import examples

from toposcope.forecasting.forecaster import LoggedRun
from toposcope.forecasting.forecasters.baseline_laws import (
    Last,
    LawForecaster,
    ProgressPowerLaw,
    StepPowerLaw,
    present_slope,
)
from toposcope.forecasting.forecasters.cooldown_laws import (
    ANNEALING,
    COOLDOWN,
    COOLDOWN_DELAY,
    COOLDOWN_EXPONENT,
    PRIOR,
    S1_ANNEAL,
    AnnealedLaw,
    delayed_decay,
)
from toposcope.forecasting.forecasters.pool import Pool
from toposcope.logs.schedules.schedule import Schedule

FORECASTER: dict[str, LawForecaster] = {
    "power_law": StepPowerLaw(),
    "s1": ProgressPowerLaw(),
    "s1_anneal": S1_ANNEAL,
    "annealing": ANNEALING,
    "cooldown": COOLDOWN,
}
ANNEALED = (S1_ANNEAL, ANNEALING, COOLDOWN)


def error(forecaster: LawForecaster, run: LoggedRun, fraction: float, siblings: tuple[LoggedRun, ...] = ()) -> float:
    """|predicted / final - 1|, the final loss being that of the law without noise."""
    return abs(forecaster.fit(seen(run, fraction), run.schedule, siblings).loss / run.final() - 1)


@pytest.mark.parametrize("fraction", [0.3, 0.6])
@pytest.mark.parametrize("kind", ["cosine", "linear", "wsd", "two-step", "restarts", "constant"])
@pytest.mark.parametrize("law", LAWS)
def test_a_law_finds_its_own_end(law: str, kind: str, fraction: float) -> None:
    run = made_up_run(kind=kind, truth=Truth(law=law))
    tolerance = 2e-3 if law in ("power_law", "s1") else 3e-3
    assert error(FORECASTER[law], run, fraction) < tolerance


@pytest.mark.parametrize("law", ["s1_anneal", "annealing", "cooldown"])
def test_the_coefficient_is_found_once_enough_was_seen(law: str) -> None:
    run = made_up_run(kind="linear", truth=Truth(law=law, c=0.4))
    found = FORECASTER[law].fit(seen(run, 0.7), run.schedule, ())
    assert PRIOR + 0.1 < found.diagnostics["c"] < 0.42
    assert found.loss == pytest.approx(run.final(), rel=0.01)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    "changes",
    [{"spikes": 0.05}, {"missing": 0.5}, {"begin": 400}, {"every": 1}, {"every": 61, "begin": 61}],
    ids=["spikes", "missing steps", "late", "every step", "few"],
)
def test_what_a_log_lacks_does_not_matter(law: str, changes: dict[str, float]) -> None:
    run = made_up_run(kind="linear", truth=Truth(law=law), **changes)  # type: ignore[arg-type]
    end = made_up_run(kind="linear", truth=Truth(law=law)).final()
    predicted = FORECASTER[law].fit(seen(run, 0.6), run.schedule, ()).loss
    assert predicted == pytest.approx(end, rel=5e-3)


@examples(30)
@given(st.integers(-6, 6), st.sampled_from([0.3, 0.7]), st.sampled_from(["power_law", "s1"]))
def test_the_unit_of_the_loss_does_not_matter(exponent: int, fraction: float, law: str) -> None:
    here, there = (made_up_run(noise=0.01, scale=scale) for scale in (1.0, 10.0**exponent))
    assert error(FORECASTER[law], here, fraction) == pytest.approx(error(FORECASTER[law], there, fraction), abs=1e-6)


@pytest.mark.parametrize("forecaster", ANNEALED, ids=lambda forecaster: forecaster.name)
def test_the_prior_is_in_nats_and_else_a_share_of_the_loss(forecaster: AnnealedLaw) -> None:
    nats, bits = made_up_run(), made_up_run(unit="bits", scale=10.0)
    c = [forecaster.fit(seen(run, 0.2), run.schedule, ()).diagnostics["c"] for run in (nats, bits)]
    assert c[0] == pytest.approx(PRIOR, abs=1e-3)
    log = seen(bits, 0.2)
    assert c[1] == pytest.approx(PRIOR / 3.1 * np.median(log.loss[-3:]), rel=0.05)


@pytest.mark.parametrize("scale", [1e-4, 1e5])
@pytest.mark.parametrize("forecaster", [ProgressPowerLaw(), *ANNEALED, Pool()], ids=lambda forecaster: forecaster.name)
def test_the_unit_of_the_learning_rate_does_not_matter(forecaster: LawForecaster, scale: float) -> None:
    for fraction in (0.3, 0.7):
        here, there = (made_up_run(noise=0.01, peak=peak) for peak in (1e-3, scale * 1e-3))
        family, other = made_up_family(sizes=2, each=2), made_up_family(sizes=2, each=2, peak=scale * 1e-3)
        one = forecaster.fit(seen(here, fraction), here.schedule, family)
        two = forecaster.fit(seen(there, fraction), there.schedule, other)
        assert one.loss == pytest.approx(two.loss, rel=1e-6)
        np.testing.assert_allclose(one.curve, two.curve, rtol=1e-6)


def test_last_is_the_mean_of_the_last_fiftieth() -> None:
    run = made_up_run(noise=0.1)
    log = seen(run, 0.5)
    found = Last().fit(log, run.schedule, ())
    assert found.loss == pytest.approx(log.loss[-round(len(log.loss) / 50) :].mean())
    np.testing.assert_array_equal(found.curve, found.loss)


@examples(100)
@given(st.lists(st.sampled_from([1.0, 0.8, 0.5, 0.3, 0.1, 0.0]), min_size=2, max_size=60))
def test_the_gain_of_cooldown_is_its_double_sum(multiples: list[float]) -> None:
    planned = np.array([1.0, *multiples]) * 2e-4
    schedule = Schedule(planned)
    progress = np.cumsum(planned / planned[0])
    steps = np.arange(len(planned))
    for t, found in zip(steps, delayed_decay(schedule, steps), strict=True):
        expected = 0.0
        for k in range(1, t + 1):
            fall = (planned[k - 1] - planned[k]) / planned[0]
            since = (progress[t] - progress[k]) / (COOLDOWN_DELAY * progress[-1])
            expected += fall * (1 - (1 + since) ** -COOLDOWN_EXPONENT)
        assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", ["cosine", "linear", "wsd", "restarts"])
def test_many_falls_in_groups_gain_the_same(kind: str) -> None:
    planned = rates(kind, 3000)
    schedule, steps = Schedule(planned), np.arange(0, 3001, 7)
    apart = np.abs(delayed_decay(schedule, steps) - annealed(planned, "cooldown")[steps])
    # a group of falls gains in one step
    assert np.median(apart) < 1e-3
    assert apart.max() < 0.02


@pytest.mark.parametrize("kind", ["cosine", "wsd", "restarts", "two-step"])
def test_the_momentum_of_annealing_is_its_recurrence(kind: str) -> None:
    planned = rates(kind)
    steps = np.arange(2001)
    np.testing.assert_allclose(Schedule(planned).momentum(steps), annealed(planned, "annealing"), atol=1e-9)
    np.testing.assert_allclose(Schedule(planned).cooled(steps), 1 - flattened(planned), atol=1e-12)


@pytest.mark.parametrize("forecaster", ANNEALED, ids=lambda forecaster: forecaster.name)
@pytest.mark.parametrize(
    ("kind", "fraction", "told"),
    [
        ("linear", 0.2, "only 18% of the decay seen"),
        ("linear", 0.45, "only 44% of the decay seen"),
        ("wsd", 0.8, "only 33% of the decay seen"),
        ("wsd", 0.6, "only 0% of the decay seen"),
        ("two-step", 0.45, "only 45% of the run seen"),
        ("linear", 0.6, None),
        ("wsd", 0.95, None),
        ("constant", 0.3, None),
        ("constant", 0.7, None),
    ],
)
def test_the_coefficient_is_a_prior_until_enough_was_seen(
    forecaster: AnnealedLaw, kind: str, fraction: float, told: str | None
) -> None:
    run = made_up_run(kind=kind, truth=Truth(c=0.5), noise=0.002)
    found = forecaster.fit(seen(run, fraction), run.schedule, ())
    said = [remark for remark in found.remarks if "annealing coefficient" in remark]
    if told:
        assert said == [f"{told}: the annealing coefficient is a prior, 0.19 nats"]
        assert found.diagnostics["c"] == pytest.approx(PRIOR, abs=1e-3)
    else:
        assert not said
    if told is None and kind != "constant":
        assert found.diagnostics["c"] != pytest.approx(PRIOR, abs=2e-3)


@pytest.mark.parametrize("fraction", [0.2, 0.3, 0.5])
@pytest.mark.parametrize("kind", ["cosine", "linear", "wsd", "two-step"])
@pytest.mark.parametrize(
    "truth",
    [
        Truth(L0=2.5, A=0.02, a=0.4, c=0.009, law="cooldown"),
        Truth(L0=3.4, A=0.03, a=0.5, c=0.016, law="annealing"),
        Truth(L0=0.45, A=0.01, a=0.5, c=0.005, law="cooldown"),
        Truth(L0=0.0, A=0.02, a=0.5, c=0.011, law="cooldown"),
    ],
    ids=["shallow", "shallower", "cross-entropy near 0", "to zero"],
)
def test_a_run_that_gains_little_is_no_worse_off_than_by_the_naive_rules(
    truth: Truth, kind: str, fraction: float
) -> None:
    """The prior of language models is 10 to 40 times the gain of these runs, which is about their slope at the end."""
    runs = [made_up_run(f"{i}", kind, truth, noise=0.0005) for i in range(3)]
    pool, power_law, last = (
        np.median([error(forecaster, run, fraction) for run in runs]) for forecaster in (Pool(), StepPowerLaw(), Last())
    )
    assert pool <= max(1.4 * min(power_law, last), 0.004)


@pytest.mark.parametrize("scale", [1e-6, 0.01, 1e3])
def test_a_prior_from_the_slope_scales_with_the_loss(scale: float) -> None:
    truth = Truth(L0=1.0, A=0.02, a=0.5, c=0.006)
    here, there = (made_up_run(truth=truth, noise=0.0005, scale=each) for each in (1.0, scale))
    assert error(Pool(), here, 0.3) == pytest.approx(error(Pool(), there, 0.3), abs=5e-4)
    prior = S1_ANNEAL.prior(seen(here, 0.3), here.schedule, ())
    assert prior.by_slope
    assert prior.centre == pytest.approx(0.5 * present_slope(seen(here, 0.3), here.schedule), rel=0.01)


def test_language_models_keep_their_prior() -> None:
    """A slope of 0.05 to 0.5 nats, a loss of 2 nats and more."""
    for A, a in ((0.5, 0.45), (0.3, 0.2), (1.0, 0.5)):
        run = made_up_run(truth=Truth(A=A, a=a), noise=0.01)
        for fraction in (0.2, 0.4):
            prior = S1_ANNEAL.prior(seen(run, fraction), run.schedule, ())
            assert (prior.centre, prior.by_slope) == (PRIOR, False)


def test_siblings_tell_the_coefficient() -> None:
    """The median of the coefficients of three siblings or more; of fewer nothing is believed."""
    run = made_up_run("run", "linear", Truth(c=0.4), size=1e9)
    siblings = [made_up_run(f"s{i}", "linear", Truth(c=c), size=1e7 * (i + 1)) for i, c in enumerate((0.3, 0.4, 0.5))]
    for several, expected in ((siblings, 0.4), (siblings[:2], PRIOR)):
        found = S1_ANNEAL.fit(seen(run, 0.2), run.schedule, several)
        assert found.diagnostics["c"] == pytest.approx(expected, abs=0.02)
    assert "the median of 3 siblings, 0." in " ".join(S1_ANNEAL.fit(seen(run, 0.2), run.schedule, siblings).remarks)
    flat = [made_up_run(f"f{i}", "constant", size=1e7 * (i + 1)) for i in range(4)]
    assert S1_ANNEAL.fit(seen(run, 0.2), run.schedule, flat).diagnostics["c"] == pytest.approx(PRIOR, abs=1e-3)
    other = [copied(sibling, unit="bits") for sibling in siblings]
    assert S1_ANNEAL.fit(seen(run, 0.2), run.schedule, other).diagnostics["c"] == pytest.approx(PRIOR, abs=1e-3)


def test_a_sibling_logged_after_its_fall_tells_nothing() -> None:
    run = made_up_run("run", "two-step", Truth(c=0.4), size=1e9)
    late = [made_up_run(f"{i}", "two-step", Truth(c=0.4), size=1e7 * (i + 1), begin=1700) for i in range(4)]
    found = S1_ANNEAL.fit(seen(run, 0.2), run.schedule, late)
    assert found.diagnostics["c"] == pytest.approx(PRIOR, abs=1e-3)


@pytest.mark.parametrize("forecaster", ANNEALED, ids=lambda forecaster: forecaster.name)
def test_a_diverging_run_gains_nothing(forecaster: AnnealedLaw) -> None:
    """No law with an exponent and a factor above 0 fits; it has no slope, and its free coefficient means nothing."""
    run = made_up_run(kind="linear")
    log = replace(run.log, loss=2 + np.maximum(run.log.steps - 1000, 0) / 200.0)
    found = forecaster.fit(seen(LoggedRun(log, run.schedule), 0.7), run.schedule, ())
    assert found.diagnostics["c"] == 0
    assert "the loss does not fall as in training" in found.remarks[0]


@pytest.mark.parametrize("forecaster", ANNEALED, ids=lambda forecaster: forecaster.name)
@pytest.mark.parametrize("scale", [0.3, 0.1, 0.01])
def test_small_losses_are_predicted_as_well(forecaster: AnnealedLaw, scale: float) -> None:
    run = made_up_run()
    log = seen(LoggedRun(replace(run.log, loss=scale * run.log.loss), run.schedule), 0.3)
    assert forecaster.fit(log, run.schedule, ()).loss == pytest.approx(scale * run.final(), rel=0.05)


def test_what_is_remembered_does_not_depend_on_who_asked_first() -> None:
    sizes = [1e7, 2e7, 3e7]
    first = [made_up_run(f"a{s}", "linear", Truth(c=0.3), size=s, noise=0.001) for s in sizes]
    other = [made_up_run(f"b{s}", "linear", Truth(c=0.3), size=s, noise=0.001) for s in sizes]
    run = made_up_run("run", "linear", Truth(c=0.35), noise=0.01, size=1e9)
    for fresh in (copied(run), copied(run)):
        log = seen(fresh, 0.7)
        found = [S1_ANNEAL.fit(log, fresh.schedule, several).loss for several in (first, other)]
        alone = [
            S1_ANNEAL.fit(seen(apart := copied(run), 0.7), apart.schedule, several).loss for several in (other, first)
        ]
        assert found == alone[::-1]
        first, other = other, first


def test_a_sibling_is_forecast_without_its_own_size() -> None:
    """Siblings of one size, whose coefficient differs from all others, do not learn of it from each other."""
    odd = [made_up_run(f"odd {i}", "linear", Truth(c=0.8), size=5e8, end=1000 + 200 * i) for i in range(4)]
    usual = [made_up_run(f"usual {i}", "linear", Truth(c=0.2), size=1e7 * (i + 1)) for i in range(6)]
    run = made_up_run("run", "linear", size=1e9)
    siblings = [*usual, *odd]
    found = S1_ANNEAL.fit(seen(run, 0.2), run.schedule, siblings)
    # 0.6 nats of the gain were not foreseen, of a loss near 2.1
    assert found.errors[-4:].min() > 0.1
    assert np.abs(found.errors[:6]).max() < 0.01
