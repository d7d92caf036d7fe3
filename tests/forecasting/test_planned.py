from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.family.run import ScheduleName, learning_rate
from toposcope.logs import Run
from toposcope.logs.schedules.schedule import Schedule, planned
from toposcope.logs.table import LogTable

T = 10_000
NONE = np.nan


def made(steps: NDArray[np.int64], rates: NDArray[np.float64], last_step: int | None = T) -> Run:
    return Run("run", steps, 3 + 1 / (1 + steps / 1000), np.asarray(rates, dtype=np.float64), last_step=last_step)


def true_rates(kind: ScheduleName, final: float = 0.0, warmup: int = 300, decay: int = 2000) -> NDArray[np.float64]:
    """The rate of every step by the family's own schedules, an implementation apart."""
    return np.array(
        [
            learning_rate(
                t,
                schedule=kind,
                peak=1e-3,
                final=final * 1e-3,
                warmup_steps=warmup,
                decay_steps=decay,
                total_steps=T,
            )
            for t in range(T + 1)
        ]
    )


def seen(rates: NDArray[np.float64], fraction: float, every: int = 50, last_step: int | None = T) -> Run:
    steps = np.arange(0, int(fraction * T) + 1, every)
    return made(steps, rates[steps], last_step)


def apart(schedule: Schedule, rates: NDArray[np.float64]) -> float:
    """Largest difference after warm-up, as a share of the peak."""
    assert schedule.last_step == len(rates) - 1
    return float(np.abs(schedule.rates - Schedule(rates).rates).max() / rates.max())


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant", "wsd"])
def test_a_complete_log_is_followed(kind: ScheduleName) -> None:
    rates = true_rates(kind, 0.1)
    schedule = planned(seen(rates, 1))
    assert apart(schedule, rates) < 1e-3
    assert schedule.remarks == ()


@pytest.mark.parametrize("kind", ["wsd", "linear", "cosine", "constant"])
def test_a_complete_log_that_misses_its_last_steps_goes_on_to_the_end(kind: ScheduleName) -> None:
    rates = true_rates(kind)
    schedule = planned(seen(rates, 0.985), last_step=T)
    assert schedule.last_step == T
    assert np.allclose(schedule.rates[300:], rates[300:], atol=1e-3 * rates.max())


@pytest.mark.parametrize("n", [3, 4, 6])
def test_a_line_of_few_rows_ends_at_0(n: int) -> None:
    steps = 500 * np.arange(1, n + 1)
    schedule = planned(made(steps, 5e-5 * (1 - steps / (500 * n + 100)), 500 * n + 100))
    assert schedule.rates[-1] == pytest.approx(0, abs=1e-9)


def test_a_rate_logged_after_its_step_does_not_end_a_step_late() -> None:
    steps = np.arange(10, 1501, 10)
    schedule = planned(made(steps, 5e-5 * (1 - (steps - 1) / 3000), None))
    assert schedule.last_step == 3000


def test_rates_are_those_of_all_rows_whichever_loss_they_hold() -> None:
    steps = np.arange(5, 101, 5)
    rates = 1e-3 * (0.5 + 0.5 * np.cos(np.pi * steps / 300))
    table = LogTable.from_rows({int(s): {"learning_rate": r} for s, r in zip(steps, rates, strict=True)})
    log = replace(made(np.array([2, 51, 99]), np.full(3, np.nan), 300), table=table)
    schedule = planned(log)
    assert schedule.rates[-1] == pytest.approx(0, abs=1e-5)
    assert log.last_seen == 100


def test_a_drop_between_logged_steps_stays_between_them() -> None:
    rates = np.where(np.arange(T + 1) < 5030, 1e-3, 1e-4)
    schedule = planned(seen(rates, 1))
    assert (schedule.rates[:5001] == 1e-3).all()
    assert (schedule.rates[5050:] == 1e-4).all()


@examples(40)
@given(
    kind=st.sampled_from(["cosine", "linear"]),
    final=st.sampled_from([0.0, 0.05, 0.1, 0.3]),
    warmup=st.integers(0, 900),
    fraction=st.floats(0.2, 0.9),
    every=st.sampled_from([1, 13, 50, 100]),
)
@example("linear", 0.0, 599, 0.5, 13)  # logged just before the peak
@example("linear", 0.3, 452, 0.5, 50)
def test_a_shape_is_recognised(kind: ScheduleName, final: float, warmup: int, fraction: float, every: int) -> None:
    rates = true_rates(kind, final, warmup)
    schedule = planned(seen(rates, fraction, every))
    assert apart(schedule, rates) < 0.02
    assert "follows a" in schedule.remarks[0]
    assert ("cosine" in schedule.remarks[0]) == (kind == "cosine")


def test_a_cool_down_is_recognised_once_it_is_seen() -> None:
    rates = true_rates("wsd", decay=4000)
    schedule = planned(seen(rates, 0.75))
    assert apart(schedule, rates) < 0.01
    assert schedule.remarks == ("learning rate is constant to step 6,000, then follows a line to step 10,000",)
    before = planned(seen(rates, 0.5))
    assert (before.rates == before.peak).all()
    assert before.remarks == ("learning rate is constant so far; a cool-down is not known: declare it",)


@pytest.mark.parametrize(
    ("fall", "words"),
    [
        (lambda x: 1 - np.sqrt(x), "1 - sqrt"),
        (lambda x: 0.1**x, "an exponential"),
        (lambda x: (1 + np.cos(np.pi * x)) / 2, "a cosine"),
    ],
)
def test_shapes_of_a_cool_down(fall: Callable[[NDArray[np.float64]], NDArray[np.float64]], words: str) -> None:
    rates = 1e-3 * fall(np.clip((np.arange(T + 1) - 6000) / 4000, 0, 1))
    schedule = planned(seen(rates, 0.8))
    np.testing.assert_allclose(schedule.rates[8000:], rates[8000:], atol=1e-5)
    assert words in schedule.remarks[0]


def test_inverse_square_root() -> None:
    steps = np.arange(T + 1)
    rates = 1e-3 * np.minimum(steps / 400, np.sqrt(400 / np.maximum(steps, 1)))
    schedule = planned(seen(rates, 0.4))
    assert apart(schedule, rates) < 0.02
    assert schedule.remarks == ("learning rate follows an inverse square root",)


@pytest.mark.parametrize(("kind", "fraction"), [("cosine", 0.4), ("cosine", 0.7), ("linear", 0.3)])
def test_an_end_is_estimated(kind: ScheduleName, fraction: float) -> None:
    schedule = planned(seen(true_rates(kind), fraction, last_step=None))
    assert schedule.last_step == pytest.approx(T, rel=0.03)
    assert "estimated" in schedule.remarks[0]


def test_a_cosine_that_ends_before_the_run_is_held() -> None:
    early = true_rates("cosine", 0.1)
    rates = np.concatenate([early, np.full(2000, early[-1])])
    steps = np.arange(0, 5001, 50)
    schedule = planned(made(steps, rates[steps], 12_000))
    assert apart(schedule, rates) < 0.01
    assert "declare what follows" in schedule.remarks[0]


@pytest.mark.parametrize("kind", ["constant", "wsd"])
def test_no_end_is_refused(kind: ScheduleName) -> None:
    with pytest.raises(ToposcopeError, match=r"run: the number of planned steps is unknown.*--schedule"):
        planned(seen(true_rates(kind), 0.5, last_step=None))


@pytest.mark.parametrize("digits", [3, 4])
@pytest.mark.parametrize("share", [0.15, 0.2, 0.25, 0.4])
def test_rates_logged_with_few_digits_follow_their_shape(digits: int, share: float) -> None:
    rates = true_rates("cosine")
    rounded = np.array([float(f"{rate:.{digits - 1}e}") for rate in rates])
    schedule = planned(seen(rounded, share))
    assert "follows a cosine" in schedule.remarks[0]
    assert apart(schedule, rates) < 0.05


@pytest.mark.parametrize("rows", [1, 2])
def test_a_slip_of_the_learning_rate_is_ignored(rows: int) -> None:
    rates = true_rates("cosine")
    log = seen(rates, 0.4)
    slipped = log.learning_rate.copy()
    slipped[40 : 40 + rows] *= 3
    schedule = planned(replace(log, learning_rate=slipped))
    assert apart(schedule, rates) < 0.05
    assert f"{rows} logged learning rate" in schedule.remarks[-1]


def test_too_little_of_a_cosine_tells_no_end() -> None:
    rates = np.round(true_rates("cosine"), 6)
    with pytest.raises(ToposcopeError, match="planned steps is unknown"):
        planned(seen(rates, 0.12, last_step=None))


def test_no_learning_rate() -> None:
    steps = np.arange(0, 5000, 100)
    schedule = planned(made(steps, np.full(50, NONE)))
    assert (schedule.rates == 1).all()
    assert schedule.last_step == T
    assert schedule.remarks[0].startswith("no learning rate was logged")
    with pytest.raises(ToposcopeError, match="planned steps is unknown"):
        planned(made(steps, np.full(50, NONE), None))


def test_rows_without_a_rate_and_rounding_below_0() -> None:
    rates = true_rates("cosine")
    log = seen(rates, 1)
    log.learning_rate[::3] = np.nan
    log.learning_rate[-1] = -1e-11
    schedule = planned(log)
    assert apart(schedule, rates) < 1e-3
    assert schedule.rates[-1] == 0


def test_a_negative_rate_is_refused() -> None:
    log = seen(true_rates("cosine"), 1)
    log.learning_rate[40] = -1e-4
    with pytest.raises(ToposcopeError, match="run: the learning rate is negative at step 2000"):
        planned(log)


def test_a_schedule_shorter_than_the_log_is_refused() -> None:
    log = seen(true_rates("cosine"), 0.5)
    message = "run: the schedule ends at step 4,000, before the log does at step 5,000"
    for arguments in (("cosine:steps=4000", None), ("", 4000), ("0:1e-3,4000:0", None)):
        with pytest.raises(ToposcopeError, match=message):
            planned(log, *arguments)


def test_warm_up_counts_as_at_the_peak_and_a_rising_rate_is_held() -> None:
    rates = true_rates("cosine", warmup=3000)
    schedule = planned(seen(rates, 0.2))
    assert (schedule.rates >= 0.999 * schedule.peak).all()
    assert schedule.remarks[0].startswith("learning rate still rises")


def test_a_restart_is_held_and_said() -> None:
    steps = np.arange(T + 1)
    rates = 1e-3 * (1 + np.cos(np.pi * (steps % 2500) / 2500)) / 2
    rates[-1] = 0
    schedule = planned(seen(rates, 0.6))
    assert schedule.rates[-1] == rates[6000]
    assert "no known shape" in schedule.remarks[0]
    declared = planned(seen(rates, 0.6), "cosine:cycles=4,warmup=0,final=0")
    np.testing.assert_allclose(declared.rates[6000:], rates[6000:], atol=1e-12)
    assert declared.remarks == ()


def test_a_late_first_step() -> None:
    rates = true_rates("wsd")
    steps = np.arange(6000, T + 1, 50)
    schedule = planned(made(steps, rates[steps]))
    assert (schedule.rates[:8001] == 1e-3).all()
    assert schedule.remarks == ("no learning rate was logged before step 6,000: that of step 6,000 is assumed",)
    steps = np.arange(4000, 7001, 50)
    cosine = true_rates("cosine")
    assert apart(planned(made(steps, cosine[steps]), "cosine:warmup=300,peak=1e-3,final=0"), cosine) < 1e-3


def test_one_logged_step() -> None:
    schedule = planned(made(np.array([100]), np.array([1e-3])))
    assert (schedule.rates == 1e-3).all()


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("cosine:warmup=300,final=0.1", true_rates("cosine", 0.1)),
        ("cosine", true_rates("cosine", 0.1)),
        ("cosine:steps=10000", true_rates("cosine", 0.1)),
        ("linear:final=0", true_rates("linear")),
        ("linear", true_rates("linear", 0.2)),
        ("constant", true_rates("constant")),
        ("wsd:decay=0.2,final=0", true_rates("wsd")),
        ("wsd:decay=2000", true_rates("wsd")),
        ("0:0,300:1e-3,8000:1e-3,10000:0", true_rates("wsd")),
    ],
)
@pytest.mark.parametrize("fraction", [0.3, 0.6])
def test_what_is_declared_continues_the_log(text: str, rates: NDArray[np.float64], fraction: float) -> None:
    schedule = planned(seen(rates, fraction), text)
    assert apart(schedule, rates) < 0.01
    assert not any("the declared schedule has" in remark for remark in schedule.remarks)


def test_declared_without_a_learning_rate() -> None:
    steps = np.arange(0, 3000, 100)
    log = made(steps, np.full(30, NONE), None)
    rates = true_rates("cosine", 0.1)
    assert apart(planned(log, "cosine:steps=10000,warmup=300,final=0.1,peak=1e-3"), rates) < 1e-12
    assert planned(log, "cosine:steps=10000").remarks == ("the learning rate is taken to end at 0; declare final",)
    with pytest.raises(ToposcopeError, match="planned steps is unknown"):
        planned(log, "cosine")


def test_other_declared_kinds() -> None:
    log = made(np.arange(0, 3000, 100), np.full(30, NONE))
    steps = np.arange(T + 1)
    falls = planned(log, "step:at=0.5;7500,factor=0.1").rates
    np.testing.assert_allclose(falls, np.where(steps < 5000, 1, np.where(steps < 7500, 0.1, 0.01)))
    root = planned(log, "inverse_sqrt:warmup=100").rates
    np.testing.assert_allclose(root[100:], np.sqrt(100 / steps[100:]))
    half = planned(log, "wsd:decay=0.5,shape=sqrt,warmup=0.01,final=0.2")
    assert half.warm_up == 100
    assert half.rates[6250] == pytest.approx(0.2 + 0.8 * 0.5)
    assert planned(log, "cosine:steps=20000", 5000).last_step == 5000
    longer = planned(log, "cosine:steps=8000,final=0.1", T)
    np.testing.assert_allclose(longer.rates[8000:], 0.1)


def test_the_log_comes_before_what_is_declared() -> None:
    rates = true_rates("constant")
    schedule = planned(seen(rates, 0.5), "cosine:final=0")
    assert (schedule.rates[:5001] == 1e-3).all()
    assert schedule.remarks[-1].startswith("at step 5,000 the declared schedule has a learning rate of ")


def test_wsd_takes_the_cool_down_that_was_logged() -> None:
    rates = true_rates("wsd", decay=4000)
    assert apart(planned(seen(rates, 0.75), "wsd"), rates) < 0.01
    assumed = planned(seen(rates, 0.4), "wsd")
    assert apart(assumed, true_rates("wsd", decay=2000)) < 0.01
    assert "the cool-down is taken to be the last 20% of 10,000 steps" in assumed.remarks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cosin", "begin with one of constant, cosine"),
        ("cosine:final=2", "a share of the peak"),
        ("cosine:decay=0.2", "'decay=0.2' is no option of cosine"),
        ("cosine:steps", "'steps' is no option"),
        ("cosine:steps=many", "steps is a whole number, not many"),
        ("cosine:steps=-5", "steps is a whole number"),
        ("cosine:peak=0", "the peak is above 0"),
        ("wsd:shape=round", "the shape is one of linear, sqrt, cosine"),
        ("step:factor=0.1", "declare where it decays"),
        ("step:at=half", "at is a positive number"),
        ("0:1,5:x", "'5:x' is no step:rate"),
        ("0:1", "two or more steps"),
        ("9:1,5:1", "ascending"),
        ("0:nan,5:1", "no step:rate"),
        ("", ""),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, message: str) -> None:
    log = made(np.arange(0, 3000, 100), np.full(30, 1e-3))
    if not text:
        assert planned(log).remarks
        return
    with pytest.raises(ToposcopeError, match=message) as caught:
        planned(log, text)
    assert repr(text) in str(caught.value)


@examples(60)
@given(
    rates=st.lists(st.one_of(st.floats(0, 1e-2), st.just(np.nan)), min_size=1, max_size=40),
    gaps=st.lists(st.integers(1, 500), min_size=40, max_size=40),
    beyond=st.integers(0, 5000),
)
def test_any_log_gives_a_schedule_that_follows_it(rates: list[float], gaps: list[int], beyond: int) -> None:
    steps = np.cumsum(gaps)[: len(rates)]
    end = int(steps[-1]) + beyond
    schedule = planned(made(steps, np.array(rates), end))
    assert schedule.last_step == end
    known = np.flatnonzero(~np.isnan(rates))
    if len(known) and max(np.array(rates)[known]) > 1e-6 and not any("a slip" in told for told in schedule.remarks):
        late = steps[known][steps[known] >= schedule.warm_up]
        logged = np.array(rates)[known][steps[known] >= schedule.warm_up]
        np.testing.assert_allclose(schedule.rates[late], logged, atol=1e-12)


def test_two_million_steps() -> None:
    end = 2_000_000
    steps = np.arange(0, end // 2, 100)
    log = made(steps, 1e-3 * (1 + np.cos(np.pi * steps / end)) / 2, end)
    schedule = planned(log)
    assert schedule.rates[-1] < 1e-8


def cooled_down(length: int, tail: int = 1000, warmup: int = 300, final: float = 0.1) -> NDArray[np.float64]:
    """A cosine to a tenth of the peak, then a cool-down of a thousand steps, whatever the length."""
    t = np.arange(length + 1)
    fall = np.clip((t - warmup) / (length - tail - warmup), 0, 1)
    cosine = final + (1 - final) * (1 + np.cos(np.pi * fall)) / 2
    after = np.where(t < length - tail, cosine, final * (length - t) / tail)
    return 1e-3 * np.where(t < warmup, t / warmup, after)


def sibling(rates: NDArray[np.float64], name: str = "", every: int = 50, kind: str = "", **more: object) -> Run:
    steps = np.arange(0, len(rates), every)
    log = Run(name, steps, 3 + 1 / (1 + steps / 1000), rates[steps], last_step=len(rates) - 1, schedule=kind)
    return replace(log, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.3, 0.6])
@pytest.mark.parametrize(("peak", "length"), [(1, T), (3, T), (3, 9000)])
def test_what_follows_is_as_in_the_nearest_sibling_that_agrees_so_far(
    fraction: float, peak: float, length: int
) -> None:
    rates = peak * cooled_down(T)
    siblings = [sibling(cooled_down(length), f"{length}") for length in (6000, length, 25_000)]
    schedule = planned(seen(rates, fraction), siblings=siblings)
    assert apart(schedule, rates) < (0.001 if length == T else 0.01)
    assert schedule.peak == pytest.approx(peak * 1e-3, rel=0.01)
    assert schedule.rates[-1] == pytest.approx(0, abs=1e-9)
    assert schedule.origin == "siblings"
    assert schedule.remarks[0].startswith(f"learning rate goes on as that of {length}, ")
    assert ("stretched from 9,000 steps" in schedule.remarks[0]) == (length == 9000)
    assert "to 0% of its peak at step 10,000" in schedule.remarks[0]
    assert apart(planned(seen(rates, fraction)), rates) > 0.05


def test_a_sibling_of_another_length_is_stretched_between_warm_up_and_end() -> None:
    siblings = [sibling(cooled_down(length, length // 10, 600), f"{length}") for length in (5000, 8000)]
    rates = 3 * cooled_down(T, T // 10, 600)
    for fraction in (0.03, 0.2):  # at first the rate rises still: where its warm-up ends is known from the sibling
        schedule = planned(seen(rates, fraction), siblings=siblings)
        assert schedule.peak == pytest.approx(3e-3, rel=0.01)
        assert schedule.warm_up == pytest.approx(600, abs=2)
        assert apart(schedule, rates) < 0.03
        assert "8000, the nearest of 2 siblings that agree with it so far, stretched from 8,000" in schedule.remarks[0]


def test_siblings_that_disagree_so_far_show_nothing() -> None:
    rates = true_rates("cosine")
    siblings = [sibling(true_rates("linear"), "line"), sibling(true_rates("cosine", 0.1), "to a tenth")]
    strangers = [sibling(cooled_down(T), "stranger", family="other")]
    alone = planned(seen(rates, 0.4))
    assert (planned(seen(rates, 0.4), siblings=[*siblings, *strangers]).rates == alone.rates).all()


def test_where_siblings_go_on_in_different_ways_a_remark_says_so() -> None:
    flat, falls = sibling(true_rates("constant"), "flat", kind="constant"), sibling(true_rates("wsd"), "falls")
    mixed = planned(seen(true_rates("wsd"), 0.4), siblings=[flat, falls])
    assert mixed.remarks[0].endswith("; 1 of them go on differently: declare the schedule")
    named = planned(replace(seen(true_rates("wsd"), 0.4), schedule="WSD"), siblings=[flat, falls])
    assert (named.origin, named.rates[-1]) == ("siblings", 0)
    assert "as that of falls, a sibling that agrees with it so far, to 0%" in named.remarks[0]


def test_a_shape_that_siblings_only_confirm_needs_no_other_words() -> None:
    seen_last = seen(true_rates("wsd"), 0.95)
    assert planned(seen_last, siblings=[sibling(true_rates("wsd"))]).remarks == planned(seen_last).remarks


def test_the_user_comes_before_the_siblings() -> None:
    flat = true_rates("constant")
    siblings = [sibling(true_rates("wsd"), f"{i}") for i in range(3)]
    assert planned(seen(flat, 0.4), siblings=siblings).rates[-1] == 0
    assert (planned(seen(flat, 0.4), "constant", siblings=siblings).rates == 1e-3).all()


def test_the_length_and_a_rate_that_was_not_logged_are_those_of_siblings() -> None:
    rates = true_rates("wsd")
    siblings = [sibling(rates, f"{i}") for i in range(3)]
    schedule = planned(seen(rates, 0.4, last_step=None), siblings=siblings)
    assert apart(schedule, rates) < 0.01
    assert (
        schedule.remarks[0] == "the last step, 10,000, is taken from the siblings: give --steps if another is planned"
    )
    with pytest.raises(ToposcopeError, match="planned steps is unknown"):
        planned(seen(rates, 0.4, last_step=None), siblings=[*siblings, sibling(true_rates("wsd")[:5001], "shorter")])
    unlogged = replace(seen(rates, 0.4), learning_rate=np.full(81, NONE))
    schedule = planned(unlogged, siblings=siblings)
    assert float(np.abs(schedule.rates - Schedule(rates).rates / 1e-3).max()) < 0.01
    assert schedule.remarks[0].startswith("no learning rate was logged: over its peak it is taken to be that of")


@pytest.mark.parametrize("fraction", [0.2, 0.5])
@pytest.mark.parametrize(
    "fall",
    [
        lambda x, after: (1 + np.cos(np.pi * x)) / 2,  # multiplied by the warm-up: it falls from the first step
        lambda x, after: 0.1 + 0.45 * (1 + np.cos(np.pi * x)),
        lambda x, after: 1 - x,
        lambda x, after: (1 - after) ** 2,
        lambda x, after: 0.05 + 0.95 * (1 - after) ** 1.5,
        lambda x, after: (1 - after) ** 0.5,
    ],
)
def test_more_shapes(
    fall: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]], fraction: float
) -> None:
    t = np.arange(T + 1)
    rates = 1e-3 * np.minimum(1, t / 500) * fall(t / T, np.clip((t - 500) / (T - 500), 0, 1))
    schedule = planned(seen(rates, fraction))
    assert apart(schedule, rates) < 0.01
    assert "follows" in schedule.remarks[0]
