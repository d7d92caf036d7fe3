"""The decision: against brute force, at its limits, and what is printed beside it."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from scipy.optimize import minimize_scalar

from toposcope.errors import ToposcopeError
from toposcope.forecasting.decision.calibration import Calibration
from toposcope.forecasting.decision.decision import (
    RunInProgress,
    break_even,
    continue_or_scale,
    continued,
    scaled,
    signals,
)
from toposcope.forecasting.scaling.scaling_law import ScalingLaw

LAW = ScalingLaw(E=1.8172, A=477.8, B=2143.0, alpha=0.3473, beta=0.3672)
laws = st.builds(
    ScalingLaw,
    E=st.floats(0, 3),
    A=st.floats(10, 1e4),
    B=st.floats(10, 1e5),
    alpha=st.floats(0.15, 0.8),
    beta=st.floats(0.15, 0.8),
)
runs = st.builds(
    RunInProgress,
    parameters=st.floats(1e6, 1e10),
    tokens=st.floats(1e8, 1e12),
    budget=st.floats(1e17, 1e23),
    cool_down=st.sampled_from([0.0, 0.2, 0.5]),
)


def brute_force(law: ScalingLaw, run: RunInProgress) -> float:
    """The least loss of a fresh run, by search over its size."""

    def loss(log_n: float) -> float:
        tokens = run.budget / (6 * np.exp(log_n)) * (1 - run.cool_down / 2)
        return float(law.E + law.A * np.exp(log_n) ** -law.alpha + law.B * tokens**-law.beta)

    grid = np.linspace(-30, 90, 2000)
    start = grid[int(np.argmin([loss(x) for x in grid]))]
    found = minimize_scalar(loss, bracket=(start - 0.1, start, start + 0.1), tol=1e-12)
    return float(found.fun)


@examples(25)
@given(laws, runs)
def test_the_best_fresh_run_is_that_of_a_search(law: ScalingLaw, run: RunInProgress) -> None:
    arm = scaled(law, run)
    assert arm.loss == pytest.approx(brute_force(law, run), rel=1e-9)
    assert 6 * arm.parameters * arm.tokens == pytest.approx(run.budget)


@examples(50)
@given(laws, runs)
def test_marginals_are_derivatives(law: ScalingLaw, run: RunInProgress) -> None:
    h = 1e-4 * run.budget
    more, less = (RunInProgress(run.parameters, run.tokens, run.budget + d, run.cool_down) for d in (h, -h))
    for arm in (continued, scaled):
        slope = (arm(law, less).loss - arm(law, more).loss) / (2 * h)
        # Where the cool-down begins to fit into the budget the loss has a kink.
        kink = abs(run.cool_down * run.tokens_if_continued / (run.tokens_if_continued - run.tokens) - 1) < 1e-2
        noise = 1e-13 * float(law.loss(run.parameters, run.tokens)) / h
        if not kink:
            assert arm(law, run).marginal == pytest.approx(slope, rel=1e-3, abs=noise)


@examples(50)
@given(laws, runs)
def test_with_nothing_to_spend_it_continues_and_with_all_it_scales(law: ScalingLaw, run: RunInProgress) -> None:
    little = RunInProgress(run.parameters, run.tokens, 1e-40 * run.spent, run.cool_down)
    much = RunInProgress(run.parameters, run.tokens, 1e100 * run.spent, run.cool_down)
    assert continued(law, little).loss < scaled(law, little).loss
    gain = continued(law, much).loss - scaled(law, much).loss
    assert gain == pytest.approx(law.A * run.parameters**-law.alpha, rel=1e-3)


@examples(50)
@given(laws, runs)
def test_the_answer_flips_at_each_break_even_and_nowhere_else(law: ScalingLaw, run: RunInProgress) -> None:
    def answers(budgets: list[float]) -> list[str]:
        found = [RunInProgress(run.parameters, run.tokens, b, run.cool_down) for b in budgets]
        return ["scale" if continued(law, r).loss > scaled(law, r).loss else "continue" for r in found]

    flips = break_even(law, run)
    edges = [1e-6 * run.spent, *flips, 1e9 * run.spent]
    between = [float(np.sqrt(a * b)) for a, b in itertools.pairwise(edges)]
    found = answers(between)
    assert all(a != b for a, b in itertools.pairwise(found))
    for flip in flips:
        at = RunInProgress(run.parameters, run.tokens, flip, run.cool_down)
        assert continued(law, at).loss == pytest.approx(scaled(law, at).loss, abs=1e-8)


def test_a_large_run_just_begun_has_three_break_evens() -> None:
    run = RunInProgress(70e9, 1e9, 1e22)
    assert len(break_even(LAW, run)) == 3


def test_no_break_even_within_the_search_is_said_by_none() -> None:
    # Parameters bring so little that a tiny model with all the more tokens wins at any budget looked at.
    assert break_even(ScalingLaw(1.8, 1e-6, 2143.0, 0.3473, 0.05), RunInProgress(1e9, 1e10, 1e20)) == ()


def test_what_stands_beside_the_decision() -> None:
    run = RunInProgress(1e9, 10e9, 6e19)
    decision = continue_or_scale(LAW, (LAW, LAW), run)
    assert decision.score == pytest.approx(
        np.log(LAW.alpha * LAW.A * 1e9**-LAW.alpha) - np.log(LAW.beta * LAW.B * 1e10**-LAW.beta)
    )
    assert decision.floor == pytest.approx(1.8172 + 477.8 * 1e9**-0.3473)
    assert decision.rule_of_20 == "continue"
    assert continue_or_scale(LAW, (LAW, LAW), RunInProgress(1e9, 21e9, 6e19)).rule_of_20 == "scale"
    assert decision.low <= decision.margin <= decision.high
    assert run.tokens_if_continued == 20e9


def test_signals_come_where_they_are_defined() -> None:
    run = RunInProgress(1e9, 10e9, 1e22)
    by_name = {signal.name: signal for signal in signals(LAW, run)}
    assert float(LAW.score(1e9, by_name["score"].tokens)) == pytest.approx(0, abs=1e-9)
    assert by_name["tokens per parameter"].tokens == 20e9
    at = by_name["marginal price"].tokens
    price = scaled(LAW, RunInProgress(1e9, 10e9, run.spent + run.budget)).marginal
    there = RunInProgress(1e9, at - 1e6, 6e15)
    assert continued(LAW, there).marginal == pytest.approx(price, rel=1e-6)
    for signal in by_name.values():
        assert signal.saved == pytest.approx(1 - signal.tokens / run.tokens_if_continued)
        paid = LAW.loss(1e9, signal.tokens) - LAW.loss(1e9, run.tokens_if_continued)
        assert signal.loss_paid == pytest.approx(float(paid))


def test_a_signal_after_the_end_saves_nothing() -> None:
    later = signals(LAW, RunInProgress(1e9, 1e9, 6e18))
    assert [(s.saved, s.loss_paid) for s in later if s.tokens > 2e9] == [(0.0, 0.0)] * 3


def test_a_cool_down_counts_half_of_its_tokens_on_both_arms() -> None:
    run = RunInProgress(1e9, 10e9, 6e19, cool_down=0.2)
    # 20e9 tokens, the last 4e9 of them cooling.
    assert continued(LAW, run).loss == pytest.approx(float(LAW.loss(1e9, 18e9)))
    fresh = scaled(LAW, run)
    assert fresh.loss == pytest.approx(float(LAW.loss(fresh.parameters, 0.9 * fresh.tokens)))
    # 1e9 tokens are left, too few for a fifth of 11e9: all of them cool.
    short = RunInProgress(1e9, 10e9, 6e18, cool_down=0.2)
    assert continued(LAW, short).loss == pytest.approx(float(LAW.loss(1e9, 10.5e9)))


def test_between_20_and_80_percent_it_is_undecided() -> None:
    run = RunInProgress(1e9, 20e9, break_even(LAW, RunInProgress(1e9, 20e9, 1e20))[0])
    decision = continue_or_scale(LAW, (LAW, LAW), run, Calibration(0.05))
    assert decision.probability == pytest.approx(0.5, abs=1e-6)
    assert decision.answer == "undecided"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((0, 1e9, 1e20), "parameters"),
        ((1e9, -1, 1e20), "tokens"),
        ((1e9, 1e9, float("nan")), "budget"),
        ((1e9, 1e9, 1e20, 1.0), "cool-down"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(arguments: tuple[float, ...], told: str) -> None:
    with pytest.raises(ToposcopeError, match=told):
        RunInProgress(*arguments)


def test_one_law_cannot_say_how_sure_it_is() -> None:
    with pytest.raises(ToposcopeError, match="most resamples of the runs determine no law"):
        continue_or_scale(LAW, (LAW,), RunInProgress(1e9, 1e9, 1e20))


def test_where_parameters_bring_nothing_there_is_nothing_to_decide() -> None:
    flat = ScalingLaw(1.8, 0.0, 2143.0, 0.3473, 0.3672)
    with pytest.raises(ToposcopeError, match="more parameters bring nothing"):
        continue_or_scale(flat, (LAW, LAW), RunInProgress(1e9, 1e9, 1e20))
    # A resample of which that is true says nothing.
    run = RunInProgress(1e9, 1e9, 1e20)
    assert continue_or_scale(LAW, (flat, LAW, LAW), run).share == continue_or_scale(LAW, (LAW, LAW), run).share
