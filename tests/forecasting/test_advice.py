"""What is assumed of a run in progress, and that all parts of an answer are of one law."""

import dataclasses

import numpy as np
import pytest

from toposcope.errors import ToposcopeError
from toposcope.forecasting.decision.advice import beyond_plan, cool_down_of, decide, run_of_log
from toposcope.forecasting.decision.calibration import calibration_of
from toposcope.forecasting.decision.decision import COOL_DOWN, RunInProgress
from toposcope.forecasting.scaling.planner import optimal_split, plan
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import ScalingLaw
from toposcope.logs import Run
from toposcope.report.decision import brief
from toposcope.wording import short

LAW = ScalingLaw(E=1.8, A=400.0, B=2000.0, alpha=0.34, beta=0.36)


def points(*, along: bool = False, family: str = "", per_byte: bool = False) -> Points:
    N, D = (axis.ravel() for axis in np.meshgrid(np.geomspace(5e7, 2e9, 8), np.geomspace(4e9, 1e11, 5)))
    run = np.array([f"{n:g}" for n in N]) if along else np.array([f"{n:g} {d:g}" for n, d in zip(N, D, strict=True)])
    loss = LAW.loss(N, D) * np.exp(np.random.default_rng(0).normal(0, 0.003, len(N)))
    remarks = ("losses are per byte",) if per_byte else ()
    return Points(N, D, loss, run, np.full(len(N), family), remarks)


def log(rates: float | list[float] = 1e-3, *, parameters: float = 1e8, family: str = "", unit: str = "nats") -> Run:
    steps = np.arange(1, 5) * 100
    rate = np.broadcast_to(np.asarray(rates, dtype=np.float64), 4).copy()
    return Run("now", steps, np.linspace(4, 3, 4), rate, None, parameters, 1e6, family, unit=unit)


def test_a_cool_down_is_budgeted_where_the_law_does_not_hold_it() -> None:
    assert cool_down_of(points())[0] == 0
    assert cool_down_of(points(along=True))[0] == COOL_DOWN
    assert cool_down_of(points(along=True), log())[0] == COOL_DOWN
    assert cool_down_of(points(along=True), log([0.0, 1e-3, 1e-3, 1e-3]))[0] == COOL_DOWN
    falling, why = cool_down_of(points(along=True), log([1e-3, 9e-4, 5e-4, 1e-4]))
    assert (falling, "falls already" in why) == (0, True)
    assert cool_down_of(points(), declared=0.3)[0] == 0.3


def test_where_the_run_stands() -> None:
    N0, D0, known = run_of_log(log(), points(), None, None)
    assert (N0, D0) == (1e8, 400e6)
    assert "whether it shares data" in known
    assert "whether it shares" not in run_of_log(log(family="pile"), points(family="pile"), None, None)[2]
    assert run_of_log(log(parameters=np.nan), points(), 2e8, 5e9)[:2] == (2e8, 5e9)


@pytest.mark.parametrize(
    ("run", "others", "told"),
    [
        (log(parameters=np.nan), points(), "give --parameters"),
        (log(family="pile"), points(family="c4"), "of family pile, the points of c4"),
        (log(unit="bits per byte"), points(), "cannot be compared"),
        (log(), points(per_byte=True), "cannot be compared"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(run: Run, others: Points, told: str) -> None:
    with pytest.raises(ToposcopeError, match=told):
        run_of_log(run, others, None, None)


def test_a_budget_beyond_the_plan_is_told() -> None:
    run = RunInProgress(1e8, 400e6, 6e17)  # to 1.4e9 tokens
    steady, falling = (dataclasses.replace(log(rates), last_step=1000) for rates in (1e-3, [1e-3, 9e-4, 5e-4, 1e-4]))
    assert (
        "planned to 1B tokens, the budget takes it to 1.4B: its schedule has to be stretched"
        in beyond_plan(steady, run)[0]
    )
    assert "raise it again is not in the law" in beyond_plan(falling, run)[0]
    assert beyond_plan(dataclasses.replace(steady, last_step=1500), run) == ()
    assert beyond_plan(log(), run) == ()


def test_every_part_is_of_the_fitted_law() -> None:
    found = decide(points(), extra=1e20, parameters=1e8, tokens=1e10, resamples=30)
    assert found.plan.N == plan(found.fitted, 1e20).N
    assert "each point is the end of a run" in found.notes[0]
    assert found.decision is not None
    assert found.calibration == calibration_of(found.fitted)
    scatter = f"{found.calibration.scatter:.3f} nats, as the residuals of 40 runs show"
    assert f"single runs scatter about the law by {scatter}; probabilities allow for it" in found.notes
    assert found.decision.scaled.loss == pytest.approx(found.plan.loss.value)


def isoflop_points(a: float) -> Points:
    """Runs at five budgets whose best size grows as C^a: parabolas in ln N, which is not the form of the law."""
    budgets, steps = np.geomspace(1e18, 1e21, 5), np.linspace(-1.2, 1.2, 7)
    C, off = (axis.ravel() for axis in np.meshgrid(budgets, steps))
    N = 0.1 * C**a / 1e18 ** (a - 0.5) * np.exp(off)
    loss = 1.7 + 2.5 * (C / 1e18) ** -0.15 + 0.12 * off**2 + 0.05 * off**3
    return Points(N, C / (6 * N), loss)


def test_an_answer_warns_where_law_and_parabolas_part() -> None:
    found = decide(isoflop_points(0.35), budget=1e27, resamples=20)
    law, *others = found.frontiers
    sizes = {each.approach: each.optimal_parameters(1e27) for each in others}
    assert abs(np.log(sizes["parabolas"] / found.plan.N.value)) > np.log(1.5)
    (warning,) = found.warnings
    assert warning.startswith("Law and parabolas part: ")
    assert "\n" not in warning
    assert f"N* ~ C^{law.a.value:.2f}" in warning


def test_there_is_no_warning_where_they_agree() -> None:
    N, C = (axis.ravel() for axis in np.meshgrid(np.geomspace(0.2, 5, 7), np.geomspace(1e19, 1e22, 5)))
    N = N * np.array([optimal_split(LAW, float(c))[0] for c in C])
    D = C / (6 * N)
    found = decide(Points(N, D, LAW.loss(N, D)), budget=1e22, resamples=20)
    assert [each.approach for each in found.frontiers] == ["law", "parabolas"]
    assert found.warnings == ()


def test_the_best_size_is_printed_with_its_interval() -> None:
    found = decide(points(), budget=1e21, resamples=30)
    N = found.plan.N
    assert f"train {short(N.value)} (95%: {short(N.low)} to {short(N.high)}) parameters on " in brief(found)[0]
