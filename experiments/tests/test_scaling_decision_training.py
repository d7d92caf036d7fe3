"""The trainings of the scaling decision against runs trained alone, after kills, and with more workers."""

from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

pytest.importorskip("torch")

from toposcope.family import FamilyRun, prepare, train
from toposcope_experiments.scaling_decision.design import (
    CONDITIONS,
    FURTHER,
    Condition,
    Design,
    Pair,
    cooling_from,
    corpus_of,
    quick_design,
    step_at,
)
from toposcope_experiments.scaling_decision.training import PackTrainer, train_pack

SMALL = Design((Condition(0.003, 4, "docs"), Condition(0.006, 4, "docs", 0.1, 2.0)), (Pair(4, 8, 1.2e9, 2),))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "docs.safetensors"
    prepare(corpus_of("docs"), path)
    return path


def test_the_design_is_the_plan() -> None:
    design = Design()
    assert len({each.name for each in CONDITIONS}) == len(CONDITIONS) == 25
    for pair in design.pairs:
        packs = design.packs(pair)
        for width in (pair.small, pair.large):
            seeds = [run.training.seed for pack in packs if pack.width == width for run in pack.runs()]
            assert len(set(seeds)) == len(seeds) == 50
        looks = next(pack.looks for pack in packs if (pack.width, pack.batch) == (pair.small, 8))
        ends = next(pack.ends for pack in packs if (pack.width, pack.batch) == (pair.small, 2))
        for k, compute in enumerate(pair.computes):
            reached = [step_at(compute * (1 + more), pair.small, 2) for more in FURTHER]
            # on the grid of the computes themselves
            assert set(reached) <= set(ends)
            assert reached[:2] == [step_at(later, pair.small, 2) for later in pair.computes[k + 1 : k + 3]] or k > 7
            assert step_at(compute / 4, pair.small, 8) in looks
    quick = quick_design()
    assert sum(pack.flops for pair in quick.pairs for pack in quick.packs(pair)) < 3e12


def test_cool_downs_are_those_of_a_run_trained_alone(corpus: Path, tmp_path: Path) -> None:
    """Weights of the trunk and each cooled loss are those of `train` with the schedule wsd, but for rounding."""
    pack = next(pack for pack in SMALL.packs(SMALL.pairs[0]) if pack.width == 4)
    found = train_pack((pack, corpus, tmp_path / "packs"))
    for number, run in enumerate(pack.runs()):
        for end in (pack.ends[0], pack.ends[-1]):
            decay = end - cooling_from(end)
            options = {"steps": end, "schedule": "wsd", "decay_steps": decay, "final_learning_rate": 0.0}
            alone = FamilyRun(
                name="alone",
                size=run.size,
                corpus=run.corpus,
                training=msgspec.structs.replace(run.training, **options),
            )
            folder = tmp_path / f"{number}-{end}"
            train(alone, corpus, folder)
            log = pl.read_csv(folder / "log.csv")
            assert log["validation_loss"][-1] == pytest.approx(found.cooled[end][number], abs=2e-4)


def test_a_killed_pack_ends_in_the_same_numbers(corpus: Path, tmp_path: Path) -> None:
    pack = next(pack for pack in SMALL.packs(SMALL.pairs[0]) if pack.width == 4)
    whole = train_pack((pack, corpus, tmp_path / "whole"))
    calls = 0

    class Killed(PackTrainer):
        def measure(self, place: int) -> None:
            nonlocal calls
            calls += 1
            if calls == 7:
                raise KeyboardInterrupt
            super().measure(place)

    with pytest.raises(KeyboardInterrupt):
        Killed(pack, corpus, tmp_path / "killed").train()
    again = train_pack((pack, corpus, tmp_path / "killed"))
    assert again.cooled == whole.cooled
    np.testing.assert_array_equal(again.trunk, whole.trunk)
    np.testing.assert_array_equal(again.gradient_norm, whole.gradient_norm)
    weights = [sorted(folder.glob("weights/*")) for folder in (tmp_path / "whole", tmp_path / "killed")]
    assert weights[0]
    for one, other in zip(*weights, strict=True):
        assert one.read_bytes() == other.read_bytes()
