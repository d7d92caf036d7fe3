"""Which runs of a sweep can stop: the rule against closed forms, the traps of such rules, and runs as logged."""

import csv
import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest
from commands import called, complaint_of, strict_json
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import linregress

from toposcope.errors import ToposcopeError
from toposcope.forecasting.sweeps.measured import MEASURED
from toposcope.forecasting.sweeps.rule import COEFFICIENT, RULES, StoppingRule, decay_coefficient, loss_at
from toposcope.forecasting.sweeps.sweep import SweepRun, configuration_of, judge, saved, stops
from toposcope.programs.check import NO_CHARTS
from toposcope.programs.sweep import SCHEMA, Sweep, sweep
from toposcope.report.live.feed import Feed
from toposcope.report.live.logs import LogScan

DOCS = Path(__file__).parents[2] / "docs"
LOSSES = st.floats(0.1, 10)
LOW, PLAIN = RULES["low"], StoppingRule(4, (0.1, 0.4), corrected=False)


def run_of(name: str, losses: dict[float, float], *, left: float = 0.0, **options: object) -> SweepRun:
    known: dict[str, object] = {
        "configuration": name, "step": round(1000 * max(losses, default=0)), "last_step": 1000, "warm_up": 0,
        "losses": losses, "decay_left": dict.fromkeys(losses, left), **options,
    }  # fmt: skip
    return SweepRun(name, **known)  # type: ignore[arg-type]


def stopping(runs: Sequence[SweepRun], rule: StoppingRule = LOW) -> set[str]:
    return {each.name for each in judge(runs, rule) if each.stop}


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.sampled_from([2, 3, 4]))
def test_the_cutoff_is_the_linear_quantile(values: list[float], eta: int) -> None:
    rule = StoppingRule(eta, (), corrected=False)
    assert rule.cutoff(values) == pytest.approx(np.quantile(values, 1 / eta), abs=1e-12)
    assert math.isnan(rule.cutoff([]))
    assert rule.cutoff([*values, math.inf]) >= rule.cutoff(values)
    assert rule.stops(math.inf, [])


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-0.1, 0.5)), min_size=6, max_size=30))
def test_the_coefficient_weighs_prior_and_slope_by_precision(pairs: list[tuple[float, float]]) -> None:
    left, gains = map(np.array, zip(*pairs, strict=True))
    found = decay_coefficient(left, gains)
    assert 0 <= found <= 0.15
    if np.ptp(left) > 0.01:
        line = linregress(left, gains)
        variance = max(np.nan_to_num(line.stderr) ** 2, 1e-12)
        weights = np.array([1 / 0.03**2, 1 / variance])
        assert found == pytest.approx(
            np.clip(weights @ [0.03, line.slope] / weights.sum(), 0, 0.15), rel=1e-6, abs=1e-9
        )
    assert decay_coefficient(left[:5], gains[:5]) == decay_coefficient(np.ones(9), np.arange(9.0)) == COEFFICIENT


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30, unique=True), st.floats(1, 1000))
def test_the_loss_at_a_step_lies_on_the_law_that_was_logged(steps: list[int], step: float) -> None:
    at = np.array(sorted(steps))
    found = loss_at(at, 3.0 * at**-0.2, step)
    if not math.isnan(found):  # far from every evaluation nothing is said
        assert found == pytest.approx(3.0 * step**-0.2, rel=0.05)
    if step in steps:
        assert found == pytest.approx(3.0 * step**-0.2, rel=0.005)
    if step > 1.03 * at[-1]:
        assert math.isnan(found)


def test_what_stops_at_arrival_is_what_was_recorded_before() -> None:
    others = [run_of(f"r{i}", {0.1: 2 + i / 10}) for i in range(5)]
    values = [2.0, 2.1, 2.2, 2.3, 2.4]
    for loss in (1.9, 2.05, np.exp(np.quantile(np.log(values), 0.25)) + 1e-9, 2.3):
        new = run_of("new", {0.1: float(loss)})
        assert stops(new, others, PLAIN, 0.1) == (loss > np.exp(np.quantile(np.log(values), 0.25)))
    assert not stops(run_of("first", {0.1: 9.0}), [], PLAIN, 0.1)


@given(st.lists(LOSSES, min_size=2, max_size=20))
def test_asking_again_without_news_stops_no_more(losses: list[float]) -> None:
    """Near-ties are not eroded one by one: what a stopped run recorded stays, so that its place is not another's."""
    runs = [run_of(f"r{i}", {0.1: loss}) for i, loss in enumerate(losses)]
    first = stopping(runs, PLAIN)
    assert stopping([replace(run, goes_on=run.name not in first) for run in runs], PLAIN) == set()
    assert len(first) < len(runs)


def test_the_lost_share_is_measured_and_never_a_probability_of_its_own() -> None:
    """Budgets on increments of P(best lost) are unsafe: once the best run is gone they spend nothing more."""
    gone = run_of("best", {0.1: 1.0}, goes_on=False)
    rest = [run_of(f"r{i}", {0.1: 2 + i / 100}) for i in range(3)]
    assert stopping([gone, *rest], PLAIN) == {"r0", "r1", "r2"} - stopping(rest[:1], PLAIN)
    for risk, measured in MEASURED.items():
        assert measured.low <= measured.lost <= measured.high
        assert f"{measured.lost:.1%}" in measured.sentence(risk)


def test_a_short_run_does_not_look_best_at_equal_step() -> None:
    """By shares of their own length runs of one course are tied, however long they are."""
    runs = [run_of(f"{last}", {0.1: 2.0}, last_step=last, step=last // 10) for last in (1000, 4000, 16000, 64000)]
    assert stopping(runs) == set()


def test_a_run_is_kept_before_its_warm_up_is_over() -> None:
    """A winner may sit on a plateau first, as long as its rate rises."""
    good = [run_of(f"r{i}", {0.1: 2.0, 0.4: 1.5}) for i in range(4)]
    late = run_of("late", {0.1: 9.0}, warm_up=90)
    assert stopping([*good, late]) == set()
    assert stopping([*good, replace(late, warm_up=80)]) == {"late"}
    (said,) = (each for each in judge([*good, late], LOW) if each.name == "late")
    assert "warm" in said.reason


def test_a_run_at_its_peak_rate_is_not_behind_one_that_has_decayed() -> None:
    decayed = [run_of(f"r{i}", {0.4: 2.0}, left=0.1) for i in range(4)]
    peak = run_of("peak", {0.4: 2.04}, left=1.0)
    assert "peak" not in stopping([*decayed, peak])
    assert stopping([*decayed, peak], PLAIN) == {"peak"}


def test_seeds_of_one_configuration_are_one() -> None:
    names = ["lr=3e-4_seed=1", "lr=3e-4_seed=2", "seed0-lr=3e-4", "lr=3e-4/random_seed_7"]
    assert len({configuration_of(name).replace("=", " ") for name in names}) == 1
    assert len({configuration_of(name) for name in ("s1", "s2", "reseeded1", "seedling2", "lr=1", "lr=2")}) == 6
    losses = {"a_seed1": 2.0, "a_seed2": 2.6, "b_seed1": 2.1, "b_seed2": 2.1, "c_seed1": 3.0, "c_seed2": 3.0}
    runs = [run_of(name, {0.1: loss}, configuration=configuration_of(name)) for name, loss in losses.items()]
    assert stopping(runs, StoppingRule(2, (0.1,), corrected=False)) == {"c_seed1", "c_seed2"}


def test_what_diverged_stops_and_does_not_stop_others() -> None:
    runs = [run_of("bad", {0.1: math.inf}), run_of("good", {0.1: 2.0}), run_of("also", {0.1: 2.0})]
    assert stopping(runs) == {"bad"}
    assert stopping([run_of("bad", {0.1: math.inf}), run_of("worse", {0.1: math.inf})]) == {"bad", "worse"}


def test_what_is_saved() -> None:
    runs = [
        run_of("done", {0.1: 1.0}, step=1000, goes_on=False, finished=True),
        run_of("cut", {0.1: 2.0}, step=100, goes_on=False),
        run_of("now", {0.1: 3.0}, step=400), run_of("unknown", {}, last_step=None),
    ]  # fmt: skip
    found = saved(runs, judge(runs, PLAIN))
    assert (found.so_far, found.now) == pytest.approx((0.3, 0.2))


# Runs as they are logged


def logged(
    folder: Path, name: str, level: float, until: int, *, last: int | None = 1000, header: str = "val_loss",
    rate: Callable[[float], float] | None = lambda x: 1e-3 * (1 + math.cos(math.pi * x)) / 2,
) -> None:  # fmt: skip
    (folder / name).mkdir(parents=True)
    with (folder / name / "log.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", header, *(["max_steps"] if last else []), *(["lr"] if rate else [])])
        for step in range(0, until + 1, 20):
            loss = level + 3 * (step + 10) ** -0.3
            writer.writerow(
                [step, loss, *([last] if last else []), *([rate(step / (last or 1000))] if rate is not None else [])]
            )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(8):
        logged(tmp_path, f"lr={i}", 2 + i**2 / 20, 1000 if i == 0 else 200)
    return tmp_path


def test_the_command_names_what_can_stop_and_against_what(folder: Path) -> None:
    done = called("sweep", folder)
    assert done.code == 1
    assert done.out.startswith("5 of 7 runs in training can stop now: lr=3, lr=4, lr=5, lr=6, lr=7.")
    answer = strict_json(called("sweep", folder, "--json").out)
    assert (answer["status"], answer["n_runs"], answer["risk"], answer["schema"]) == (1, 8, "low", SCHEMA)
    first = answer["runs"][0]
    assert first["compared"][0] == "lr=0"
    assert len(first["compared"]) == 7
    assert "at 10% of its 1,000 steps" in first["reason"]
    assert first["loss"] > first["cutoff"]
    assert answer["saved_now"] == pytest.approx(5 * 800 / 8000)


def test_json_is_as_documented(folder: Path) -> None:
    schema = json.loads((DOCS / "sweep.schema.json").read_text())
    stated = json.loads(msgspec.json.encode(msgspec.json.schema(Sweep)))
    assert {name: of for name, of in schema.items() if name != "$schema"} == stated
    for risk in RULES:
        answer = strict_json(called("sweep", folder, "--json", "--risk", risk).out)
        jsonschema.validate(answer, schema)
        page = (DOCS / "sweeps.md").read_text()
        assert all(f"`{field}`" in page for field in (*answer, *answer["runs"][0]))
        assert (answer["lost"], answer["lost_interval"]) == (
            MEASURED[risk].lost,
            [MEASURED[risk].low, MEASURED[risk].high],
        )
        assert f"{MEASURED[risk].lost:.1%}" in page


@pytest.mark.parametrize(
    ("options", "told", "flags"),
    [
        ({"last": None}, "how many steps are planned is not logged", ("--steps", "1000")),
        ({"rate": None}, "no learning rate is logged", ("--schedule", "cosine")),
        ({"rate": lambda _: 1e-3}, "how the learning rate goes on is not known", ("--schedule", "constant")),
    ],
)
def test_what_is_unknown_is_named_and_kept_until_it_is_declared(
    folder: Path, options: dict[str, object], told: str, flags: tuple[str, str]
) -> None:
    logged(folder, "odd", 4.0, 300, **options)  # type: ignore[arg-type]
    out = called("sweep", folder).out
    assert "odd is kept: " in out
    assert told in out
    answer = strict_json(called("sweep", folder, "--json", *flags).out)
    assert next(run for run in answer["runs"] if run["name"] == "odd")["stop"]
    if "last" not in options:  # without correction a schedule is not needed
        assert "odd" not in " ".join(strict_json(called("sweep", folder, "--json", "--risk", "high").out)["more"])


def test_a_sweep_without_a_run_in_training_has_nothing_to_stop(tmp_path: Path) -> None:
    for i in range(3):
        logged(tmp_path, f"r{i}", 2 + i / 10, 1000)
    done = called("sweep", tmp_path)
    assert (done.code, done.out.splitlines()[0]) == (0, "None of 3 runs is in training.")


def test_runs_of_one_table_are_a_sweep(tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [("run", "step", "max_steps", "val_loss", "lr")]
    rows += [
        (f"r{i}", t, 1000, 2 + i + 9 / (t + 9), 1e-3 * (1 - t / 1000)) for i in range(5) for t in range(0, 300, 20)
    ]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in rows))
    assert sweep(path).n_runs == 5
    assert [run.name for run in sweep(path).runs if run.stop] == ["r2", "r3", "r4"]


@pytest.mark.parametrize("damage", ["", "step,loss\n", "\0\0\0", "not a log"])
def test_bad_input_is_one_line(tmp_path: Path, damage: str) -> None:
    (tmp_path / "log.csv").write_text(damage)
    for path in (tmp_path, tmp_path / "log.csv", tmp_path / "nothing"):
        assert complaint_of("sweep", path)
    with pytest.raises(ToposcopeError, match="begin with one of"):
        sweep(tmp_path, schedule="up and down")


def test_a_damaged_run_does_not_hide_the_others(folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "log.csv").write_text("step,loss\n1,\0\n")
    answer = sweep(folder)
    assert answer.n_runs == 8
    assert any("broken" in said for said in answer.not_read)


def test_the_live_page_of_eight_runs_says_what_the_command_says(folder: Path) -> None:
    feed = Feed(folder, NO_CHARTS, LogScan(folder, forecasts=False))
    assert feed.stoppable() == [run.name for run in sorted(sweep(folder).runs, key=lambda run: run.name) if run.stop]
    shutil.rmtree(folder / "lr=7")
    assert Feed(folder, NO_CHARTS, LogScan(folder, forecasts=False)).stoppable() == []


def test_a_diverged_run_stops_although_its_schedule_is_unknown(folder: Path) -> None:
    logged(folder, "odd", 4.0, 300, rate=None)
    path = folder / "odd" / "log.csv"
    rows = path.read_text().splitlines()
    path.write_text("\n".join([*rows[:4], *(f"{row.split(',')[0]},nan,1000" for row in rows[4:])]))
    odd = next(run for run in sweep(folder).runs if run.name == "odd")
    assert odd.stop
    assert odd.reason.startswith("Diverged")
