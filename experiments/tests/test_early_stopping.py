"""Early stopping: the rules against their definition, what they save and cost on runs whose truth is known."""

from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from named_features import by_feature

from toposcope.analysis.patience import out_of_patience
from toposcope.analysis.trajectory import Trajectory
from toposcope.forecasting.forecaster import Forecast, LoggedRun, RefusedError
from toposcope.forecasting.forecasters.baseline_laws import StepPowerLaw
from toposcope.logs import Run
from toposcope.logs.schedules.schedule import Schedule
from toposcope.study.kinds import feature_named
from toposcope_experiments.early_stopping.early_stopping import EarlyStopping, early_stopping, gain_by
from toposcope_experiments.early_stopping.stopping_rules import (
    BURN_INS,
    DELTAS,
    FRACTION,
    FRACTIONS,
    GAIN,
    LAST,
    LOSS,
    NEURAL_PERSISTENCE,
    PATIENCES,
    PRICES,
    at_fraction,
    below_price,
)
from toposcope_experiments.early_stopping.tried_rules import BETTER, NOT_SHOWN, WORSE

STEPS = np.arange(0, 5001, 100)
NP = feature_named("neural_persistence np_normalized")
VALUES = st.lists(st.sampled_from([np.nan, 0.0, 0.1, 0.2, 0.3, 0.305, 0.5]), max_size=25)


class Callback:
    """Rieck et al.'s algorithm as they wrote it: told one measurement at a time, it says when to stop."""

    def __init__(self, patience: int, burn_in: int, delta: float) -> None:
        self.patience, self.burn_in, self.delta = patience, burn_in, delta
        self.highest, self.counter, self.told = 0.0, 0, 0

    def stops(self, value: float) -> bool:
        self.told += 1
        if self.told <= self.burn_in:
            return False
        if value > self.highest + self.delta:
            self.highest = value
            self.counter = 0
        else:
            self.counter = self.counter + 1
        return self.counter >= self.patience


def by_callback(values: Sequence[float], patience: int, burn_in: int, delta: float) -> int | None:
    callback = Callback(patience, burn_in, delta)
    for place, value in enumerate(values):
        if np.isfinite(value) and callback.stops(value):
            return place
    return None


@given(VALUES, st.integers(1, 6), st.integers(0, 6), st.sampled_from(DELTAS), VALUES)
def test_patience_is_the_published_criterion_and_looks_at_nothing_later(
    values: list[float], patience: int, burn_in: int, delta: float, later: list[float]
) -> None:
    place = out_of_patience(np.array(values), patience, burn_in, delta, 0.0)
    assert place == by_callback(values, patience, burn_in, delta)
    if place is not None:
        assert out_of_patience(np.array(values[: place + 1] + later), patience, burn_in, delta, 0.0) == place


def test_a_price_is_of_what_is_left() -> None:
    gains = np.array([np.nan, 1.0, 0.3, 0.25, 0.0])
    shares = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    assert below_price(gains, shares, 0.7) == 2  # 0.3 nats for half of the compute
    assert below_price(gains, shares, 0.6) is None  # later it is 0.25 for a quarter; the end is no stop
    assert below_price(gains, shares, 10) == 1


def test_a_fraction_of_whole_steps_is_met_exactly() -> None:
    assert [at_fraction(STEPS.astype(np.float64), f) for f in (0.1, 0.3, 0.301, 0.7)] == [5, 15, 16, 35]


def run_of(name: str, loss: np.ndarray, persistence: np.ndarray | None = None, **targets: np.ndarray) -> Trajectory:
    steps = np.arange(len(loss)) * 100
    features = {} if persistence is None else {NP: persistence}
    return Trajectory(name, steps, features, {"validation_loss": loss, **targets}, {"step": steps.astype(float)})


def runs_frame(found: list[Trajectory], status: str = "complete") -> pl.DataFrame:
    rows = [(t.run, "family", 10, status, int(t.steps[-1]), len(t.steps)) for t in found]
    names = ["run", "kind", "n_parameters", "status", "last_step", "n_checkpoints"]
    return pl.DataFrame(rows, schema=names, orient="row")


def log_frame(found: list[Trajectory], flops: float | None = None) -> pl.DataFrame:
    rows = [(t.run, int(s), None if flops is None else flops * s) for t in found for s in t.steps]
    return pl.DataFrame(rows, schema={"run": pl.String, "step": pl.Int64, "flops": pl.Float64}, orient="row")


def judged(found: list[Trajectory], **options: object) -> EarlyStopping:
    return early_stopping(found, log_frame(found), runs_frame(found), **options)  # type: ignore[arg-type]


def plateaus(n: int = 15) -> list[Trajectory]:
    """Runs whose loss falls until a step of its own; neural persistence grows longest where it falls shortest."""
    places = np.arange(len(STEPS))
    ends = np.linspace(12, 40, n).round()
    return [
        run_of(f"run-{i}", 3 - 0.05 * np.minimum(places, end), 0.3 + 0.01 * np.minimum(places, ends[-1 - i]))
        for i, end in enumerate(ends)
    ]


def test_rules_are_told_apart_where_the_truth_is_known() -> None:
    found = judged(plateaus())
    rules = {row["rule"]: row for row in found.rules.to_dicts()}
    assert rules[LOSS]["verdict"] == BETTER
    assert rules[LOSS]["paid"] == pytest.approx(0)
    assert rules[LOSS]["paid_fixed"] > 0.05
    assert rules[NEURAL_PERSISTENCE]["verdict"] == WORSE
    assert rules[NEURAL_PERSISTENCE]["difference"] > 0
    assert rules[LOSS]["min_p"] == 2**-14
    loss, persistence = found.summary()[1], found.summary()[0]
    assert loss.endswith("it is better than a fixed fraction.")
    assert persistence.startswith("Patience on neural persistence")
    assert persistence.endswith("it is worse than a fixed fraction.")


def test_few_runs_show_nothing_and_the_summary_says_so() -> None:
    found = judged(plateaus(4))
    assert set(found.rules["verdict"]) == {NOT_SHOWN}
    assert all(sentence.endswith("which 4 runs cannot show.") for sentence in found.summary())
    assert found.rules["min_p"].to_list() == [1 / 8] * 2


def test_equal_runs_are_stopped_at_one_fraction_by_every_rule() -> None:
    loss = 2 + np.exp(-np.arange(51) / 10)
    rising = 0.2 + 0.3 * np.tanh(np.arange(51) / 12)
    twins = [run_of(name, loss, rising) for name in "abcdef"]
    found = judged(twins, gain=lambda run, step: 0.2)
    assert set(found.rules["rule"]) == {NEURAL_PERSISTENCE, LOSS, GAIN}
    assert (found.matched["difference"] == 0).all()
    assert (found.rules["p"] == 1).all()


def test_the_grid_is_whole_and_its_rows_agree() -> None:
    runs = plateaus()
    found = judged(runs, gain=lambda run, step: 0.1)
    n_patience = len(PATIENCES) * len(BURN_INS) * len(DELTAS)
    sizes = {NEURAL_PERSISTENCE: n_patience, LOSS: n_patience, GAIN: len(PRICES), FRACTION: len(FRACTIONS), LAST: 1}
    assert dict(found.matched.group_by("rule").len().iter_rows()) == sizes
    assert len(found.stops) == len(runs) * sum(sizes.values())
    assert found.notes == ()
    of_loss = {t.run: dict(zip(t.steps.tolist(), t.targets["validation_loss"].tolist(), strict=True)) for t in runs}
    for row in found.stops.iter_rows(named=True):
        loss = of_loss[row["run"]]
        assert row["loss"] == loss[row["step"]]
        assert row["paid"] == row["loss"] - loss[5000]
        assert row["paid_best"] == row["loss"] - min(loss.values())
        assert row["saved"] == pytest.approx(1 - row["step"] / 5000)
        assert row["stopped"] == (row["step"] < 5000)
    last = found.matched.filter(rule=LAST).row(0, named=True)
    assert (last["saved"], last["paid"], last["n_stopped"]) == (0, 0, 0)
    mine = found.matched.filter(rule=LOSS, patience=3, burn_in=2, delta=0.001).row(0, named=True)
    stops = found.stops.filter(rule=LOSS, patience=3, burn_in=2, delta=0.001)
    assert stops["step"].to_list()[0] == 1500  # the last fall is seen at step 1200
    assert mine["saved"] == pytest.approx(stops["saved"].mean())
    assert mine["difference"] == pytest.approx(mine["paid"] - mine["paid_fixed"])


def test_the_fixed_fraction_saves_as_much_and_is_read_off_each_run() -> None:
    # Two runs that fall linearly in log(1 + step): between checkpoints the loss is known exactly.
    runs = [run_of(name, 5 - slope * np.log1p(STEPS)) for name, slope in (("a", 0.1), ("b", 0.3))]
    gains = {("a", 1000): 0.0, ("b", 2500): 0.0}
    found = judged(runs, gain=lambda run, step: gains.get((run, step), 1.0))
    row = found.matched.filter(rule=GAIN, price=0.1).row(0, named=True)
    assert row["saved"] == pytest.approx(1 - (1000 + 2500) / 2 / 5000)
    paid_fixed = np.mean([slope * (np.log1p(5000) - np.log1p(1750)) for slope in (0.1, 0.3)])
    assert row["paid_fixed"] == pytest.approx(paid_fixed)


def test_p_values_are_adjusted_over_settings_and_over_rules() -> None:
    found = judged(plateaus(), gain=lambda run, step: 0.1)
    tested = found.matched.filter(~pl.col("rule").is_in((FRACTION, LAST)))
    for table in (tested, found.rules):
        p = np.sort(table["p"].to_numpy())
        holm = np.minimum(1, np.maximum.accumulate(p * np.arange(len(p), 0, -1)))
        assert np.sort(table["p_adjusted"].to_numpy()) == pytest.approx(holm)
    assert found.matched.filter(pl.col("rule").is_in((FRACTION, LAST)))["p"].is_nan().all()


class Predicted:
    """A forecaster that tells what it is given: a fall by 0.01 from 2, from 5 logged steps on."""

    name = "predicted"

    def __init__(self) -> None:
        self.seen: list[int] = []

    def fit(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> Forecast:
        assert schedule.last_step == 5000
        assert not siblings
        self.seen.append(int(log.steps[-1]))
        if len(log.steps) < 5:
            raise RefusedError("too few")
        return Forecast(self.name, 1.99, curve=np.array([2.0, 1.99]))


def test_forecasts_are_made_from_what_was_seen() -> None:
    loss = 2 + np.exp(-np.arange(51) / 10)
    forecaster = Predicted()
    no_schedule = Run("no schedule", STEPS, loss, np.full(51, -1.0))
    gain = gain_by(forecaster, [Run("a", STEPS, loss, np.full(51, 1e-3)), no_schedule])
    assert [gain("a", step) for step in (100, 300)] == [pytest.approx(np.nan, nan_ok=True)] * 2
    assert np.isnan(gain("b", 1000))
    assert np.isnan(gain("no schedule", 1000))
    assert gain("a", 1050) == pytest.approx(0.01)
    assert forecaster.seen == [100, 300, 1000]
    assert judged([run_of("a", loss)], gain=gain).stops.filter(rule=GAIN, price=0.02)["step"].to_list() == [400]


def test_a_forecaster_that_knows_the_law_stops_where_the_price_says() -> None:
    loss = 2 + 3 / (np.arange(51) * 100 + 1.0) ** 0.5
    gain = gain_by(StepPowerLaw(), [Run("a", STEPS, loss, np.full(51, np.nan))])  # no learning rate was logged
    stops = judged([run_of("a", loss)], gain=gain).stops.filter(rule=GAIN)
    for price in PRICES:
        truth = (loss[10:-1] - loss[-1]) / (1 - STEPS[10:-1] / 5000)
        expected = STEPS[10:-1][truth < price]
        stop = stops.filter(price=price)["step"][0]
        if len(expected) and expected[0] > 1000:  # late enough for a fit
            assert abs(stop - expected[0]) <= 100


def test_what_is_missing_is_left_out_and_told() -> None:
    loss = 3 - np.log1p(np.arange(51)) / 4
    without = run_of("without", loss)
    batches = Trajectory("batches", STEPS, {}, {"batch_loss": loss}, {})
    silent = Trajectory("silent", STEPS, {NP: loss}, {}, {})
    short = run_of("short", loss[:2])
    running = run_of("running", loss)
    found = [run_of("with", loss, loss / 10), without, batches, silent, short, running]
    runs = runs_frame(found).with_columns(
        status=pl.when(pl.col("run") == "running").then(pl.lit("running")).otherwise("status")
    )
    told = early_stopping(found, log_frame(found), runs)
    assert set(told.stops["run"]) == {"with", "without", "batches"}
    assert told.stops.filter(rule=NEURAL_PERSISTENCE)["run"].unique().to_list() == ["with"]
    notes = " ".join(told.notes)
    assert "Patience on neural persistence (Rieck et al.) is left out of without and batches" in notes
    assert "Forecast gain below a price is left out of all runs" in notes
    assert "silent is left out: it needs a loss" in notes
    assert "short is left out: it needs a loss at 3 checkpoints" in notes
    assert "running is left out: it did not end" in notes
    assert "Of batches only the loss of single batches is known" in notes
    nothing = early_stopping([silent], log_frame([silent]), runs_frame([silent]))
    assert not len(nothing.rules)
    assert nothing.summary()[0].startswith("No rule can be tried.")


def test_measurements_are_checkpoints_with_a_loss() -> None:
    loss = 3 - 0.05 * np.arange(51.0)
    loss[7] = np.nan
    persistence = np.linspace(0.2, 0.4, 51)
    persistence[7:] = 0.1  # lower from a checkpoint on that has no loss
    stops = judged([run_of("a", loss, persistence)]).stops
    assert stops.filter(rule=NEURAL_PERSISTENCE, patience=1, burn_in=0, delta=0.0)["step"].to_list() == [800]
    assert stops.filter(rule=LOSS)["stopped"].any() is False


def test_normalised_persistence_comes_before_the_mean_and_before_a_published_one() -> None:
    loss = 3 - np.log1p(np.arange(51)) / 4
    features = {f"{name}": np.ones(51) for name in ("published np_mean", "gradient_rips np_normalized")}
    of_weights = {
        "neural_persistence np_mean": np.ones(51),
        "neural_persistence:scale=network np_normalized": np.ones(51),
    }
    runs = [
        Trajectory(n, STEPS, by_feature(f), {"validation_loss": loss}, {})
        for n, f in (("a", features), ("b", features | of_weights))
    ]
    watched = judged(runs).stops.filter(rule=NEURAL_PERSISTENCE).select("run", "watched").unique().sort("run").rows()
    assert watched == [("a", "published np_mean"), ("b", "neural_persistence:scale=network np_normalized")]


def test_flops_are_logged_or_six_a_weight_and_token_or_unknown() -> None:
    loss = 3 - np.log1p(np.arange(51)) / 4
    plain = run_of("a", loss)
    half = {"rule": FRACTION, "fraction": 0.5}

    def saved(run: Trajectory, flops: float | None = None) -> float:
        found = early_stopping([run], log_frame([run], flops), runs_frame([run]))
        return float(found.stops.filter(**half)["saved_flops"][0])

    told = Trajectory("a", STEPS, {}, {"validation_loss": loss}, {}, tokens=np.asarray(STEPS * 64.0))
    assert saved(plain, 7.0) == pytest.approx(7.0 * 2500)
    assert saved(told) == pytest.approx(6 * 10 * 64 * 2500)
    assert np.isnan(saved(plain))
