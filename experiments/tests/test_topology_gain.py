"""Topology gain: what topology carries is found, what it does not carry is not, and nothing is looked at early."""

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.stats import wilcoxon
from sklearn.decomposition import PCA
from small_family import small_family

from toposcope.analysis.permutations import sign_flip
from toposcope.extend import COOLDOWN
from toposcope.forecasting.forecaster import LoggedRun
from toposcope.forecasting.forecasters.stack import Stack
from toposcope.forecasting.siblings import complete_runs
from toposcope.logs import Run
from toposcope.study import Study
from toposcope_experiments.topology_gain.gain import (
    BOTH,
    NORMS,
    PLAIN,
    TOPOLOGY,
    FractionResult,
    compare_with_norms,
    measure_gain,
    of_fraction,
    predict_fold,
    reduced,
    topology_gain,
)
from toposcope_experiments.topology_gain.held_out import Fold, HeldOut, configuration, hold_out_each
from toposcope_experiments.topology_gain.study_features import FeatureBlocks

Simulated = tuple[list[Fold], FeatureBlocks]


def simulated(seed: int, n_sizes: int = 4, n_rates: int = 4, *, carried: float = 0.0, bent: bool = False) -> Simulated:
    """Make a population of one run a configuration, whose end depends on its size, its rate and a hidden cause.

    Topology is 40 columns of size, rate and noise; `carried` is how much of the hidden cause half of them hold. Where
    the end is `bent` in the size, so is topology, and the stack, which knows log N, cannot tell it by itself.
    """
    rng = np.random.default_rng(seed)
    size, rate = (values.ravel() for values in np.meshgrid(np.linspace(-1, 1, n_sizes), np.linspace(-1, 1, n_rates)))
    n = len(size)
    hidden = rng.permutation(np.linspace(-1.7, 1.7, n))
    bend = size**2 if bent else 0 * size
    target = 0.03 * size - 0.02 * rate + 0.05 * (bend if bent else hidden) + rng.normal(0, 0.01, n)
    known = np.column_stack([size, rate, bend])
    rows = np.column_stack([size, rate, known[:, :2] @ rng.normal(size=(2, 6)) + rng.normal(0, 0.3, (n, 6))])
    norms = known[:, :2] @ rng.normal(size=(2, 6)) + rng.normal(0, 0.5, (n, 6))
    topology = known @ rng.normal(size=(3, 40)) + rng.normal(0, 0.5, (n, 40))
    topology[:, :20] += carried * hidden[:, None]
    final = np.exp(1 - 0.1 * size)
    base = final * np.exp(-target)
    names = tuple(f"run-{i}" for i in range(n))
    folds = []
    for i in range(n):
        learned = np.delete(np.arange(n), i)
        folds.append(
            Fold(
                family="made",
                group=names[i],
                size=size[i],
                learned=learned,
                rows=rows[learned],
                target=target[learned],
                groups=tuple(names[j] for j in learned),
                held_out=np.array([i]),
                held_out_rows=rows[[i]],
                base=base[[i]],
                final=final[[i]],
                laws=({},),
            )
        )
    columns = tuple(f"column {i}" for i in range(46))
    return folds, FeatureBlocks(names, 0.3, columns, norms, topology, ())


def part(folds: list[Fold], block: FeatureBlocks, draws: int) -> FractionResult:
    return of_fraction(HeldOut(tuple(folds), len(folds), ()), block, draws)


@pytest.mark.slow
def test_what_topology_carries_is_found() -> None:
    folds, block = simulated(1, carried=1.0)
    found = compare_with_norms([part(folds, block, draws=1)])
    row = found.errors.row(by_predicate=pl.col("forecaster") == BOTH, named=True)
    assert row["n_groups"] == 16
    assert row["skill"] > 0.3
    assert row["p_adjusted"] < 0.01
    assert row["skill_low"] > 0
    begin = "Topology says more about the final loss than the laws and the norms: over 16 groups"
    assert found.verdict().startswith(begin)
    assert found.placebos["n_as_good"].to_list() == [0, 0, 0]


def test_what_it_does_not_carry_is_not() -> None:
    folds, block = simulated(2)
    found = compare_with_norms([part(folds, block, draws=0)])
    begin = "Nothing found: topology says no more about the final loss than the laws and the norms: over 16 groups"
    assert found.verdict().startswith(begin)


@pytest.mark.slow
def test_a_gain_of_the_size_alone_is_not_topologys_own() -> None:
    folds, block = simulated(4, bent=True)
    found = compare_with_norms([part(folds, block, draws=2)])
    assert found.verdict().startswith("Topology goes with the final loss, but says no more about it than a placebo")
    as_good = dict(found.placebos.select("placebo", "n_as_good").iter_rows())
    assert as_good["another run's, of its size"] > 0
    assert as_good["random numbers"] == 0


def test_skill_and_p_by_hand() -> None:
    folds, block = simulated(6, 3, 3, carried=0.5)
    found = compare_with_norms([part(folds, block, draws=0), part(folds, with_fraction(block, 0.5), draws=0)])
    early = found.forecasts.filter(fraction=0.3)
    errors = {
        name: np.abs(part["predicted"].to_numpy() - part["final"].to_numpy())
        for (name,), part in early.group_by("forecaster", maintain_order=True)
    }
    rows = {row["forecaster"]: row for row in found.errors.filter(fraction=0.3).iter_rows(named=True)}
    for name in (PLAIN, TOPOLOGY, BOTH):
        assert rows[name]["mae"] == pytest.approx(errors[name].mean())
        assert rows[name]["skill"] == pytest.approx(1 - errors[name].mean() / errors[NORMS].mean())
        assert rows[name]["p_wilcoxon"] == pytest.approx(wilcoxon(errors[name], errors[NORMS]).pvalue)
    # Holm over two stacks at two fractions, which are equal: in pairs 4p, 4p (the lower raised), 2p, 2p
    low, high = sorted((rows[TOPOLOGY]["p"], rows[BOTH]["p"]))
    expected = [min(1, 4 * low), min(1, max(4 * low, 2 * high))]
    assert sorted(rows[name]["p_adjusted"] for name in (TOPOLOGY, BOTH)) == pytest.approx(expected)
    assert rows[PLAIN]["p_adjusted"] is None


def with_fraction(block: FeatureBlocks, fraction: float) -> FeatureBlocks:
    return dataclasses.replace(block, fraction=fraction)


@pytest.mark.slow
def test_nothing_is_learned_from_what_is_held_out() -> None:
    """Neither the end nor the features of a run have a part in forecasts of the others' scales and directions."""
    folds, block = simulated(7, 3, 3, carried=1.0)
    learned = folds[0].learned
    changed = block.topology.copy()
    changed[0] += 100
    assert np.array_equal(reduced(block.topology, learned)[learned], reduced(changed, learned)[learned])
    assert np.abs(reduced(changed, learned)[0]).max() < 40  # 3 standard deviations in each of 40 columns, at most
    ends = [dataclasses.replace(folds[0], final=folds[0].final * 2), *folds[1:]]
    first, second = (part(each, block, draws=0).forecasts for each in (folds, ends))
    assert first["predicted"].equals(second["predicted"])


def test_components_are_those_of_an_independent_analysis() -> None:
    rng = np.random.default_rng(8)
    table = rng.normal(size=(30, 4)) @ rng.normal(size=(4, 9))
    learned = np.arange(25)
    z = (table - table[learned].mean(axis=0)) / table[learned].std(axis=0)
    assert np.abs(z).max() < 3  # nothing is cut off
    expected = PCA(4).fit(z[learned]).transform(z)
    ours = reduced(table, learned)
    assert ours.shape == (30, 5)  # one for every 5 learned from; the fifth is 0, as there are four causes
    assert np.abs(ours[:, 4]).max() < 1e-8
    assert np.abs(ours[:, :4]) == pytest.approx(np.abs(expected), abs=1e-8)
    assert reduced(table[:, :0], learned).shape == (30, 0)


# ---- runs ---------------------------------------------------------------------------------------------------------


def run(size: float, peak: float, seed: int, end: float = 2.0) -> Run:
    """Return the log of a run on a cosine."""
    rng = np.random.default_rng(seed)
    steps = np.arange(0, 401, 8)
    loss = end + 3 * (steps + 20.0) ** -0.4 - np.log(size) / 20 + rng.normal(0, 1e-3, len(steps))
    rates = peak * (0.505 + 0.495 * np.cos(np.pi * steps / 400))
    name = f"{size:.0f}-{peak}-{seed}"
    return Run(name, steps, loss, rates, 400, size, family="made", schedule="cosine")


@pytest.fixture(scope="module")
def runs() -> tuple[LoggedRun, ...]:
    logs = [run(size, peak, seed) for size in (1e4, 3e4, 1e5) for peak in (1e-3, 3e-3) for seed in (1, 2)]
    return complete_runs(logs).runs


def block_of(runs: tuple[LoggedRun, ...]) -> FeatureBlocks:
    rng = np.random.default_rng(9)
    names = tuple(run.log.name for run in runs)
    return FeatureBlocks(
        names, 0.3, ("a", "b", "c"), rng.normal(size=(len(names), 1)), rng.normal(size=(len(names), 2)), ()
    )


def test_seeds_of_a_configuration_are_held_out_together(runs: tuple[LoggedRun, ...]) -> None:
    block = block_of(runs)
    folds, n_groups, notes = hold_out_each(runs, block)
    assert n_groups == 6
    assert len({configuration(run) for run in runs}) == len(folds) == 6
    assert not notes
    for fold in folds:
        held = [block.runs[i] for i in fold.held_out]
        assert len(held) == 2
        assert len({name.rpartition("-")[0] for name in held}) == 1
        assert not set(fold.learned) & set(fold.held_out)
        assert len(fold.learned) == len(fold.rows) == 10
        assert len(set(fold.groups)) == 5
        assert fold.group not in fold.groups


def test_a_fold_is_told_what_the_stack_is_told(runs: tuple[LoggedRun, ...]) -> None:
    """With one configuration a size, the plain stack of a fold is the stack that leaves sizes out."""
    alone = tuple(run for run in runs if run.schedule.peak < 2e-3)
    more = complete_runs([run(size, 1e-3, seed) for size in (2e4, 6e4) for seed in (1, 2)]).runs
    alone += more
    predicted = of_fraction(hold_out_each(alone, block_of(alone)), block_of(alone), draws=0).forecasts.filter(
        forecaster=PLAIN
    )
    for row in predicted.iter_rows(named=True):
        one = next(r for r in alone if r.log.name == row["run"])
        seen = one.seen(0.3)
        assert seen is not None
        others = [r for r in alone if r.size != one.size]
        assert Stack().fit(seen, one.schedule, others).loss == pytest.approx(row["predicted"], rel=1e-9)


@pytest.mark.slow
def test_chance_of_runs(runs: tuple[LoggedRun, ...]) -> None:
    stranger = dataclasses.replace(run(5e4, 1e-3, 3), name="stranger", family="other")
    everyone = (*runs, *complete_runs([stranger]).runs)
    found = measure_gain(everyone, [block_of(everyone)], ["a remark"], draws=1, workers=1)
    assert found.notes[0] == "a remark"
    assert "stranger is left out: it is not of the family 'made' in nats." in found.notes
    assert "only 6 groups" in found.verdict()
    assert set(found.errors["forecaster"]) >= {
        COOLDOWN.name,
        "last",
        "power_law",
        "annealing",
        PLAIN,
        NORMS,
        TOPOLOGY,
        BOTH,
    }
    assert set(found.errors["n"]) == {12}
    assert len(found.placebos) == 3
    again = measure_gain(everyone, [block_of(everyone)], ["a remark"], draws=1, workers=1)
    assert again.placebos.equals(found.placebos)
    assert again.errors.equals(found.errors)


def test_too_few_runs_are_told(runs: tuple[LoggedRun, ...]) -> None:
    few = runs[:5]
    found = measure_gain(few, [block_of(few)], workers=1)
    begin = "Whether topology says more about the final loss than the laws and the norms cannot be told: "
    assert found.verdict() == f"{begin}only 3 groups to hold out; 15 are needed."
    assert "no forecast at 30%: fewer than 8 other runs" in " ".join(found.notes)
    assert measure_gain([], [block_of(())], workers=1).errors.is_empty()


def added_to_norms(folds: list[Fold], block: FeatureBlocks) -> tuple[float, float]:
    """Return skill and p of topology added to the norms."""
    ours, base = (
        np.concatenate([np.abs(predict_fold(fold, block.norms, table) - fold.final) for fold in folds])
        for table in (block.topology, block.topology[:, :0])
    )
    return float(1 - ours.sum() / base.sum()), sign_flip(ours - base)


@pytest.mark.slow
@pytest.mark.parametrize("of_norms", [False, True])
def test_false_positives_are_rare(of_norms: bool) -> None:
    """Of 100 populations of 16 in which topology carries what is known anyway, few are said to gain by it."""
    gains = 0
    for seed in range(100):
        folds, block = simulated(1000 + seed)
        if of_norms:
            rng = np.random.default_rng(seed)
            blurred = block.norms @ rng.normal(size=(6, 40)) + rng.normal(0, 1, (16, 40))
            block = dataclasses.replace(block, topology=blurred)
        skill, p = added_to_norms(folds, block)
        gains += skill > 0 and p < 0.05
    assert gains <= 8  # half of .05 of 100 is 2.5; more than 8 would come about once in 1,000 times


@pytest.mark.slow
def test_what_is_carried_is_nearly_always_found() -> None:
    found = [added_to_norms(*simulated(1000 + seed, carried=1.0)) for seed in range(40)]
    assert sum(skill > 0 and p < 0.05 for skill, p in found) >= 38


@pytest.mark.slow
def test_three_runs_tell_nothing_of_topology(tmp_path: Path) -> None:
    found = topology_gain(Study.load(small_family(tmp_path, "neural_persistence", "controls", steps=60)), workers=1)
    assert found.verdict().endswith("cannot be told: only 3 groups to hold out; 15 are needed.")
    assert len(found.notes) > 0
    assert found.errors.is_empty()
