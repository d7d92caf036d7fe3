"""Transitions that coincide or lead: false alarms, planted relations, power, and efficiency as a series."""

import numpy as np
import polars as pl
import pytest

from toposcope.analysis.change_points import DRAWS
from toposcope.analysis.efficiency import NP_MEAN, NP_SPEED, PER_STEP, PER_TOKEN, efficiency, paces
from toposcope.analysis.table import association_table
from toposcope.analysis.trajectory import Trajectory
from toposcope.analysis.transitions import COINCIDE, LEAD, LOSS, UNKNOWN, YES, Changes, Pair, align, transition_table
from toposcope.typing import Vector

N, LEVEL = 51, 0.05
RELATIONS = (COINCIDE, LEAD)


def changes(places: list[int] | Vector, rng: np.random.Generator, p: float = 0.005, explained: float = 0.5) -> Changes:
    """Return changes with a p, and another that a smooth trend explains."""
    at = np.append(np.asarray(places, np.int64), rng.integers(3, N - 2))
    shares = np.append(np.full(len(places), p), explained)
    twins = rng.integers(3, N - 2, DRAWS)
    return Changes(N, at, -np.log(shares), twins, rng.exponential(size=DRAWS))


def anywhere(rng: np.random.Generator, n: int = 3) -> Vector:
    return np.asarray(rng.choice(np.arange(8, N - 3), n, replace=False))


def independent(rng: np.random.Generator) -> list[Pair]:
    return [(changes(anywhere(rng), rng), changes(anywhere(rng), rng)) for _ in range(4)]


def shared(rng: np.random.Generator) -> list[Pair]:
    """Return runs that change at the same places as each other, but topology at others than the loss."""
    ours, theirs = anywhere(rng, 2), anywhere(rng, 2)
    return [(changes(ours, rng), changes(theirs, rng)) for _ in range(4)]


@pytest.mark.parametrize("population", [independent, shared])
def test_events_that_have_nothing_to_do_with_each_other_are_found_together_in_5_percent(population: object) -> None:
    n, found = 80, np.zeros(2)
    for seed in range(n):
        pairs = population(np.random.default_rng(seed))  # type: ignore[operator]
        found += [align(pairs, relation, LEVEL, seed).p <= LEVEL for relation in RELATIONS]
    assert found.max() <= 9  # of 80 at 5%, more have a chance of 1 in 100


@pytest.mark.parametrize(("relation", "lag"), [(COINCIDE, 0), (LEAD, 3)])
def test_planted_relations_are_found_and_told_apart(relation: str, lag: int) -> None:
    rng = np.random.default_rng(1)
    places = [anywhere(rng) for _ in range(3)]
    pairs = [(changes(at - lag, rng), changes(at, rng)) for at in places]
    p = {each: align(pairs, each, LEVEL, 1).p for each in RELATIONS}
    assert p[relation] <= 0.01
    assert max(p.values()) > LEVEL


def test_the_power_said_is_how_often_half_of_the_changes_are_found_planted() -> None:
    rng, found, said = np.random.default_rng(2), [], []
    for seed in range(60):
        pairs = []
        for _ in range(2):
            theirs = anywhere(rng)
            ours = np.where(rng.random(3) < 0.5, rng.choice(theirs, 3) + rng.integers(-1, 2, 3), anywhere(rng))
            pairs.append((changes(ours, rng), changes(theirs, rng)))
        result = align(pairs, COINCIDE, LEVEL, seed)
        found.append(result.p <= LEVEL)
        said.append(result.power)
    assert abs(np.mean(found) - np.mean(said)) < 0.2


def test_the_power_grows_with_runs_and_falls_without_changes() -> None:
    rng = np.random.default_rng(3)
    pairs = [(changes(anywhere(rng), rng), changes(anywhere(rng), rng)) for _ in range(6)]
    assert align(pairs[:1], COINCIDE, LEVEL, 1).power < align(pairs, COINCIDE, LEVEL, 1).power
    weak = [(changes(anywhere(rng), rng, p=0.99, explained=0.99), other) for _, other in pairs]
    assert align(weak, COINCIDE, LEVEL, 1).power < 0.2


def jumping(places: list[int], rng: np.random.Generator, size: float = 0.3) -> Vector:
    t = np.arange(N)
    jumps = sum(np.where(t >= at, size * (-1) ** i, 0.0) for i, at in enumerate(places))
    return np.asarray(1 - np.exp(-t / 8) + jumps + 0.01 * rng.normal(size=N))


def runs(lag: int | None, n: int = 4) -> list[Trajectory]:
    """Return runs with jumps in the loss, and in topology so many checkpoints before; None: elsewhere."""
    rng, found = np.random.default_rng(5), []
    for i in range(n):
        places = [12 + i, 24 + 2 * i, 40 - i]
        ours = [6 + i, 18, 33 + i] if lag is None else [at - lag for at in places]
        steps = np.arange(N) * 10
        found.append(
            Trajectory(
                run=f"run-{i}", steps=steps, features={NP_MEAN: jumping(ours, rng)},
                targets={"validation_loss": 4 - jumping(places, rng)}, covariates={"step": steps.astype(np.float64)},
                layers={"a": {NP_MEAN.of_group("a"): jumping([9, 20 + i], rng)}}, tokens=steps.astype(np.float64),
            )
        )  # fmt: skip
    return found


def row(table: pl.DataFrame, relation: str) -> dict[str, object]:
    return table.row(by_predicate=_of(relation), named=True)


def _of(relation: str) -> pl.Expr:
    keys = {"group": "network", "target": LOSS, "relation": relation}
    return pl.all_horizontal(*(pl.col(key) == value for key, value in keys.items()))


@pytest.mark.parametrize(("lag", "relation"), [(0, COINCIDE), (3, LEAD), (None, "")])
def test_the_table_finds_what_was_planted_in_series_and_nothing_else(lag: int | None, relation: str) -> None:
    table = transition_table(runs(lag))
    found = {each for each in RELATIONS if row(table, each)["found"] == YES}
    assert found == ({relation} if relation else set())
    assert set(table.filter(group="a")["found"]) != {YES}
    assert row(table, COINCIDE)["n_checkpoints"] == 4 * N


def test_one_short_run_cannot_tell() -> None:
    assert set(transition_table(runs(None, n=1))["found"]) <= {UNKNOWN}
    assert not len(transition_table([]))


def test_efficiency_is_the_loss_gained_per_step_and_per_token_where_they_differ() -> None:
    (run,) = runs(0, n=1)
    gained = efficiency(run)
    assert list(gained) == [PER_STEP]
    loss = run.targets["validation_loss"]
    assert np.isnan(gained[PER_STEP][0])
    np.testing.assert_allclose(gained[PER_STEP][1:] * 10, loss[:-1] - loss[1:])
    run.tokens[:] = run.steps**2
    np.testing.assert_allclose(efficiency(run)[PER_TOKEN][2:] * np.diff(run.tokens)[1:], (loss[:-1] - loss[1:])[1:])


def test_efficiency_against_the_speed_of_neural_persistence_is_a_row_of_the_association() -> None:
    table = association_table(runs(0))
    rows = table.filter(feature=str(NP_SPEED))
    assert rows["target"].to_list() == [PER_STEP] * 4
    assert rows["rho_given_all"].is_finite().all()
    assert set(table.filter(target="validation_loss")["feature"]) == {str(NP_MEAN)}
    assert not paces(Trajectory("empty", np.arange(9), {}, {}, {})).targets
