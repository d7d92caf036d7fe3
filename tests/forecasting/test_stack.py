import numpy as np
import pytest
from made_up_runs import Truth, copied, made_up_family, made_up_run, seen

from toposcope.forecasting.forecaster import Forecast, LoggedRun, RefusedError
from toposcope.forecasting.forecasters.cooldown_laws import COOLDOWN
from toposcope.forecasting.forecasters.sibling_template import Template
from toposcope.forecasting.forecasters.stack import STACKED_LAWS, Stack, stack_features
from toposcope.logs.schedules.schedule import Schedule


def fresh() -> list[LoggedRun]:
    return [copied(run) for run in made_up_family(kind="linear", sizes=5)]


def of_size(runs: list[LoggedRun], size: float) -> tuple[list[LoggedRun], list[LoggedRun]]:
    return [run for run in runs if run.log.parameters != size], [run for run in runs if run.log.parameters == size]


def test_it_corrects_what_siblings_err_on() -> None:
    """A gain of annealing of 0.5, where the law of the base knows no other than its prior."""
    runs = [
        made_up_run(
            f"{size:g} {end}", "linear", Truth(c=0.5 + 0.02 * i, L0=3 - 0.1 * i), size=size, end=end, noise=0.002
        )
        for i, size in enumerate((1e7, 3e7, 1e8, 3e8, 1e9))
        for end in (1000, 1500, 2000)
    ]
    siblings, left_out = of_size(runs, 1e9)
    for run in left_out:
        found = Stack().fit(seen(run, 0.3), run.schedule, siblings)
        alone = COOLDOWN.fit(seen(run, 0.3), run.schedule, siblings)
        assert abs(found.loss - run.final()) < 0.015 * run.final()
        assert abs(found.loss - run.final()) < abs(alone.loss - run.final()) + 0.01


def test_the_correction_is_that_of_the_base() -> None:
    siblings, left_out = of_size(fresh(), 1e7 * 4**4)
    run = left_out[0]
    log = seen(run, 0.3)
    found, base = Stack().fit(log, run.schedule, siblings), COOLDOWN.fit(log, run.schedule, siblings)
    assert found.loss == pytest.approx(base.loss * np.exp(found.diagnostics["correction"]))
    assert found.curve[0] == pytest.approx(base.curve[0])
    assert found.curve[-1] == pytest.approx(base.curve[-1] * np.exp(found.diagnostics["correction"]))
    assert set(base.remarks) <= set(found.remarks)


@pytest.mark.parametrize(
    ("sizes", "each", "refused"),
    [
        (7, 1, "^7 siblings of the family and 7 sizes .*; a stack needs 8 of 2$"),
        (1, 9, "^9 siblings of the family and 1 sizes"),
        (2, 4, None),
        (8, 1, None),
    ],
)
def test_few_siblings_are_refused(sizes: int, each: int, refused: str | None) -> None:
    siblings = [
        made_up_run(f"{i} {j}", noise=0.003, size=1e7 * 2**i, end=1000 + 100 * j)
        for i in range(sizes)
        for j in range(each)
    ]
    run = made_up_run("run", size=1e12)
    if refused:
        with pytest.raises(RefusedError, match=refused):
            Stack().fit(seen(run, 0.3), run.schedule, siblings)
    else:
        assert Stack().fit(seen(run, 0.3), run.schedule, siblings).loss == pytest.approx(run.final(), rel=0.05)


def test_other_families_and_units_are_no_siblings() -> None:
    siblings = fresh()
    run = made_up_run("run", "linear", size=1e12)
    for others in (
        [copied(each, family="others") for each in siblings],
        [copied(each, unit="bits") for each in siblings],
    ):
        with pytest.raises(RefusedError, match=r"^0 siblings of the family and 0 sizes"):
            Stack().fit(seen(run, 0.3), run.schedule, others)
        alone, beside = (
            Stack().fit(seen(run, 0.3), run.schedule, several) for several in (siblings, [*siblings, *others])
        )
        assert alone.loss == beside.loss


def told(run: LoggedRun, siblings: list[LoggedRun]) -> Forecast:
    return Stack().fit(seen(run, 0.3), run.schedule, siblings)


def test_the_unit_of_the_learning_rate_does_not_matter() -> None:
    siblings, left_out = of_size(fresh(), 1e7 * 4**4)
    run = left_out[-1]
    usual = told(run, siblings)
    # peaks of all runs in another unit
    faster = [LoggedRun(sibling.log, Schedule(50 * sibling.schedule.rates)) for sibling in siblings]
    assert told(LoggedRun(run.log, Schedule(50 * run.schedule.rates)), faster).loss == pytest.approx(
        usual.loss, rel=1e-6
    )


def test_a_size_that_is_not_known_tells_nothing() -> None:
    """Neither does it stand for the smallest of all sizes."""
    siblings, left_out = of_size(fresh(), 1e7 * 4**4)
    run = left_out[-1]
    unknown = copied(run, parameters=np.nan)
    known, guessed = told(run, siblings), told(unknown, siblings)
    assert guessed.loss == pytest.approx(known.loss, rel=0.01)
    assert guessed.diagnostics["siblings"] == known.diagnostics["siblings"]
    assert guessed.diagnostics["reach"] <= known.diagnostics["reach"] + 0.5
    half = [copied(sibling, parameters=np.nan) if i % 6 == 0 else sibling for i, sibling in enumerate(siblings)]
    assert told(run, half).diagnostics["siblings"] == sum(np.isfinite(sibling.log.parameters) for sibling in half)


def test_errors_of_a_sibling_do_not_see_its_size() -> None:
    """Other ends of the runs of one size change the errors of these by just that: they were not learnt from."""
    siblings, left_out = of_size(fresh(), 1e7 * 4**4)
    run, size = left_out[0], 1e7 * 4**2
    shifted = [
        copied(each, loss=np.where(each.log.steps > 0.9 * each.schedule.last_step, 1.01, 1) * each.log.loss)
        if each.log.parameters == size
        else each
        for each in siblings
    ]
    mine = np.array([each.log.parameters == size for each in siblings])
    base = [COOLDOWN.fit(seen(run, 0.3), run.schedule, several).errors for several in (siblings, shifted)]
    np.testing.assert_allclose((base[0] - base[1])[mine], np.log(1.01), atol=1e-9)
    # the other sizes' features for the stack borrow coefficients of this one, so that its errors move a little more
    one, two = told(run, siblings), told(run, shifted)
    assert (one.errors - two.errors)[mine] == pytest.approx(np.log(1.01), abs=0.03)


def test_further_features_are_used_and_needed() -> None:
    """A feature that tells the end beforehand is used; a run without is refused, a sibling without left out."""
    rng = np.random.default_rng(0)
    surprise = {}
    runs = []
    for i in range(6):
        for j in range(4):
            name = f"{i} {j}"
            surprise[name] = [rng.normal()]
            run = made_up_run(name, "linear", size=1e7 * 3**i, end=1000 + 100 * j, noise=0.001)
            late = run.log.steps > 0.5 * run.schedule.last_step
            runs.append(copied(run, loss=run.log.loss * np.exp(np.where(late, 0.02 * surprise[name][0], 0.0))))
    siblings, left_out = of_size(runs, 1e7 * 3**5)
    off = []
    for stack in (Stack(), Stack(surprise)):
        off.append(
            np.mean([abs(stack.fit(seen(run, 0.3), run.schedule, siblings).loss / run.final() - 1) for run in left_out])
        )
    assert off[1] < 0.5 * off[0]
    few = {name: values for name, values in surprise.items() if not name.endswith("1")}
    found = Stack(few).fit(seen(left_out[0], 0.3), left_out[0].schedule, siblings)
    assert found.diagnostics["siblings"] == 15
    with pytest.raises(RefusedError, match=r"^5 1: its further features are missing$"):
        Stack(few).fit(seen(left_out[1], 0.3), left_out[1].schedule, siblings)


def test_the_template_is_a_feature() -> None:
    """Where enough siblings follow the schedule; else it counts as the base."""
    siblings, left_out = of_size(fresh(), 1e7 * 4**4)
    run = left_out[0]
    log = seen(run, 0.3)
    base = COOLDOWN.fit(log, run.schedule, siblings).loss
    template = Template().fit(log, run.schedule, siblings).loss
    assert stack_features(log, run.schedule, siblings, base, True)[len(STACKED_LAWS)] == pytest.approx(
        np.log(template / base)
    )
    few = siblings[:2]
    assert stack_features(log, run.schedule, few, base, True)[len(STACKED_LAWS)] == 0
