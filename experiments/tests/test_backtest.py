"""The backtest: what is left out, what may not leak, and how well the default does on published curves."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from made_up_runs import copied, made_up_family, made_up_run, seen
from polars.testing import assert_frame_equal

from toposcope.errors import ToposcopeError
from toposcope.forecasting import forecast
from toposcope.forecasting.forecaster import LoggedRun
from toposcope.forecasting.forecaster_set import DEFAULT
from toposcope.forecasting.forecasters import forecasters
from toposcope.forecasting.siblings import MIN_COMPLETE_SHARE, CompleteRuns, complete_runs
from toposcope.logs import read_logs
from toposcope.logs.schedules.schedule import Schedule
from toposcope_experiments.backtest.backtesting import SCHEMA, SPLITS, backtest, scores, siblings_in_split

CURVES = Path(__file__).parents[3] / "shared" / "data" / "loss-curves" / "curves.parquet"
NAMES = {forecaster.name for forecaster in forecasters()}


@cache
def runs() -> tuple[LoggedRun, ...]:
    return (
        *made_up_family(sizes=3, each=3),
        *made_up_family("wsd", 2, 2, family="other", noise=0.01),
        made_up_run("late", begin=900, family="other", size=3e9),
        made_up_run("unknown", size=np.nan, family="third"),
        made_up_run("unknown too", size=np.nan, family="third", noise=0.01),
    )


@pytest.mark.parametrize("split", SPLITS)
def test_what_is_left_out(split: str) -> None:
    for run in runs():
        left = siblings_in_split(run, runs(), split)  # type: ignore[arg-type]
        log = run.log
        for other in runs():
            same = (
                other.log.family == log.family
                and {
                    "size": other is run or other.log.parameters == log.parameters,
                    "group": other.log.schedule == log.schedule,
                    "family": True,
                }[split]
            )
            assert (other in left) != same


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_a_row_for_every_question(split: str) -> None:
    found = backtest(runs(), split=split, fractions=(0.2, 0.6), workers=1)  # type: ignore[arg-type]
    assert dict(found.schema) == SCHEMA
    for (name, fraction), part in found.group_by("run", "fraction"):
        if (name, fraction) == ("late", 0.2):
            assert set(part["refused"]) == {"nothing was logged in the first 20%"}
        assert set(part["forecaster"]) == {DEFAULT, *NAMES}
        told = part.filter(pl.col("predicted").is_not_null())
        assert (told["refused"] == "").all()
        assert ((told["low"] <= told["predicted"]) & (told["predicted"] <= told["high"])).all()
        refused = part.filter(pl.col("predicted").is_null())
        assert (refused["refused"] != "").all()
        assert refused["low"].is_null().all()
    finals = {run.log.name: run.log.final_loss()[0] for run in runs()}
    for row in found.iter_rows(named=True):
        assert row["final"] == pytest.approx(finals[row["run"]])


@pytest.mark.slow
def test_workers_change_nothing() -> None:
    few = runs()[::2]
    one = backtest(few, fractions=(0.2, 0.6), workers=1)
    assert_frame_equal(one, backtest(few, fractions=(0.2, 0.6), workers=2), check_exact=True)
    fresh = [copied(run) for run in few]
    assert_frame_equal(
        one, backtest(fresh, fractions=(0.6, 0.2), workers=1).sort("fraction", maintain_order=True), check_exact=True
    )


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    few = runs()[:4]
    backtest(few, fractions=(0.3, 0.5), workers=1, progress=lambda *now: told.append(now))
    assert told[0] == ("backtest", 0, 8)
    assert told[-1] == ("backtest", 8, 8)


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_the_end_of_a_run_that_is_left_out_is_not_seen(split: str) -> None:
    """Other ends of all runs that are left out with it change nothing of what is predicted, but what came true."""
    base = list(runs())
    run = base[-4] if split == "family" else base[0]
    kept = siblings_in_split(run, base, split)  # type: ignore[arg-type]
    changed = [
        copied(other, loss=np.where(other.log.steps > 0.2 * other.schedule.last_step, 9.0, other.log.loss))
        if other not in kept
        else other
        for other in base
    ]
    usual, other = (
        backtest(several, split=split, fractions=(0.2,), workers=1).filter(run=run.log.name)  # type: ignore[arg-type]
        for several in (base, changed)
    )
    assert usual["final"][0] != other["final"][0]
    names = ["forecaster", "predicted", "low", "high", "refused"]
    assert_frame_equal(usual.select(names), other.select(names), check_exact=True)


@pytest.mark.slow
def test_what_a_twin_alone_knows_is_not_predicted() -> None:
    """Runs of a size end alike, where nothing tells beforehand and no other size does."""
    rng = np.random.default_rng(1)
    several = []
    for i in range(12):
        surprise = rng.uniform(-0.2, 0.2)
        for j in range(2):
            run = made_up_run(f"{i} {j}", size=1e7 * 2**i, noise=0.001)
            late = run.log.steps > 0.6 * run.schedule.last_step
            several.append(copied(run, loss=run.log.loss * np.where(late, 1 + surprise, 1.0)))
    found = backtest(several, fractions=(0.3,), workers=1).filter(pl.col("predicted").is_not_null())
    error = found.with_columns(error=(pl.col("predicted") / pl.col("final") - 1).abs())
    best = error.group_by("forecaster").agg(pl.col("error").median())
    assert (best["error"] > 0.04).all()
    # and intervals know of the surprises, from the siblings' errors
    told = found.filter(forecaster=DEFAULT)
    assert (told["high"] / told["predicted"] > 1.04).all()


@pytest.mark.slow
def test_the_future_of_the_loss_and_of_the_learning_rate_are_not_seen() -> None:
    base = list(runs())
    run = base[4]
    late = run.log.steps > 0.3 * run.schedule.last_step
    rates = run.schedule.rates.copy()
    rates[int(0.3 * len(rates)) + 10 :] = 1e-5
    changed = replace(
        run.log,
        loss=np.where(late, 9.0, run.log.loss),
        learning_rate=np.where(late, 1e-5, run.log.learning_rate),
    )
    other = [*base[:4], LoggedRun(changed, Schedule(rates)), *base[5:]]
    names = ["forecaster", "predicted", "low", "high"]
    one, two = (backtest(several, fractions=(0.3,), workers=1).filter(run=run.log.name) for several in (base, other))
    assert_frame_equal(one.select(names), two.select(names), check_exact=True)


@pytest.mark.slow
def test_a_backtest_forecasts_as_the_command_does() -> None:
    base = list(runs())
    for run in (base[4], base[9]):
        found = backtest(base, fractions=(0.3,), workers=1).filter(run=run.log.name, forecaster=DEFAULT)
        now = replace(seen(run, 0.3), last_step=run.schedule.last_step)
        siblings = CompleteRuns(siblings_in_split(run, base, "size"), ())
        report = forecast(now, siblings=siblings)
        assert found["predicted"][0] == report.loss
        assert (found["low"][0], found["high"][0]) == report.interval


@pytest.mark.parametrize("fractions", [(0.0,), (1.0,), (0.2, 1.5), (-0.1,)])
def test_fractions_are_between_0_and_1(fractions: tuple[float, ...]) -> None:
    with pytest.raises(ToposcopeError, match="each must be between 0 and 1"):
        backtest(runs(), fractions=fractions, workers=1)


def test_one_run_is_no_backtest() -> None:
    with pytest.raises(ToposcopeError, match="at least two complete runs"):
        backtest(runs()[:1], workers=1)


def test_runs_that_did_not_end_are_left_out() -> None:
    whole = made_up_run("whole")
    cut, nearly = (seen(whole, MIN_COMPLETE_SHARE + more) for more in (-0.02, 0.02))
    logs = [
        whole.log,
        replace(cut, name="cut"),
        replace(nearly, name="nearly"),
        replace(whole.log, name="negative", learning_rate=-whole.log.learning_rate),
        replace(whole.log, name="again"),
    ]
    found = complete_runs(logs)
    assert [run.log.name for run in found.runs] == ["whole", "nearly"]
    assert found.runs[1].schedule.last_step == found.runs[1].log.steps[-1] == 1740
    assert found.remarks[0] == "cut: left out, its log ends at step 1,660 of 2,000"
    assert found.remarks[1].startswith("left out: negative: the learning rate is negative")
    assert found.remarks[2] == "again: left out, the same run as whole"


@pytest.fixture(scope="module")
def curves() -> tuple[LoggedRun, ...]:
    if not CURVES.is_file():
        pytest.skip("the published curves are not beside this repository")
    return complete_runs(read_logs(CURVES).logs).runs


def assert_as_good_as_said(found: pl.DataFrame, limits: dict[float, float], most: float = 0.97) -> None:
    told = scores(found.filter(forecaster=DEFAULT))
    for row in told.iter_rows(named=True):
        assert row["relative_median"] <= limits[row["fraction"]]
        assert 0.8 <= row["coverage"] <= most


@pytest.mark.slow
@pytest.mark.reference
def test_the_default_on_some_published_curves(curves: tuple[LoggedRun, ...]) -> None:
    """27 runs of Luo et al. 2025; too few for their coverage to tell much."""
    few = [run for run in curves if run.log.family == "mpl"]
    assert_as_good_as_said(backtest(few, fractions=(0.3,), workers=1), {0.3: 0.007}, most=1.0)


@pytest.mark.slow
@pytest.mark.reference
def test_the_default_on_half_of_all_published_curves(curves: tuple[LoggedRun, ...]) -> None:
    """Coefficients from other sizes and families only; `benchmarks/forecast.py` is of all curves."""
    assert len(curves) > 340
    families = dict.fromkeys(run.log.family for run in curves)
    half = [run for family in families for run in [run for run in curves if run.log.family == family][::2]]
    assert_as_good_as_said(backtest(half, fractions=(0.2, 0.3, 0.5), workers=1), {0.2: 0.007, 0.3: 0.0055, 0.5: 0.005})
