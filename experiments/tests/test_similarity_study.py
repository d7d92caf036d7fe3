"""Studies that compare stored hidden states: what is compared, and what is compared again."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from diagram_damage import diagram_source
from safetensors.torch import load_file, save_file
from small_runs import small_corpus, some_text
from small_studies import TRAINING, assert_same_study, frame, measurement_ids

from toposcope.analysis.trajectory import trajectories
from toposcope.family import ModelSize, TrainingOptions
from toposcope.models.texts import Text
from toposcope.study import Declaration, Study, run_study
from toposcope.study.declared_runs import DeclaredRun
from toposcope.study.diagrams import read_states
from toposcope.study.kinds import feature_named
from toposcope_experiments.similarity.similarity import linear_cka, procrustes, rtd

STATES: dict[str, Any] = {"name": "hidden_states", "layers": "all", "texts": 4, "length": 12, "keep": 20}
SIMILARITY: dict[str, Any] = {"name": "similarity", "batch_size": 12, "n_batches": 2}


def declared(folder: Path, *, seed: int = 1, keep: int = 20) -> Declaration:
    """A run trained for a few steps, checkpoints at 0, 10, 20 and 30."""
    text = folder / f"read-{seed}.txt"
    text.write_text(some_text(seed=seed)[:2000], encoding="utf-8")
    size = ModelSize(hidden=12, layers=2, heads=2, context=16)
    return Declaration(
        name="states",
        corpus=small_corpus(folder),
        text=Text(source=str(text)),
        training=TrainingOptions(**TRAINING),
        runs=[DeclaredRun(size=size, name="two")],
        probes=[{**STATES, "keep": keep}, SIMILARITY, {"name": "controls"}],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def finished(folder: Path) -> Path:
    """The study, by one worker."""
    assert run_study(declared(folder), folder / "study", workers=1) == {}
    return folder / "study"


def changed_probes(before: dict[tuple[Any, ...], int], after: dict[tuple[Any, ...], int]) -> set[str]:
    """Names of probes of which a row was measured again."""
    return {unit[3] for unit, number in after.items() if before.get(unit) != number}


def test_entries_are_those_of_the_kept_states(finished: Path) -> None:
    states = {
        step: read_states(diagram_source(finished, f"two/step_{step:06d}/hidden_states-")) for step in (0, 10, 20, 30)
    }
    assert {points["network"].shape for points in states.values()} == {(20, 12)}
    rows = frame(finished).filter(probe="similarity", step=30)
    assert set(rows["layer"]) == set(states[30]) == {"hidden.00", "hidden.01", "network"}
    for layer in states[30]:
        statistics = dict(rows.filter(layer=layer).select("statistic", "value").iter_rows())
        pairs = {".previous": (20, layer), ".first": (0, layer)} | {f"@{o}": (30, o) for o in states[30] if o != layer}
        if layer == "network":
            pairs |= {f"@step.{step}": (step, layer) for step in (0, 10, 20)}
        mine = states[30][layer].astype(float)
        names = set()
        for end, (step, other) in pairs.items():
            theirs = states[step][other].astype(float)
            expected = {"cka": linear_cka(mine, theirs), "procrustes": procrustes(mine, theirs)}
            expected["rtd"] = rtd(mine, theirs, batch_size=12, n_batches=2).value
            assert {name: statistics[name + end] for name in expected} == pytest.approx(expected, rel=1e-9, abs=1e-9)
            names |= {f"{name}{end}" for name in expected} | {f"rtd{end}.noise"}
        assert set(statistics) == names


@pytest.mark.slow
def test_any_number_of_workers(finished: Path, folder: Path) -> None:
    assert run_study(declared(folder), folder / "pool", workers=2) == {}
    assert_same_study(finished, folder / "pool")


def test_what_is_read_or_kept_otherwise_is_compared_anew(finished: Path, folder: Path) -> None:
    before, values = measurement_ids(finished), frame(finished)
    for changed in (declared(folder, seed=5), declared(folder, keep=10)):
        assert run_study(changed, finished, workers=1) == {}
        after = measurement_ids(finished)
        assert changed_probes(before, after) == {"hidden_states", "similarity"}
        before = after
    # Back again: the first numbers, to the last bit.
    assert run_study(declared(folder), finished, workers=1) == {}
    assert frame(finished).equals(values)


def test_states_that_are_not_finite_are_compared_with_none(finished: Path, folder: Path) -> None:
    (path,) = (finished / "runs/two/checkpoints").glob("*10.safetensors")
    weights = load_file(path)
    bad = {name: np.nan * w if w.ndim == 1 else w for name, w in weights.items()}
    save_file(bad, path)
    run_study(declared(folder), finished, workers=1)
    rows = frame(finished).filter(probe="similarity", step=30, layer="network")
    names = rows["statistic"].to_list()
    assert {"cka.first", "cka.previous", "cka@step.0"} <= set(names)
    assert not [name for name in names if name.endswith("@step.10")]
    assert np.isfinite(rows["value"].to_numpy()).all()


def test_the_scale_and_the_kinds_of_what_is_compared(finished: Path) -> None:
    study = Study.load(finished)
    (found,) = trajectories(study.frame(), study.labels(), study.log())
    divergence = feature_named("similarity:batch_size=12,n_batches=2 rtd.previous")
    assert found.scale(divergence) == feature_named("hidden_states:layers=all,texts=4,length=12 top_eigenvalue")
    kinds = {
        name: feature_named(f"similarity {name}").kind for name in ("rtd.first", "cka.previous", "procrustes.first")
    }
    assert kinds == {"rtd.first": "topology", "cka.previous": "control", "procrustes.first": "control"}
    assert not [feature for feature in found.features if "@" in feature.statistic]
    assert pl.Series(found.features[divergence]).is_finite().any()
