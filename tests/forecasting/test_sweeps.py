"""Which runs of a sweep can stop: the rule against closed forms, the traps of such rules, and runs as logged."""

import csv
import json
import math
import os
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

from toposcope.errors import ToposcopeError
from toposcope.forecasting.sweeps.measured import MEASURED
from toposcope.forecasting.sweeps.reading import in_blocks
from toposcope.forecasting.sweeps.rule import RULES, StoppingRule, best_until, loss_at, mean_until
from toposcope.forecasting.sweeps.sweep import SweepRun, arrives, configuration_of, judge, saved
from toposcope.logs.table import ByStep
from toposcope.programs.check import NO_CHARTS
from toposcope.programs.sweep import SCHEMA, Sweep, sweep
from toposcope.report.live.feed import Feed
from toposcope.report.live.logs import LogScan

DOCS = Path(__file__).parents[2] / "docs"
LOSSES = st.floats(0.1, 10) | st.sampled_from([0.1, math.nextafter(0.1, 1), 2.0, 2.0 + 1e-12, 2.0 + 1e-7])
LOW, MEDIUM, HIGH = RULES["low"], RULES["medium"], RULES["high"]


def run_of(name: str, losses: Sequence[float], **options: object) -> SweepRun:
    """A run that was evaluated at 5, 10, 15 ... of 100 steps."""
    known: dict[str, object] = {"configuration": name, "last_step": 100, **options}
    return SweepRun(name, steps=5 * np.arange(1, len(losses) + 1), losses=np.array(losses, float), **known)  # type: ignore[arg-type]


def falling(level: float, n: int = 20) -> list[float]:
    return [level + 4 / (i + 1) for i in range(n)]


def above(value: float, cutoff: float) -> bool:
    """Return whether a loss is above another by more than rounding, 1e-9 of the larger."""
    return value - cutoff > 1e-9 * max(abs(value), abs(cutoff))


def stopping(runs: Sequence[SweepRun], rule: StoppingRule = LOW) -> set[str]:
    going = [run for run in runs if run.goes_on]
    return {run.name for run in going if judge(run, [each for each in runs if each is not run], rule).stop}


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.sampled_from([2, 3, 4]))
def test_the_cutoff_is_the_linear_quantile(values: list[float], eta: int) -> None:
    rule = StoppingRule(eta, ())
    assert rule.cutoff(values) == pytest.approx(np.quantile(values, 1 / eta), abs=1e-12)
    assert math.isnan(rule.cutoff([]))
    assert math.isnan(StoppingRule(eta, (), at_least=len(values) + 1).cutoff(values))
    assert rule.cutoff([*values, math.inf]) >= rule.cutoff(values)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30, unique=True), st.floats(1, 1000))
def test_the_loss_at_a_step_lies_on_the_law_that_was_logged(steps: list[int], step: float) -> None:
    at = np.array(sorted(steps))
    found = loss_at(at, 3.0 - np.log(at), step)
    if not math.isnan(found):  # far from every evaluation nothing is said
        assert found == pytest.approx(3.0 - math.log(step), abs=0.3)
    if step in steps:
        assert found == pytest.approx(3.0 - math.log(step), abs=0.03)
    if step > 1.03 * at[-1]:
        assert math.isnan(found)


@given(st.lists(LOSSES, min_size=1, max_size=30), st.integers(1, 30))
def test_the_mean_so_far_is_the_area_under_the_evaluations(losses: list[float], k: int) -> None:
    steps = np.cumsum(np.arange(1, len(losses) + 1))
    k = min(k, len(losses))
    found = mean_until(steps, np.array(losses), steps[k - 1])
    fine = np.linspace(steps[0], steps[k - 1], 20_001)
    assert found == pytest.approx(np.interp(fine, steps, losses).mean(), rel=1e-3)
    assert best_until(steps, np.array(losses), steps[k - 1]) == min(losses[:k]) <= found + 1e-9
    assert math.isnan(mean_until(steps, np.array(losses), 1.1 * steps[-1] + 1))


@given(st.lists(LOSSES, min_size=2, max_size=12), st.sampled_from([MEDIUM, HIGH]))
def test_halving_compares_the_last_share_passed_with_all_that_was_recorded_there(
    losses: list[float], rule: StoppingRule
) -> None:
    runs = [run_of(f"r{i}", [loss] * 8) for i, loss in enumerate(losses)]
    others = [losses[:i] + losses[i + 1 :] for i in range(len(losses))]
    worse = {f"r{i}" for i, x in enumerate(losses) if above(x, float(np.quantile(others[i], 1 / rule.eta)))}
    assert stopping(runs, rule) == worse
    assert all(judge(run, [], rule).share == (0.4 if rule is MEDIUM else 0.3) for run in runs)


@given(st.lists(st.lists(LOSSES, min_size=2, max_size=20), min_size=1, max_size=10))
def test_low_risk_compares_the_best_loss_with_the_median_of_means(curves: list[list[float]]) -> None:
    runs = [run_of(f"r{i}", losses) for i, losses in enumerate(curves)]
    for i, run in enumerate(runs):
        n = len(curves[i])
        others = [c[:n] for k, c in enumerate(curves) if k != i and len(c) >= n]
        means = [np.trapezoid(c) / (n - 1) for c in others]
        expected = len(means) >= 3 and above(min(curves[i]), float(np.median(means)))
        assert judge(run, [each for each in runs if each is not run], LOW).stop == expected


@given(st.lists(LOSSES, min_size=2, max_size=20), st.sampled_from(list(RULES.values())))
def test_asking_again_without_news_stops_no_more(losses: list[float], rule: StoppingRule) -> None:
    """What a stopped run recorded stays, so that its place is not another's."""
    runs = [run_of(f"r{i}", [loss] * 8) for i, loss in enumerate(losses)]
    first = stopping(runs, rule)
    assert stopping([replace(run, goes_on=run.name not in first) for run in runs], rule) == set()
    assert len(first) < len(runs)


def test_near_ties_are_not_eroded_one_by_one() -> None:
    """Runs that fall alike stay, however often low risk is asked and whoever was stopped before."""
    levels = [1 + i / 1000 for i in range(12)]
    going = {f"r{i}" for i in range(12)}
    for n in range(2, 20):
        runs = [run_of(f"r{i}", falling(level, n), goes_on=f"r{i}" in going) for i, level in enumerate(levels)]
        going -= stopping(runs)
    assert len(going) == 12


def test_the_lost_share_is_measured_and_never_a_probability_of_its_own() -> None:
    """Budgets on increments of P(best lost) are unsafe: once the best run is gone they spend nothing more."""
    gone = run_of("best", [1.0] * 4, goes_on=False)
    rest = [run_of(f"r{i}", [2 + i / 100] * 4) for i in range(3)]
    assert stopping([gone, *rest], MEDIUM) == {"r1", "r2"}
    for risk, measured in MEASURED.items():
        assert measured.low <= measured.lost <= measured.high
        assert f"{measured.lost:.1%}" in measured.sentence(risk)


@pytest.mark.parametrize("rule", RULES.values())
def test_a_short_run_does_not_look_best_at_equal_step(rule: StoppingRule) -> None:
    """By shares of their own length runs of one course are tied, however long they are."""
    runs = []
    for length in (1, 4, 16, 64):
        run = run_of(f"{length}", falling(1, 9), last_step=100 * length)
        runs.append(replace(run, steps=run.steps * length))
    assert stopping(runs, rule) == set()


def test_a_run_is_kept_before_its_warm_up_is_over() -> None:
    """A winner may sit on a plateau first, as long as its rate rises."""
    good = [run_of(f"r{i}", [2.0] * 4) for i in range(4)]
    late = run_of("late", [9.0] * 4, warm_up=17)
    assert stopping([*good, late], MEDIUM) == set()
    assert stopping([*good, replace(late, warm_up=16)], MEDIUM) == {"late"}
    assert "warming up" in judge(late, good, MEDIUM).reason


def test_it_arrives_once_at_a_share_and_at_every_evaluation_of_low_risk() -> None:
    for rule, expected in ((MEDIUM, [4, 8, 16]), (HIGH, [2, 6, 18]), (LOW, list(range(2, 21)))):
        assert [n for n in range(1, 21) if arrives(run_of("r", falling(1, n)), rule)] == expected


def test_seeds_of_one_configuration_are_one() -> None:
    names = ["lr=3e-4_seed=1", "lr=3e-4_seed=2", "seed0-lr=3e-4", "lr=3e-4/random_seed_7"]
    assert len({configuration_of(name).replace("=", " ") for name in names}) == 1
    assert len({configuration_of(name) for name in ("s1", "s2", "reseeded1", "seedling2", "lr=1", "lr=2")}) == 6
    losses = {"a_seed1": 2.0, "a_seed2": 2.6, "b_seed1": 2.1, "b_seed2": 2.1, "c_seed1": 3.0, "c_seed2": 3.0}
    runs = [run_of(name, [loss] * 4, configuration=configuration_of(name)) for name, loss in losses.items()]
    assert stopping(runs, MEDIUM) == {"a_seed1", "a_seed2", "c_seed1", "c_seed2"} - {"a_seed1", "a_seed2"}
    assert judge(runs[0], runs[1:], MEDIUM).compared == ("b_seed1", "b_seed2", "c_seed1", "c_seed2")


@pytest.mark.parametrize(
    ("names", "n"),
    [
        (("lr=3e-4_seed=2", "lr=3e-4-seed3", "random_seed=1/lr=3e-4", "lr=3e-4"), 1),
        (("lr=1e-1", "lr=1e+1", "lr=.1", "lr=1", "lr=-1", "lr=0_1", "lr=0.1"), 7),
        (("seed=1_-0.5", "seed=1_0.5", "seed=2_.1", "seed=2_1", "x" * 210 + "1", "x" * 210 + "2"), 6),
        (("repeat=1_lr=1", "repeat=2_lr=1", "a<b", "a>b", "seedling1", "seedling2"), 6),
    ],
)
def test_runs_are_one_configuration_where_their_names_differ_in_a_seed_alone(names: tuple[str, ...], n: int) -> None:
    assert len({configuration_of(name) for name in names}) == n


def test_a_seed_that_has_not_come_as_far_says_nothing_of_another() -> None:
    others = [run_of(f"r{i}", [3.0] * 16) for i in range(4)]
    late = run_of("late", [9.0], configuration="a")
    for rule in RULES.values():
        assert not judge(run_of("a", [2.9] * 16), [*others, late], rule).stop


@pytest.mark.parametrize("rule", RULES.values())
def test_ties_are_not_above_each_other_by_rounding(rule: StoppingRule) -> None:
    runs = [run_of(f"r{i}", [level] * 8) for i, level in enumerate([2.75, 2.76, 2.77, 2.78, 2.79])]
    assert "r2" not in stopping(runs, MEDIUM)
    assert stopping([run_of(f"r{i}", [1.1082563059309285] * 8) for i in range(5)], rule) == set()


def test_what_diverged_stops_and_does_not_stop_others() -> None:
    runs = [run_of("bad", [2.0, 2.0, 2.0, math.inf]), *(run_of(f"r{i}", [2.0] * 4) for i in range(4))]
    assert all(stopping(runs, rule) == {"bad"} for rule in RULES.values())


def test_what_is_saved() -> None:
    runs = [
        run_of("done", falling(1, 19), goes_on=False, reached=99), run_of("cut", falling(2, 2), goes_on=False),
        run_of("now", falling(3, 6), reached=40), run_of("unknown", [], last_step=None),
    ]  # fmt: skip
    found = saved(runs, ["now"])
    assert (found.so_far, found.now) == pytest.approx((0.3, 0.2))


@given(st.integers(1, 400), st.integers(50, 4000), st.integers(1, 7))
def test_blocks_of_training_losses_are_means_of_their_rows(n: int, last: int, every: int) -> None:
    steps = np.arange(1, n + 1) * every
    steps = steps[steps <= last]
    losses = np.random.default_rng(n).uniform(1, 2, len(steps))
    found = in_blocks(ByStep(steps, losses), last)
    assert (np.diff(found.steps) > 0).all()
    for k, (step, mean) in enumerate(zip(found.steps.tolist(), found.values.tolist(), strict=True)):
        first = found.steps[k - 1] if k else 0
        assert mean == pytest.approx(losses[(steps > first) & (steps <= step)].mean())
    if len(steps) and (steps[-1] >= last or steps[-1] * 50 % last == 0):
        assert found.steps[-1] == steps[-1]


# Runs as they are logged


def logged(
    folder: Path, name: str, level: float, until: int, *, last: int | None = 1000, header: str = "val_loss",
    rate: Callable[[float], float] | None = lambda x: 1e-3 * (1 - x),
    family: str = "",
) -> None:  # fmt: skip
    (folder / name).mkdir(parents=True)
    with (folder / name / "log.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        named = ["family"] if family else []
        writer.writerow(["step", header, *(["max_steps"] if last else []), *(["lr"] if rate else []), *named])
        for step in range(0, until + 1, 20):
            loss, rates = level + 3 * (step + 10) ** -0.3, [rate(step / (last or 1000))] if rate else []
            writer.writerow([step, loss, *([last] if last else []), *rates, *([family] if family else [])])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(8):
        logged(tmp_path, f"lr={i}", 2 + i**2 / 20, 1000 if i == 0 else 200)
    return tmp_path


def test_the_command_names_what_can_stop_and_against_what(folder: Path) -> None:
    done = called("sweep", folder)
    assert done.code == 1
    assert done.out.startswith("4 of 7 runs in training can stop now: lr=4, lr=5, lr=6, lr=7.")
    answer = strict_json(called("sweep", folder, "--json").out)
    assert (answer["status"], answer["n_runs"], answer["risk"], answer["schema"]) == (1, 8, "low", SCHEMA)
    first = answer["runs"][0]
    assert first["compared"][0] == "lr=0"
    assert len(first["compared"]) == 7
    assert "at 20% of its 1,000 steps" in first["reason"]
    assert first["loss"] > first["cutoff"]
    assert answer["saved_now"] == pytest.approx(4 * 800 / 8000)
    high = strict_json(called("sweep", folder, "--json", "--risk", "high").out)
    assert {run["name"] for run in high["runs"] if run["stop"]} == {"lr=3", "lr=4", "lr=5", "lr=6", "lr=7"}


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


def test_a_run_of_unknown_length_is_named_and_kept_until_it_is_declared(folder: Path) -> None:
    logged(folder, "odd", 6.0, 200, last=None)
    out = called("sweep", folder).out
    assert "odd is kept: how many steps are planned is not logged" in out
    answer = strict_json(called("sweep", folder, "--json", "--steps", "1000").out)
    assert next(run for run in answer["runs"] if run["name"] == "odd")["stop"]


def test_a_plan_that_a_run_has_gone_beyond_is_no_plan(folder: Path) -> None:
    logged(folder, "odd", 6.0, 200, last=None)
    odd = next(run for run in sweep(folder, last_step=100).runs if run.name == "odd")
    assert (odd.stop, odd.kept) == (False, "it has gone on beyond the 100 steps that it was planned for")
    assert "odd" not in {name for run in sweep(folder, last_step=100).runs for name in run.compared}


def test_a_given_plan_is_that_of_complete_and_silent_runs_too(tmp_path: Path) -> None:
    for name, until in (("a", 1000), ("b", 1000), ("c", 1000), ("killed", 300)):
        logged(tmp_path, name, 2 + until / 500, until, last=None)
        os.utime(tmp_path / name / "log.csv", (1e9, 1e9))
    answer = sweep(tmp_path, last_step=1000)
    assert not answer.runs
    assert answer.saved == pytest.approx(0.7 / 4)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_silent_run_is_not_in_training_whatever_its_loss_does(folder: Path, sign: int) -> None:
    logged(folder, "killed", 9.0, 200)
    path = folder / "killed" / "log.csv"
    header, *rows = path.read_text().splitlines()
    parts = [row.split(",") for row in rows]
    path.write_text("\n".join([header, *(",".join([s, str(5 + sign * int(s) / 100), *r]) for s, _, *r in parts)]))
    os.utime(path, (1e9, 1e9))
    assert "killed" not in {run.name for run in sweep(folder).runs}


def test_a_loss_that_rises_in_its_warm_up_is_not_stopped_for_it(folder: Path) -> None:
    logged(folder, "rising", 2.0, 60, rate=lambda x: x)
    path = folder / "rising" / "log.csv"
    header, *_ = path.read_text().splitlines()
    path.write_text("\n".join([header, *(f"{s},{2.4 + 0.02 * s},1000,{s * 1e-5}" for s in range(1, 61))]))
    for risk in RULES:
        assert not next(run for run in sweep(folder, risk).runs if run.name == "rising").stop


def test_long_names_stay_apart_and_odd_ones_are_printable(folder: Path) -> None:
    logged(folder, "x" * 210 + "\x1b[31m1", 9.0, 200)
    assert "x" * 210 + "\N{REPLACEMENT CHARACTER}[31m1" in {run.name for run in sweep(folder).runs if run.stop}


def test_a_constant_rate_is_no_warm_up(folder: Path) -> None:
    logged(folder, "constant", 9.0, 210, rate=lambda x: 1e-3)
    assert next(run for run in sweep(folder, "medium").runs if run.name == "constant").stop


def test_losses_of_two_families_are_not_compared(folder: Path) -> None:
    for i in range(5):
        logged(folder, f"other{i}", 9.0 + i / 100, 200, family="other")
    answer = sweep(folder)
    assert not any(run.stop for run in answer.runs if run.name.startswith("other"))
    assert {name[:2] for run in answer.runs if run.name == "lr=7" for name in run.compared} == {"lr"}


def test_a_store_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "old").mkdir()
    (folder / "old" / "study.db").write_bytes(b"nothing")
    assert any("old" in said for said in sweep(folder).not_read)


def test_a_run_that_logs_another_loss_or_unit_is_named_and_kept(folder: Path) -> None:
    logged(folder, "odd", 6.0, 300, header="train_loss")
    assert "odd is kept: no validation loss is logged" in called("sweep", folder).out


@pytest.mark.parametrize("risk", ["medium", "high"])
def test_a_run_whose_rate_still_rises_is_kept(folder: Path, risk: str) -> None:
    logged(folder, "rising", 6.0, 240, rate=lambda x: 1e-3 * min(1, x / 0.25))
    rising = next(run for run in sweep(folder, risk).runs if run.name == "rising")  # type: ignore[arg-type]
    assert (rising.stop, "warming up" in rising.reason) == (False, True)


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
    assert [run.name for run in sweep(path, "medium").runs if run.stop] == ["r3", "r4"]


@pytest.mark.parametrize("damage", ["", "step,loss\n", "\0\0\0", "not a log"])
def test_bad_input_is_one_line(tmp_path: Path, damage: str) -> None:
    (tmp_path / "log.csv").write_text(damage)
    for path in (tmp_path, tmp_path / "log.csv", tmp_path / "nothing"):
        assert complaint_of("sweep", path)
    with pytest.raises(ToposcopeError, match="risk 'none'"):
        sweep(tmp_path, "none")  # type: ignore[arg-type]


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
