"""The rules that stop runs of a sweep: how sweeps are trained and replayed, the rivals, the traps of such studies."""

import json
import math
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import pytest
import torch
from commands import called, complaint_of, strict_json
from hypothesis import given as drawn
from hypothesis import strategies as st

from toposcope.errors import ToposcopeError
from toposcope.extend import RULES, SweepRun, arrives, derive_seed, judge
from toposcope_experiments.sweeps.design import (
    KINDS,
    LATE,
    LSTM,
    MIXER,
    ONE_CYCLE,
    PLAIN,
    RESTARTS,
    SCHEDULE_FREE,
    VISION,
    Design,
    Sweep,
    settings,
    sweeps,
)  # fmt: skip
from toposcope_experiments.sweeps.experiment import against, chosen_elsewhere, interval, replays, rules, summary
from toposcope_experiments.sweeps.population import Curve, Population, curves_of, given, taskset
from toposcope_experiments.sweeps.replay import Decision, outcome, replay
from toposcope_experiments.sweeps.rules import Asha, Guarded, Median, Rule, Shipped, decay_coefficient
from toposcope_experiments.sweeps.training import SweepTrainer, run_losses, train_sweep

Risk = Literal["low", "medium", "high"]
TINY = Design(repeats=1, runs=4, steps=60, longer=120)
TEXT = torch.randint(128, (2000,), generator=torch.Generator().manual_seed(0))


def curve(level: float, last: int = 100, *, shape: float = 1.0, every: int = 5) -> Curve:
    steps = np.arange(0, last + 1, every)
    return Curve(steps, level + shape * ((steps + 1) / last) ** -0.5, last, 0, np.zeros(len(steps)))


def sweep_of(*runs: Curve) -> Population:
    return Population("made", "made", "made", runs)


def ends(population: Population, rule: Rule, workers: int, order: list[int] | None = None) -> np.ndarray:
    points, decide = rule.begin(population)
    n = len(population.runs)
    return replay(points, [run.last_step for run in population.runs], order or list(range(n)), workers, decide)


@pytest.mark.parametrize("network", [LSTM, MIXER, VISION])
def test_a_run_of_many_is_trained_as_adamw_trains_it_alone(network: str, tmp_path: Path) -> None:
    sweep = Sweep(network, PLAIN, 0, TINY)
    trainer = SweepTrainer(sweep, TEXT, tmp_path)
    of = trainer.settings
    alone = {name: value[1].clone().requires_grad_() for name, value in trainer.x.items()}
    optimizer = torch.optim.AdamW(
        alone.values(), betas=(0.9, float(of.beta2[1])), weight_decay=float(of.weight_decay[1])
    )
    for step in range(1, 9):
        trainer.update(step)
        optimizer.param_groups[0]["lr"] = float(of.rates[1, step - 1])
        batch = trainer._batch(16, torch.Generator().manual_seed(derive_seed(step, trainer.name)))
        optimizer.zero_grad()
        torch.autograd.backward(
            run_losses(sweep, {k: v[None] for k, v in alone.items()}, trainer.mask[1:2], *batch).sum()
        )
        optimizer.step()
    for name, value in alone.items():
        torch.testing.assert_close(trainer.x[name][1], value.detach(), rtol=2e-3, atol=2e-5)


def test_a_schedule_free_run_is_the_mean_of_its_iterates_weighted_by_squared_rates(tmp_path: Path) -> None:
    trainer = SweepTrainer(Sweep(VISION, SCHEDULE_FREE, 0, TINY), TEXT, tmp_path)
    free = int(np.argmax(trainer.settings.schedule_free))
    assert trainer.settings.schedule_free[free] == 1
    iterates = []
    for step in range(1, 6):
        trainer.update(step)
        iterates.append(trainer.z["out"][free].clone())
    weights = torch.tensor(trainer.settings.rates[free, :5] ** 2, dtype=torch.float32)
    mean = sum(w * z for w, z in zip(weights, iterates, strict=True)) / weights.sum()
    torch.testing.assert_close(trainer.x["out"][free], mean)


def test_an_interrupted_sweep_goes_on_to_the_same_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(VISION, "divergence", 0, TINY)
    whole = train_sweep(sweep, TEXT, tmp_path / "whole")
    monkeypatch.setattr("toposcope_experiments.small_networks.training.SAVE_EVERY", 1)
    cut = SweepTrainer(sweep, TEXT, tmp_path / "cut")
    update = cut.update

    def killed(step: int) -> None:
        if step == 40:
            raise KeyboardInterrupt
        update(step)

    cut.update = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        cut.train()
    again = train_sweep(sweep, TEXT, tmp_path / "cut")
    np.testing.assert_array_equal(again.losses, whole.losses)


def test_the_design_has_what_the_plan_names() -> None:
    whole = sweeps(Design())
    assert len(whole) == len({sweep.name for sweep in whole}) == 81
    assert {sweep.kind for sweep in whole} >= {*KINDS, LATE}
    for sweep in whole:
        of = settings(sweep)
        assert (of.rates >= 0).all()
        assert all((row[last:] == 0).all() for row, last in zip(of.rates, of.last_step.tolist(), strict=True))
        assert all(
            row.max() == pytest.approx(row[max(warm - 1, 0)], rel=0.01)
            for row, warm in zip(of.rates, of.warm_up, strict=True)
        )
    assert (settings(Sweep(LSTM, ONE_CYCLE, 0, Design())).warm_up >= 180).all()
    cycles = settings(Sweep(LSTM, RESTARTS, 0, Design()))
    assert any(
        (np.diff(row[int(warm) + 1 :]) > 0.1 * row.max()).any()
        for row, warm in zip(cycles.rates, cycles.warm_up, strict=True)
    )


# Replays


@drawn(st.permutations(list(range(7))), st.integers(1, 7))
def test_a_rule_that_stops_nothing_makes_every_step(order: list[int], workers: int) -> None:
    used = replay([[Decision(5, 0)]] * 7, [10] * 7, order, workers, lambda *_: [])
    assert used.tolist() == [10.0] * 7


@drawn(
    st.lists(st.lists(st.floats(0.5, 5), min_size=20, max_size=20), min_size=2, max_size=9),
    st.sampled_from(list(RULES)),
)
def test_what_is_replayed_is_what_the_shipped_judge_says(curves: list[list[float]], risk: Risk) -> None:
    """With all workers runs go in step: each is judged by what those before it and its own last evaluations show."""
    steps, n = 5 * np.arange(1, 21), len(curves)
    population = sweep_of(*(Curve(steps, np.array(each), 100, 0, np.zeros(20)) for each in curves))
    used = ends(population, Shipped(risk, RULES[risk]), n)
    seen, made = dict[int, SweepRun](), dict.fromkeys(range(n), 100.0)
    for k in range(1, 20):
        for i in range(n):
            if made[i] == 100:
                one = SweepRun(str(i), str(i), steps[:k], np.array(curves[i][:k]), 100)
                if arrives(one, RULES[risk]):
                    seen[i] = one
                    if judge(one, [other for j, other in seen.items() if j != i], RULES[risk]).stop:
                        made[i] = float(5 * k)
    assert used.tolist() == list(made.values())


@drawn(st.lists(st.tuples(st.floats(0, 1), st.floats(-0.1, 0.5)), min_size=6, max_size=30))
def test_the_guard_weighs_prior_and_slope_by_precision(pairs: list[tuple[float, float]]) -> None:
    left, gains = map(np.array, zip(*pairs, strict=True))
    found = decay_coefficient(left, gains)
    assert 0 <= found <= 0.15
    if np.ptp(left) > 0.01:
        A = np.stack([np.ones(len(left)), left], axis=1)
        (_, slope), _, *_ = np.linalg.lstsq(A, gains, rcond=None)
        scatter = ((gains - A @ np.linalg.lstsq(A, gains, rcond=None)[0]) ** 2).sum()
        precision = ((left - left.mean()) ** 2).sum() * (len(left) - 2) / max(scatter, 1e-12)
        expected = (0.03 / 0.03**2 + slope * precision) / (1 / 0.03**2 + precision)
        assert found == pytest.approx(np.clip(expected, 0, 0.15), rel=1e-4, abs=1e-7)
    assert decay_coefficient(left[:5], gains[:5]) == decay_coefficient(np.ones(9), np.arange(9.0)) == 0.03


def test_the_guard_allows_for_the_decay_to_come() -> None:
    decayed = [curve(2.0)._replace(decay_left=np.full(21, 0.1)) for _ in range(4)]
    peak = curve(2.02)._replace(decay_left=np.ones(21))
    population = sweep_of(*decayed, peak)
    assert ends(population, Guarded("guarded"), 1)[-1] == 100
    assert ends(population, Guarded("unguarded", corrected=False), 1)[-1] < 100


def test_at_equal_step_a_short_horizon_looks_best_and_by_share_it_does_not() -> None:
    best_is_long = sweep_of(*(curve(2.0, 100) for _ in range(8)), curve(1.5, 400))
    by_step, by_share = ends(best_is_long, Asha(4, 0.1), 9), ends(best_is_long, Shipped("medium", RULES["medium"]), 9)
    assert by_step[-1] < 400
    assert outcome(best_is_long, by_step).lost
    assert by_share[-1] == 400
    assert not outcome(best_is_long, by_share).lost


def test_a_pruner_of_finished_runs_saves_nothing_in_parallel() -> None:
    population = sweep_of(*(curve(1 + i / 5) for i in range(8)))
    assert outcome(population, ends(population, Median("Optuna", 0.0), 8)).saved == 0
    assert outcome(population, ends(population, Median("Optuna", 0.0), 1)).saved > 0
    assert outcome(population, ends(population, Shipped("medium", RULES["medium"]), 8)).saved > 0.3
    assert outcome(population, ends(population, Shipped("low", RULES["low"]), 8)).saved > 0


def test_a_winner_that_sits_on_a_plateau_is_lost_and_counted_so() -> None:
    late = curve(3.0)._replace(losses=np.where(curve(3.0).steps < 60, 3.5, 0.5))
    population = sweep_of(*(curve(1 + i / 100) for i in range(6)), late)
    ended = outcome(population, ends(population, Shipped("medium", RULES["medium"]), 1))
    assert ended.lost
    assert ended.regret > 1


def test_of_two_tied_runs_neither_is_lost() -> None:
    population = sweep_of(curve(1.0), curve(1.0 + 1e-3), curve(3.0))
    assert not outcome(population, np.array([10.0, 100, 100])).lost
    assert outcome(population, np.array([10.0, 10, 100])).lost
    tiny = sweep_of(curve(0.0, shape=1e-7), curve(0.0, shape=1e-5))
    assert not outcome(tiny, np.array([10.0, 100])).lost


def test_every_rule_replays_every_kind_and_the_tables_say_so() -> None:
    rng = np.random.default_rng(0)
    populations = [
        Population(f"s{k}", f"g{k % 2}", "lstm", tuple(curve(float(x)) for x in rng.uniform(1, 3, 10)))
        for k in range(4)
    ]
    frame = pl.concat([replays(population) for population in populations])
    assert frame["saved"].is_between(0, 1).all()
    assert frame["lost"].is_between(0, 1).all()
    names = {rule.name for settings_of in rules().values() for rule in settings_of}
    assert set(frame["rule"]) == names
    table = summary(frame)
    assert (table["low"] <= table["lost"]).all()
    assert set(chosen_elsewhere(frame)["family"]) == set(rules())
    trained = against(frame)
    assert trained.filter(rule="medium", rival="medium")["lost_more"].to_list() == [0.0]
    assert interval(np.zeros(5)) == (0, 0)


def test_sweeps_of_others_are_read(tmp_path: Path) -> None:
    curves = [[3.0, 2.0, None, None], [3.0, 2.0, 1.5, 1.0]] * 30
    pl.DataFrame({"task": ["a"] * 60, "run": range(60), "valid_loss": curves}).write_parquet(tmp_path / "t.parquet")
    (one,) = taskset(tmp_path / "t.parquet")
    assert len(one.runs) == 50
    assert one.runs[0].losses[-1] == math.inf
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(ToposcopeError, match="cannot be read"):
        taskset(tmp_path / "bad.parquet")
    (tmp_path / "bad.npz").write_text("no")
    with pytest.raises(ToposcopeError, match="cannot be read"):
        given(tmp_path / "bad.npz")


def test_a_folder_of_another_design_is_refused(tmp_path: Path) -> None:
    (tmp_path / "design.json").write_text(json.dumps({"repeats": 9, "runs": 4, "steps": 60, "longer": 240, "first": 0}))
    assert "repeats is 9" in complaint_of(
        "stopping-rules", "--repeats", "1", "--runs", "4", "--steps", "60", "--out", tmp_path
    )
    assert complaint_of("stopping-rules", "--taskset", tmp_path / "none")


@pytest.mark.slow
def test_the_command_trains_replays_and_goes_on(tmp_path: Path) -> None:
    options = ("stopping-rules", "--repeats", "1", "--runs", "6", "--steps", "60", "--out", tmp_path)
    tables = strict_json(called(*options, "--json").out)
    assert {row["rule"] for row in tables["rules"]} >= {
        "low",
        "medium, again",
        "guarded, eta 4",
        "ASHA by step, eta 4, grace 0%",
    }
    assert (tmp_path / "against.csv").is_file()
    trained = curves_of(
        "x", "y", VISION, train_sweep(Sweep(VISION, PLAIN, 0, Design(1, 6, 60, 240)), TEXT, tmp_path / "training")
    )
    assert len(trained.runs) == 6
