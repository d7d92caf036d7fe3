"""The first line of a forecast, each kind of run its own; the curve begins where the loss is."""

import re

import numpy as np
import pytest

from toposcope.analysis.health import health
from toposcope.errors import ToposcopeError
from toposcope.forecasting import forecast
from toposcope.forecasting.headline import standing
from toposcope.logs import Run
from toposcope.logs.anomalies import Divergence

STEPS = np.arange(10, 1001, 10)
RNG = np.random.default_rng(0)
FALLING = (2 + 3 * (STEPS / 10) ** -0.5) * np.exp(0.002 * RNG.normal(size=len(STEPS)))
RISING = FALLING + np.where(STEPS > 500, (STEPS - 500) / 200, 0)


def log(loss: np.ndarray, target: str = "loss", last_step: int | None = 2000, **more: object) -> Run:
    return Run("run", STEPS, loss, np.full(len(STEPS), 1e-3), last_step, target=target, **more)  # type: ignore[arg-type]


def test_a_healthy_run() -> None:
    report = forecast(log(FALLING, "val_loss"))
    low, high = report.interval
    assert report.headline() == (
        f"Healthy. Validation loss ends at {report.loss:.{report.digits}f} (90%: {low:.{report.digits}f} to "
        f"{high:.{report.digits}f}) at step 2,000."
    )


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (log(FALLING, "bpb", unit="bits per byte"), r"^Healthy\. .*loss ends at [\d.]+ bits per byte \(90%: "),
        (log(RISING, "eval_loss"), "^Past its best: best validation loss .* above its level"),
        (log(RISING), r"^Loss (rises|stepped up): the (training )?loss r"),
        (log(np.full(len(STEPS), 2.0)), "^Stalled: the training loss no longer falls"),
        (log(np.where(STEPS == 500, 9.0, FALLING)), "^Healthy. Training"),
        (log(np.where(STEPS == 990, 9.0, FALLING)), "^Loss spiked: the loss rose from 2.3"),
        (log(FALLING, last_step=1000), r"^Finished\. The run is complete, at step 1,000: training loss ended"),
        (log(FALLING, diverged=Divergence(990, "the loss is NaN")), "^Diverged: at step 990.*no final loss.$"),
    ],
)  # fmt: skip
def test_each_kind_of_run_has_its_own(run: Run, words: str) -> None:
    assert re.search(words, forecast(run).headline()), forecast(run).headline()


def test_without_a_last_step_the_loss_is_where_it_is() -> None:
    run = log(FALLING, last_step=None)
    with pytest.raises(ToposcopeError, match="--steps"):
        forecast(run)
    now = f"{run.final_loss()[0]:.4g}"
    assert standing(run, health(run)) == (
        f"Healthy. Training loss is {now} at step 1,000. Where it ends cannot be predicted."
    )


@pytest.mark.parametrize("noise", [0.0, 0.03])
@pytest.mark.parametrize("misfit", [-0.1, 0.0, 0.1])
def test_the_curve_begins_at_the_present_level_and_ends_with_the_law(noise: float, misfit: float) -> None:
    """A bend that no law follows leaves a residual at the last step seen."""
    bend = misfit * np.maximum(STEPS - 900, 0) / 100
    run = log((2.5 + 2 * STEPS**-0.4 + bend) * np.exp(noise * np.random.default_rng(1).normal(size=len(STEPS))))
    report = forecast(run)
    assert report.results is not None
    for made in report.results.forecasts.values():
        assert made.curve[0] == pytest.approx(run.final_loss()[0])
        assert made.curve[-1] == pytest.approx(made.loss, rel=0.01)


@pytest.mark.parametrize("n", [1, 2, 15])
def test_a_few_losses_are_too_few_to_call_a_run_healthy(n: int) -> None:
    short = Run("run", STEPS[:n], FALLING[:n], np.full(n, 1e-3), 2000, target="loss")
    assert health(short).word == "Too early to say"
    assert f"{n} so far" in health(short).reason
