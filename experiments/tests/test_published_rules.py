"""The published rules beside our default on a small study, and what that study tells of the gain of topology."""

import numpy as np
import polars as pl
import pytest
from small_family import small_family

from toposcope.analysis.trajectory import trajectories
from toposcope.forecasting.forecaster import LoggedRun
from toposcope.forecasting.forecaster_set import run_forecasters
from toposcope.forecasting.held_out import known_schedule
from toposcope.forecasting.siblings import complete_runs
from toposcope.logs import read_logs
from toposcope.study import Study
from toposcope_experiments.published_study.backtest_section import published_rules
from toposcope_experiments.published_study.predictions import predictions
from toposcope_experiments.topology_gain.gain import topology_gain


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study.load(small_family(tmp_path_factory.mktemp("rules"), "neural_persistence", "controls", steps=60))


@pytest.mark.slow
def test_rules_and_default_are_of_the_same_runs(study: Study) -> None:
    found = published_rules(study)
    expected = predictions(trajectories(study.frame(), study.labels(), study.log()), study.log(), study.runs())
    assert set(found["protocol"]) == {"published", "exact"}
    assert set(found["fraction"]) == {0.2, 0.3, 0.5}
    assert set(found["n"]) == {3}
    for (protocol, fraction, name), part in expected.group_by("protocol", "fraction", "forecaster"):
        row = found.row(by_predicate=_is(str(protocol), fraction, str(name)), named=True)
        assert row["mae"] == pytest.approx(part["error"].to_numpy().mean())
        assert row["worst"] == part["error"].max()


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "columns"), [("published", {"loss": "loss"}), ("exact", None)])
def test_the_default_is_that_of_the_line_up(study: Study, protocol: str, columns: dict[str, str] | None) -> None:
    """Of other sizes all is known, and the target is that of the protocol: the last batch, or the validation loss."""
    runs = complete_runs(read_logs(study.directory, columns=columns).logs).runs
    logged = study.log().drop_nulls("validation_loss") if protocol == "exact" else study.log()
    ends = dict(logged.filter(step=60).select("run", "validation_loss" if protocol == "exact" else "loss").iter_rows())
    errors = [abs(_default(run, runs) - ends[run.log.name]) for run in runs]
    row = published_rules(study).row(by_predicate=_is(protocol, 0.5, "default"), named=True)
    assert row["mae"] == pytest.approx(np.mean(errors))


def _default(run: LoggedRun, runs: tuple[LoggedRun, ...]) -> float:
    seen = run.seen(0.5)
    assert seen is not None
    siblings = [other for other in runs if other is not run]
    schedule = known_schedule(run, seen, siblings)
    return run_forecasters(seen, schedule, siblings).forecasts["default"].loss


def _is(protocol: str, fraction: object, name: str) -> pl.Expr:
    return (pl.col("protocol") == protocol) & (pl.col("fraction") == fraction) & (pl.col("forecaster") == name)


@pytest.mark.slow
def test_three_runs_tell_nothing_of_topology(study: Study) -> None:
    found = topology_gain(study, workers=1)
    assert (
        found.verdict()
        == "Whether topology says more about the final loss than the laws and the norms cannot be told: "
        "only 3 groups to hold out; 15 are needed."
    )
    assert len(found.notes) > 0
    assert found.errors.is_empty()
