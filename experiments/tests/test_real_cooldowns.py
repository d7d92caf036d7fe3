"""Real cool-downs beside merged weights, and both against the cooled loss."""

import msgspec
import numpy as np
import polars as pl
import pytest
from made_up_material import material
from scipy.stats import spearmanr
from section_tools import with_tables

from toposcope.analysis import Trajectory
from toposcope.family import Corpus, FamilyRun, ModelSize, TrainingOptions
from toposcope.probes import Feature
from toposcope_experiments.cooled_twins.association import SCHEMA, cooled_table
from toposcope_experiments.cooled_twins.real_cooldowns import real_cool_downs, real_table, stand_in_table
from toposcope_experiments.cooled_twins.section import SECTION

H0 = Feature("rips", "", "H0.total", "topology")
SIZE = ModelSize(hidden=8, layers=1, heads=1)
TRAINING = TrainingOptions(steps=110, warmup_steps=5, schedule="constant")
END = {"schedule": "wsd", "steps": 110, "decay_steps": 10, "final_learning_rate": 0.0, "checkpoint_fractions": (1.0,)}


def run(name: str, **changes: object) -> FamilyRun:
    return FamilyRun(name=name, size=SIZE, corpus=Corpus(), training=msgspec.structs.replace(TRAINING, **changes))


def course(name: str, steps: list[int], features: list[float], losses: list[float]) -> Trajectory:
    targets = {"validation_loss": np.array(losses)}
    return Trajectory(name, np.array(steps), {H0: np.array(features)}, targets, {})


def test_a_cool_down_is_the_same_run_but_for_its_end() -> None:
    runs = [
        run("a"),
        run("end", **END),
        run("seed", **END, seed=7),
        run("late", **END | {"steps": 200}),
        run("b", seed=8),
    ]
    assert [(f.run.name, f.cooled.name, f.start, f.end) for f in real_cool_downs(runs)] == [("a", "end", 100, 110)]


def many(merged_is_real: bool) -> tuple[list[FamilyRun], list[Trajectory], list[Trajectory]]:
    runs, courses, twins = [], [], []
    rng = np.random.default_rng(0)
    for seed in range(6):
        held, real = rng.normal(10, 1), rng.normal(8, 1)
        runs += [run(f"r{seed}", seed=seed), run(f"c{seed}", seed=seed, **END)]
        courses.append(course(f"r{seed}", [100, 110], [held, held], [4 + held, 4 + held]))
        courses.append(course(f"c{seed}", [110], [real], [3 + real]))
        merged = real if merged_is_real else held
        twins.append(course(f"r{seed}", [100, 110], [merged, merged], [3 + merged, 3 + merged]))
    return runs, courses, twins


def test_merged_weights_that_are_the_cooled_ones_are_not_off() -> None:
    runs, courses, twins = many(merged_is_real=True)
    found = stand_in_table(real_table(real_cool_downs(runs), courses, twins))
    h0 = found.filter(feature="rips H0.total").row(0, named=True)
    assert h0["n"] == 6
    assert h0["off"] == h0["off_end"] == 0
    assert h0["r"] == pytest.approx(1)
    assert h0["rho_merged"] == pytest.approx(1)
    assert h0["p_merged"] < 0.05 < h0["p_raw"]


def test_merged_weights_that_are_the_raw_ones_are_off_by_all() -> None:
    runs, courses, twins = many(merged_is_real=False)
    found = stand_in_table(real_table(real_cool_downs(runs), courses, twins))
    h0 = found.filter(feature="rips H0.total").row(0, named=True)
    assert h0["off"] == h0["off_end"] == 1
    assert np.isnan(h0["r"])


def test_a_study_without_real_cool_downs_has_no_rows() -> None:
    _, courses, twins = many(merged_is_real=True)
    assert not len(stand_in_table(real_table([], courses, twins)))


def test_association_with_the_cooled_loss() -> None:
    rng = np.random.default_rng(1)
    steps = list(range(100, 300, 10))
    raw, merged, loss, own = rng.normal(size=(4, len(steps)))
    before = course("a", [50, *steps], [0.0, *raw], [9.0, *own])
    table = cooled_table([before, course("b", steps, raw, own)], [course("a", steps, merged, loss)])
    assert table.select("run", "feature").rows() == [("a", "validation_loss"), ("a", "rips H0.total")]
    control, h0 = table.to_dicts()
    assert control["rho_raw"] == pytest.approx(spearmanr(own, loss)[0])
    assert h0["rho_raw"] == pytest.approx(spearmanr(raw, loss)[0])
    assert h0["rho_cooled"] == pytest.approx(spearmanr(merged, loss)[0])


@pytest.mark.parametrize(
    ("n_runs", "cooled", "text"),
    [
        (1, 0.9, "1 run is too little to tell whether merged weights say more of it than raw ones"),
        (5, 0.9, "5 runs are too few to tell whether merged weights say more of it than raw ones"),
        (8, 0.9, "1 of 1 topological features say more of it in merged weights than in raw ones"),
        (8, -0.1, "None of 1 topological features say more of it in merged weights than in raw ones"),
        (8, float("nan"), "None of 1 topological features say more of it in merged weights than in raw ones"),
    ],
)
def test_the_cooled_loss_says_what_merging_adds(n_runs: int, cooled: float, text: str) -> None:
    rows = [("r", "l", "rips H0.total", "topology", 20, -1.0, 0.1, 0.0, -1.0, cooled, 0.0)] * n_runs
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    assert SECTION.finding(with_tables(material(1, 3), {"cooled": frame})) == text
