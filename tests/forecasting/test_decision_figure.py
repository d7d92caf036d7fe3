"""What a decision says, and its figure."""

import numpy as np
import polars as pl
import pytest

from toposcope.forecasting.decision.advice import Advice, decide
from toposcope.forecasting.decision.decision import RunInProgress, continue_or_scale, reasons
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import ScalingLaw
from toposcope.report.decision import brief
from toposcope.wording import short

LAW = ScalingLaw(E=1.8, A=400.0, B=2000.0, alpha=0.34, beta=0.36)


def points(n_sizes: int = 8) -> Points:
    draw = np.random.default_rng(0)
    N, D = (axis.ravel() for axis in np.meshgrid(np.geomspace(5e7, 2e9, n_sizes), np.geomspace(4e9, 1e11, 5)))
    return Points(N, D, LAW.loss(N, D) + draw.normal(0, 0.02, len(N)))


@pytest.fixture(scope="module")
def decided() -> Advice:
    return decide(points(), extra=1e20, parameters=1e8, tokens=1e10, resamples=30)


def test_a_plan_alone_has_no_decision() -> None:
    advice = decide(points(), budget=1e21, resamples=30)
    assert advice.decision is None
    assert "With 1e+21 FLOP train" in brief(advice)[0]
    assert advice.plot().title.startswith("With 1e21 FLOP the best model has")


def test_every_reason_is_one_line_with_its_number(decided: Advice) -> None:
    assert decided.decision is not None
    told = reasons(decided.decision)
    assert all("\n" not in sentence and sentence.endswith(".") for sentence in told)
    assert all(any(character.isdigit() for character in sentence) for sentence in told)
    assert len(told) == 8 + len(decided.decision.signals)


def test_break_evens_are_told_in_order() -> None:
    law = ScalingLaw(E=1.8172, A=477.8, B=2143.0, alpha=0.3473, beta=0.3672)

    def told(run: RunInProgress) -> str:
        return reasons(continue_or_scale(law, (law, law), run))[2]

    assert "times this budget): below continue, above start afresh; " in told(RunInProgress(1e8, 1e10, 1e22))
    assert "below continue, then by turns start afresh and continue" in told(RunInProgress(7e10, 1e9, 1e22))
    found = continue_or_scale(law, (law, law), RunInProgress(1e8, 1e10, 1e20))
    times = found.break_even[0] / 1e20
    assert f"({times:.2g} times this budget)" in reasons(found)[2]
    assert f"{abs(found.margin):.3f} nats between the two ways" in reasons(found)[2]
    tokens_alone = ScalingLaw(1.8, 1e-6, 2143.0, 0.3473, 0.05)
    found = continue_or_scale(tokens_alone, (tokens_alone, tokens_alone), RunInProgress(1e9, 1e10, 1e20))
    assert "no budget flips this: start afresh from" in reasons(found)[2]


def test_a_smaller_fresh_run_is_not_called_scaling() -> None:
    # A large model just begun: with so little to spend a small one does better.
    advice = decide(points(), extra=1e18, parameters=5e10, tokens=1e7, resamples=30)
    assert advice.decision is not None
    assert advice.decision.answer == "scale"
    assert reasons(advice.decision)[0].startswith("Start afresh, smaller")


@pytest.mark.parametrize(
    ("value", "text"), [(950, "950"), (1234, "1.23k"), (999_999, "1M"), (5.2e8, "520M"), (7e9, "7B"), (3.5e12, "3.5T")]
)
def test_counts_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_the_chart_of_a_decision_shows_the_budget_and_the_break_even(decided: Advice) -> None:
    assert decided.decision is not None
    chart = decided.plot()
    assert chart.title.startswith("Scale: a fresh run of")
    frames = [pl.DataFrame(each) for each in chart.spec()["datasets"].values()]
    (lines,) = (frame for frame in frames if "way" in frame.columns)
    assert (lines["low"] <= lines["high"]).all()
    at = lines.filter((pl.col("budget") / decided.decision.run.budget - 1).abs() < 1e-9)
    continued, scaled = decided.decision.continued.loss, decided.decision.scaled.loss
    assert dict(at.select("way", "loss").iter_rows()) == pytest.approx(
        {"continue the run": continued, "best fresh run": scaled}
    )
    (even,) = (frame for frame in frames if frame.columns == ["budget", "loss"])
    assert even["budget"].to_list() == pytest.approx(list(decided.decision.break_even))
