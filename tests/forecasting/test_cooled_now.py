"""Cooling down now as the third way to spend a budget."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.forecasting.cooldown import MEAN_RATES, CoolDown, Decay, Merged
from toposcope.forecasting.decision.advice import decide
from toposcope.forecasting.decision.cooled_now import affordable
from toposcope.forecasting.decision.decision import RunInProgress, continue_or_scale, reasons, with_cool_down
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import ScalingLaw
from toposcope.logs import Run
from toposcope.report.decision import brief, brief_table

LAW = ScalingLaw(E=1.8, A=400.0, B=2000.0, alpha=0.34, beta=0.36)


def cool_down(length: int, decay: Decay = "linear", half_width: float = 0.02, step: int = 1000) -> CoolDown:
    merged = Merged((step - length, step), 2.9, (0.5, 0.5))
    return CoolDown(step, length, decay, 2.9, 2.9 - half_width, 2.9 + half_width, 2.98, 3.0, 0.06, merged)


THREE = tuple(cool_down(length) for length in (50, 100, 200))


@examples(40)
@given(
    st.floats(1e7, 1e9), st.floats(1e9, 1e11), st.floats(0.06, 3.0), st.sampled_from([0.0, 0.2]),
    st.sampled_from(sorted(MEAN_RATES)),
)  # fmt: skip
def test_it_takes_what_the_budget_pays_for_and_the_law_counts_its_tokens(
    N: float, D: float, more: float, share: float, decay: Decay
) -> None:
    run = RunInProgress(N, D, 6 * N * D * more, share)
    plain = continue_or_scale(LAW, (LAW, LAW), run)
    found = with_cool_down(plain, LAW, [replace(each, decay=decay) for each in THREE])
    cooled = found.cooled
    assert cooled is not None
    length = max(each.length for each in THREE if each.length / 1000 <= more * (1 + 1e-9))
    assert cooled.measured.length == length
    tokens = D * length / 1000
    assert cooled.tokens == pytest.approx(D + tokens)
    assert cooled.share == pytest.approx(length / 1000 / more)
    assert cooled.loss == pytest.approx(float(LAW.loss(N, D + tokens * (MEAN_RATES[decay] if share else 1))))
    assert cooled.rest == pytest.approx(max(cooled.loss - plain.continued.loss, 0))
    assert cooled.fresh >= plain.scaled.loss - 1e-9
    assert (found.answer == "cool down") == (plain.answer != "scale" and cooled.rest <= 0.02)
    assert replace(found, answer=plain.answer, cooled=None) == plain


def test_a_budget_that_pays_for_none_is_refused_in_words() -> None:
    with pytest.raises(ToposcopeError, match="the shortest that was measured, 50 steps, takes 500M tokens"):
        affordable(THREE, 1e10, 4e8)
    assert affordable(THREE, 1e10, 1e9)[0].length == 100


def points(*, along: bool = True) -> Points:
    N, D = (axis.ravel() for axis in np.meshgrid(np.geomspace(5e7, 2e9, 8), np.geomspace(4e9, 1e11, 5)))
    run = [f"{n:g}" if along else f"{n:g} {d:g}" for n, d in zip(N, D, strict=True)]
    loss = LAW.loss(N, D) * np.exp(np.random.default_rng(0).normal(0, 0.003, len(N)))
    return Points(N, D, loss, np.array(run), np.full(len(N), ""), ())


def log(rates: float | list[float] = 1e-3) -> Run:
    steps = np.arange(250, 1001, 250)
    return Run("now", steps, np.linspace(4, 3, 4), np.broadcast_to(rates, 4).astype(float), None, 1e8, 1e7)


def test_the_answer_names_the_third_way_and_its_price() -> None:
    new = 0.3 * 6e8 * 1e10
    advice = decide(points(), extra=new, log=log(), measured=THREE, resamples=30)
    assert advice.decision is not None
    assert advice.decision.answer == "cool down"
    first, second, flip, third, fourth = brief(advice)
    assert first.startswith("Cool down now: what the rest of the budget would bring the run, 0.0")
    assert second.startswith("With 1.8e+18 FLOP more the run ends at")
    assert flip.startswith("By the law the answer flips at 1.31e+19 FLOP")
    assert third.startswith(
        "Cooled down from now on over 200 steps, 67% of the budget, the run would end at 2.900 nats (2.88"
    )
    assert "0.080 below going on at the rate of now for as many steps" in third
    assert fourth.startswith("The other 33% of the budget would bring the run 0.0")
    assert [row[0] for row in brief_table(advice)[1]] == ["continue the run", "best fresh run", "cool down now"]
    assert set(brief(advice)) < set(reasons(advice.decision))


def test_a_fresh_run_that_wins_is_still_the_answer_and_a_long_way_to_go_is_continued() -> None:
    for extra, answer in ((6e21, "scale"), (6e18, "continue")):
        measured = [replace(each, low=2.899, high=2.901) for each in THREE]
        found = decide(points(), extra=extra, log=log(), measured=measured, resamples=30).decision
        without = decide(points(), extra=extra, log=log(), resamples=30).decision
        assert found is not None
        assert without is not None
        assert found.answer == without.answer == answer
        assert replace(found, cooled=None) == without


@pytest.mark.parametrize(
    ("run", "measured", "extra", "told"),
    [
        (log([1e-3, 1e-3, 9e-4, 5e-4]), THREE, 6e18, "the learning rate of the run falls already"),
        (log(), [replace(each, step=700) for each in THREE], 6e18, "it was measured at step 700, and the log ends at"),
        (
            log(),
            THREE,
            6e16,
            "the shortest that was measured, 50 steps, takes 500M tokens, and the budget pays for 100M",
        ),
    ],
)
def test_what_is_not_of_the_run_now_is_not_weighed_and_a_note_says_so(
    run: Run, measured: list[CoolDown], extra: float, told: str
) -> None:
    advice = decide(points(), extra=extra, log=run, measured=measured, resamples=30)
    assert advice.decision is not None
    assert advice.decision.cooled is None
    assert any(note.startswith("the measured cool-down is not weighed: ") and told in note for note in advice.notes)


def test_it_belongs_to_a_run_in_progress() -> None:
    with pytest.raises(ToposcopeError, match="measured: it belongs to a run in progress"):
        decide(points(), budget=1e21, measured=THREE)
