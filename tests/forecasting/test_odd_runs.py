"""Runs that are no language model's first epoch: whether intervals hold, what is refused, and where a stage begins."""

import json
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import odd_runs
import pytest
from click.testing import CliRunner
from made_up_runs import made_up_run
from numpy.typing import NDArray

from toposcope.analysis.health.evaluations import evaluations as evaluations_of
from toposcope.cli import toposcope
from toposcope.forecasting.forecast_report import ForecastReport, forecast
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.forecasters.pool import own_record
from toposcope.forecasting.stages import Stage, Stairs, new_stage
from toposcope.logs import Run
from toposcope.logs.schedules.schedule import planned

Vector = NDArray[np.float64]
Kind = Callable[[np.random.Generator], Run]
FRACTIONS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.85)


class Outcome(NamedTuple):
    """Of a forecast: whether its interval holds the final loss, or why there is none."""

    holds: bool
    refused: str


def part(log: Run, fraction: float) -> Run:
    assert log.last_step is not None
    seen = log.until(fraction * log.last_step)
    assert seen is not None
    return replace(seen, finished=False)


def outcome(log: Run, fraction: float) -> Outcome:
    try:
        report = forecast(part(log, fraction))
    except RefusedError as error:
        return Outcome(False, str(error))
    if report.results is None:
        return Outcome(False, str(report.log.diverged))
    low, high = report.interval
    return Outcome(low <= log.final_loss()[0] <= high, "")


def outcomes(kinds: Sequence[Kind], fraction: float, n: int, seed: int) -> list[Outcome]:
    logs = [log for kind in kinds for log in odd_runs.logs(kind, n, seed) if len(log.steps) * fraction >= 2]
    return [outcome(log, fraction) for log in logs]


def share_held(found: Sequence[Outcome]) -> float:
    return float(np.mean([one.holds for one in found if not one.refused]))


def share_refused(found: Sequence[Outcome]) -> float:
    return float(np.mean([bool(one.refused) for one in found]))


@pytest.mark.parametrize("fraction", [0.2, 0.5])
def test_intervals_of_families_that_none_was_made_with_hold(fraction: float) -> None:
    """Their courses change after what was seen; before intervals were made for such runs, 53% and 58% held."""
    found = outcomes(odd_runs.HELD_OUT, fraction, 4, seed=2000)
    assert share_held(found) >= 0.75
    assert share_refused(found) <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "least"), [(odd_runs.HELD_OUT, 0.75), (odd_runs.LAWFUL, 0.6)])
@pytest.mark.parametrize("fraction", FRACTIONS)
def test_intervals_hold_at_every_fraction(kinds: Sequence[Kind], least: float, fraction: float) -> None:
    """Some of these families change their course after what was seen, which nothing before shows (docs/forecast.md)."""
    found = outcomes(kinds, fraction, 8, seed=3000)
    assert share_held(found) >= least
    assert share_refused(found) <= 0.3


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (odd_runs.returns, "'episode_return' was above "),
        (odd_runs.memorisation, "'val_loss' was above "),
        (odd_runs.adversarial, "'loss' rose and fell again "),
        (odd_runs.grokking, "'loss' stood still at about "),
    ],
)
def test_what_no_law_describes_is_refused_in_one_sentence(kind: Kind, words: str) -> None:
    refused = [one.refused for one in outcomes([kind], 0.85, 12, seed=1) if one.refused]
    assert len(refused) >= 8
    assert sum(words in reason for reason in refused) >= len(refused) / 2
    for reason in refused:
        assert "\n" not in reason
        assert (
            reason.endswith(("no law describes where it ends", "is not identifiable from this log"))
            or "diverged" in reason
        )


def test_real_shapes_are_not_refused() -> None:
    kinds = (odd_runs.language, odd_runs.small_language, odd_runs.averaged, odd_runs.restarts, odd_runs.distillation)
    for fraction in (0.3, 0.7):
        assert share_refused(outcomes(kinds, fraction, 3, seed=4)) == 0


def staged(jump: float, seed: int, at: float = 0.4, n: int = 200) -> Run:
    """A log whose loss jumps for good, at step 10 n at."""
    rng = np.random.default_rng(seed)
    steps = np.arange(10, 10 * n + 1, 10)
    loss = (2 + 3 * (steps / 10.0) ** -0.5) * np.exp(np.where(steps > 10 * n * at, jump, 0.0))
    return Run("staged", steps, loss * np.exp(0.01 * rng.normal(size=n)), np.full(n, 1e-3), 20 * n)


@pytest.mark.parametrize("jump", [-0.3, -0.12, 0.12, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_a_new_stage_is_found_where_it_begins(jump: float, seed: int) -> None:
    report = forecast(staged(jump, seed))
    assert report.results is not None
    stage = report.results.stage
    assert isinstance(stage, Stage)
    assert abs(stage.step - 810) <= 20
    assert stage.jump == pytest.approx(jump, abs=0.05)
    words = f"new stage since step {stage.step:,}"
    assert report.remarks[0].startswith(f"{words}: the loss {'rose' if jump > 0 else 'fell'} by ")
    assert report.to_dict()["new_stage"] == stage.step


def test_a_long_log_takes_memory_by_its_rows() -> None:
    """Copied, the windows that a new stage is looked for in would take 20 GB."""
    log = staged(0.3, 0, n=200_000)
    tracemalloc.start()
    try:
        stage = new_stage(log, planned(log))
        forecast(log.since(1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(stage, Stage)
    assert abs(stage.step - 800_010) <= 20
    assert peak < 2000 * len(log.steps)  # bytes


def test_a_forecast_after_a_new_stage_is_of_that_stage() -> None:
    errors = []
    for seed in range(4):
        whole = replace(staged(0.3, seed, at=0.2, n=400), last_step=4000)
        report = forecast(part(whole, 0.5))
        assert report.results is not None
        assert report.results.stage is not None
        errors.append(abs(np.log(report.loss / whole.final_loss()[0])))
    assert max(errors) < 0.05


@pytest.mark.parametrize(
    "kind", [odd_runs.language, odd_runs.small_language, odd_runs.averaged, odd_runs.rate_steps, odd_runs.overfitting]
)
def test_no_stage_without_a_jump_that_the_rate_leaves_unexplained(kind: Kind) -> None:
    found = 0
    for log in odd_runs.logs(kind, 15, seed=5):
        seen = part(log, 0.85)
        found += new_stage(seen, planned(seen)) is not None
    assert found <= 1


@pytest.mark.parametrize("first", [1, 2])
def test_epochs_are_no_stages(first: int) -> None:
    """Also where the first of them ends without a fall."""
    steps = np.arange(1, 751)
    for seed in range(4):
        noise = np.random.default_rng(seed).normal(size=750)
        loss = 2 * steps**-0.05 * 0.8 ** np.maximum((steps - 1) // 150 + 1 - first, 0) * np.exp(0.01 * noise)
        log = Run("epochs", steps, loss, np.full(750, 1e-4), 900)
        assert new_stage(log, planned(log)) == Stairs((151, 301, 451, 601)[first - 1 :], 150.0)


def test_the_command_says_the_stage_and_the_reason_of_a_refusal(tmp_path: Path) -> None:
    def told(log: Run, *more: str) -> tuple[int, str]:
        path = tmp_path / f"{log.name}.csv"
        rows = zip(log.steps, log.loss, log.learning_rate, strict=True)
        lines = [f"{step},{loss:.6f},{rate},{log.last_step}\n" for step, loss, rate in rows]
        path.write_text(f"step,{log.target},lr,max_steps\n" + "".join(lines))
        done = CliRunner().invoke(toposcope, ["forecast", str(path), *more])
        return done.exit_code, done.output

    log = staged(0.3, 0)
    code, output = told(log)
    assert code == 0
    assert "new stage since step 810: the loss rose by 34% there" in output
    code, output = told(log, "--json")
    assert (code, json.loads(output)["new_stage"]) == (0, 810)
    x = np.linspace(0, 1, 120)
    rising = 3 * (1 + (1 - np.exp(-20 * x))) * np.exp(0.02 * np.random.default_rng(0).normal(size=120))
    log = Run("memory", np.arange(10, 1201, 10), rising, np.full(120, 1e-3), 2400, target="val_loss")
    code, output = told(log)
    assert code == 2
    assert "'val_loss' was above " in output
    first, reason = output.splitlines()
    assert first.endswith(" Validation loss is 6.141 at step 1,200. Where it ends cannot be predicted.")
    assert reason.startswith("Error: memory: ")


def evaluations(n: int, rng: np.random.Generator, *, turns: bool) -> Vector:
    x = (np.arange(n) + 1) / n
    rise = rng.uniform(0.6, 1.2) * np.maximum(x - rng.uniform(0.2, 0.4), 0) if turns else 0
    return np.asarray((1 + 0.8 * np.exp(-rng.uniform(2, 6) * x) + rise) * np.exp(0.03 * rng.normal(size=n)))


def turned(losses: Vector) -> bool:
    found = evaluations_of(np.arange(len(losses)), losses)
    return found is not None and found.rise > 0


@pytest.mark.parametrize("n", [11, 20, 40])
def test_noise_of_few_evaluations_is_no_overfitting(n: int) -> None:
    """3% of noise was called a rise in a tenth to a third of runs that still fall."""
    rng = np.random.default_rng(n)
    falling = np.mean([turned(evaluations(n, rng, turns=False)) for _ in range(300)])
    turning = np.mean([turned(evaluations(n, rng, turns=True)) for _ in range(300)])
    assert falling <= 0.05
    assert turning >= 0.6


@pytest.mark.parametrize("n", [3, 5, 8, 12, 20, 40, 100])
@pytest.mark.parametrize("target", ["loss", "eval_loss"])
def test_a_loss_that_rose_below_its_first_value_is_said_to(n: int, target: str) -> None:
    level = np.interp(np.linspace(0, 1, n), [0, 0.5, 1], [10.9, 3.5, 7.4])
    loss = level * np.exp(0.02 * np.random.default_rng(n).normal(size=n))
    report = forecast(Run("r", 10 * np.arange(1, n + 1), loss, np.full(n, 1e-3), target=target), last_step=20 * n)
    assert any("has risen " in remark for remark in report.remarks)
    low, high = report.interval
    assert low <= 1.3 * loss.min()
    assert high >= 10.9


@pytest.mark.parametrize("n", [8, 12, 30, 120])
def test_noise_is_no_rise(n: int) -> None:
    said = 0
    for seed in range(20):
        steps = np.arange(10, 10 * n + 1, 10)
        noise = 0.25 * np.random.default_rng([n, seed]).normal(size=n)
        report = forecast(Run("r", steps, (1 + 2 * (steps / 10) ** -0.5) * np.exp(noise), np.full(n, 1e-3), 20 * n))
        said += any("has risen" in remark for remark in report.remarks)
    assert said <= 1


def test_the_own_record_is_of_forecasts_that_see_nothing_later() -> None:
    run = made_up_run(noise=0.01)
    log = part(run.log, 0.5)
    changed = log.loss.copy()
    changed[int(0.92 * len(changed)) : -10] *= 1.05
    one, two = (own_record(each, run.schedule) for each in (replace(log), replace(log, loss=changed)))
    for name, errors in one.errors.items():
        np.testing.assert_array_equal(errors, two.errors[name])
    assert (np.diff(one.horizons) < 0).all()
    exact = own_record(part(made_up_run(noise=0.0).log, 0.5), run.schedule)
    assert np.nanmax(np.abs(exact.errors["annealed"])) < 0.06


def epochs(fraction: float, drop: float, n_epochs: int = 3, seed: int = 0, *, stated: bool = True) -> Run:
    """A fine-tune of epochs of 300 steps, whose loss falls where each begins."""
    whole = 300 * n_epochs
    steps = np.arange(5, round(fraction * whole) + 1, 5)
    noise = 0.03 * np.random.default_rng(seed).normal(size=len(steps))
    loss = 2 * (1 + steps / 20) ** -0.1 * (1 - drop) ** ((steps - 1) // 300) * np.exp(noise)
    return Run(
        "tune", steps, loss, 1e-4 * (1 - steps / whole), whole, steps_per_epoch=300.0 if stated else np.nan
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fraction", "words"),
    [
        (0.2, "60% of the first of 3 epochs was seen"),
        (0.5, "it falls by stairs as epochs begin, at step 305; the model learns its data by heart"),
        (0.6, "it falls by stairs as epochs begin, at step 305; the model learns its data by heart"),
    ],
)
def test_a_training_loss_is_refused_beyond_the_present_epoch_where_data_are_learned_by_heart(
    fraction: float, words: str
) -> None:
    with pytest.raises(RefusedError, match=words):
        forecast(epochs(fraction, 0.3))
    validation = replace(epochs(fraction, 0.3), target="val_loss")
    assert forecast(validation).results is not None


def test_in_the_last_epoch_the_forecast_is_made_from_where_it_began() -> None:
    report = forecast(epochs(0.85, 0.3))
    assert report.results is not None
    assert report.results.stage == Stage(605, 0.0, is_epoch=True)
    assert report.remarks[0].startswith("last epoch since step 605: the loss falls by stairs as epochs begin")
    assert report.interval[0] <= epochs(1.0, 0.3).final_loss()[0] <= report.interval[1]


@pytest.mark.parametrize("seed", range(5))
def test_epochs_without_stairs_are_forecast(seed: int) -> None:
    for fraction in (0.45, 0.8):
        assert forecast(epochs(fraction, 0.0, 5, seed)).stage is None


def test_a_forecast_that_spans_three_decades_is_refused() -> None:
    steps = np.arange(10, 1001, 10)
    loss = np.maximum(5 * np.exp(-steps / 120.0), 1e-6) * np.exp(0.1 * np.random.default_rng(0).normal(size=100))
    with pytest.raises(RefusedError, match=r"a 90% interval would go from .* is not identifiable from this log"):
        forecast(Run("fast", steps, loss, np.full(100, 1e-3), 20000))


def test_the_same_report_again() -> None:
    def said(report: ForecastReport) -> str:
        return json.dumps(report.to_dict(), default=str)

    assert said(forecast(staged(0.3, 1))) == said(forecast(staged(0.3, 1)))
