"""Feature blocks of a study: what is in them, and that nothing after the fraction is looked at."""

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl
import pytest
from diagram_damage import change_diagrams
from named_features import by_feature, by_group
from small_family import small_family

from toposcope.analysis.trajectory import Trajectory
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram
from toposcope.study import Study
from toposcope.study.diagrams import diagram_file
from toposcope.study.kinds import feature_named
from toposcope_experiments.topology_gain.study_features import FRACTIONS, FeatureBlocks, feature_blocks, study_features

K = TypeVar("K")
H0 = feature_named("rips H0.total")
STEPS = np.array([0, 10, 20, 40, 80, 100])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Three small runs, measured."""
    folder = tmp_path_factory.mktemp("features")
    return Study.load(small_family(folder, "neural_persistence", "rips", "controls", "clustering"))


@pytest.fixture(scope="module")
def blocks(study: Study) -> list[FeatureBlocks]:
    return study_features(study)


def column(block: FeatureBlocks, name: str) -> list[float]:
    values: np.ndarray = np.hstack([block.norms, block.topology])[:, block.names.index(name)]
    return [float(value) for value in values]


def test_blocks_are_whole(blocks: list[FeatureBlocks]) -> None:
    assert [block.fraction for block in blocks] == list(FRACTIONS)
    for block in blocks:
        assert block.runs == ("run-6", "run-8", "run-10")
        p, q = block.norms.shape[1], block.topology.shape[1]
        assert block.norms.shape == (3, p)
        assert block.topology.shape == (3, q)
        assert len(block.names) == len(set(block.names)) == p + q
        assert np.isfinite(block.norms).all()
        assert np.isfinite(block.topology).all()
        assert (np.ptp(block.norms, axis=0) > 0).all()
        assert (np.ptp(block.topology, axis=0) > 0).all()
        norms = {f"{name} level" for name in ("weight_norm", "grad_norm_mean", "grad_norm_std")} | {"weight_norm rate"}
        if block.fraction > 0.1:  # until then there is one checkpoint with steps before it
            norms |= {"grad_norm_mean rate", "grad_norm_std rate"}
        assert set(block.names[:p]) == norms
        wanted = {"neural_persistence np_normalized level", "rips H0.total rate", "rips H0.total scale-free level"}
        wanted |= {"rips H0 image 1", "rips H0 landscape 4", "neural_persistence NP image 2"}
        assert wanted <= set(block.names[p:])
        assert not [name for name in block.names[p:] if name.startswith(("controls", "clustering", "log"))]


def test_levels_are_those_of_the_last_checkpoint_seen(study: Study, blocks: list[FeatureBlocks]) -> None:
    frame = study.frame().filter(layer="network", probe="neural_persistence", statistic="np_mean")
    for block, step in zip(blocks, (3, 6, 9, 15, 21), strict=True):
        measured = frame.filter(step=step).get_column("value").to_list()
        assert column(block, "neural_persistence np_mean level") == measured


def test_images_hold_the_whole_persistence_of_a_point(blocks: list[FeatureBlocks]) -> None:
    for block in blocks:
        persistence = column(block, "neural_persistence np_mean level")
        image = [column(block, f"neural_persistence NP image {i}") for i in range(4) if _told(block, i)]
        assert np.sum(image, axis=0) == pytest.approx(persistence, abs=1e-5)
        h0 = [column(block, f"rips H0 image {i}") for i in range(4)]
        assert np.sum(h0, axis=0) == pytest.approx(np.ones(3), abs=1e-5)  # in units of the mean lifetime


def _told(block: FeatureBlocks, i: int) -> bool:
    return f"neural_persistence NP image {i}" in block.names


def test_a_damaged_diagram_is_an_error_and_one_after_the_fraction_is_not_read(study: Study, tmp_path: Path) -> None:
    probe = study.declaration.resolved_probes()[1]
    late, early = (diagram_file("run-8", step, probe) for step in (24, 9))
    shutil.copytree(study.directory, tmp_path / "study")
    study = Study.load(tmp_path / "study")
    change_diagrams(study.directory, late, lambda _: b"damaged")
    assert len(study_features(study)) == len(FRACTIONS)
    change_diagrams(study.directory, early, lambda _: b"damaged")
    with pytest.raises(ToposcopeError, match=r"diagrams damaged"):
        study_features(study)


# ---- made-up runs -------------------------------------------------------------------------------------------------


def made(run: str, seed: int, **features: np.ndarray) -> Trajectory:
    draw = np.random.default_rng(seed)
    known = {"rips H0.total": draw.normal(size=6), "rips:pooled=true H1.max": draw.normal(size=6)}
    known |= {"controls mean": draw.normal(size=6), "log grad_norm_mean": draw.normal(size=6), **features}
    twins = {"network": {"rips H0.total": draw.normal(size=6), "rips H0.total.noise": draw.normal(size=6)}}
    covariates = {"weight_norm": draw.normal(size=6)}
    return Trajectory(run, STEPS, by_feature(known), {}, covariates, twins=by_group(twins))


def runs_of(found: list[Trajectory]) -> pl.DataFrame:
    return pl.DataFrame({"run": [t.run for t in found], "status": "complete", "last_step": 100})


def diagrams(run: str, step: int) -> dict[str, dict[str, dict[str, Diagram]]]:
    """Two layers of three points; of each run its own."""
    assert step <= 50, "a later checkpoint was read"
    draw = np.random.default_rng([ord(run[0]), step])

    def layer() -> dict[str, Diagram]:
        deaths = np.sort(draw.uniform(0.5, 1.5, 3))
        return {"H0": Diagram(np.column_stack([np.zeros(3), deaths]), 0), "H1": Diagram(np.array([[1.0, 1.4]]), 1)}

    return {"rips": {"a": layer(), "b": layer()}}


def without_diagrams(run: str, step: int) -> dict[str, Mapping[str, Mapping[str, Diagram]]]:
    return {}


def block_of(found: list[Trajectory], fraction: float = 0.5) -> FeatureBlocks:
    return feature_blocks(found, runs_of(found), diagrams, fraction)


def test_nothing_after_the_fraction_is_looked_at() -> None:
    found = [made(name, i) for i, name in enumerate("abc")]
    before = block_of(found)
    later = STEPS > 50

    def changed(values: Mapping[K, np.ndarray]) -> dict[K, np.ndarray]:
        return {name: np.where(later, np.nan, v) for name, v in values.items()}

    others = [
        dataclasses.replace(
            t,
            features=changed(t.features),
            covariates=changed(t.covariates),
            twins={k: changed(v) for k, v in t.twins.items()},
        )
        for t in found
    ]
    after = block_of(others)
    assert after.names == before.names
    assert np.array_equal(after.norms, before.norms)
    assert np.array_equal(after.topology, before.topology)


def test_levels_and_rates_by_hand() -> None:
    total = np.array([1.0, 3.0, np.nan, 5.0, 90.0, 90.0])
    found = [made("a", 1, **{"rips H0.total": total}), made("b", 2)]
    block = block_of(found)
    assert column(block, "rips H0.total level")[0] == 5.0
    x, y = np.log1p([0, 10, 40]), np.array([1.0, 3.0, 5.0])
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    assert column(block, "rips H0.total rate")[0] == pytest.approx(slope)
    assert column(block, "rips H0.total scale-free level") == [t.twins["network"][H0][3] for t in found]
    assert "rips H0.total.noise scale-free level" not in block.names
    assert column(block, "weight_norm level") == [t.covariates["weight_norm"][3] for t in found]
    assert not [name for name in block.names if name.startswith("controls")]


def test_scale_and_number_of_points_do_not_move_an_image() -> None:
    def doubled(run: str, step: int) -> dict[str, dict[str, dict[str, Diagram]]]:
        """Everything twice as long, and every point twice."""
        return {
            label: {
                layer: {n: Diagram(2 * np.repeat(d.pairs, 2, axis=0), d.dimension) for n, d in named.items()}
                for layer, named in by_layer.items()
            }
            for label, by_layer in diagrams(run, step).items()
        }

    found = [made(name, i) for i, name in enumerate("abc")]
    first, second = (feature_blocks(found, runs_of(found), read, 0.5) for read in (diagrams, doubled))
    images = [name for name in first.names if " image " in name]
    assert len(images) > 4
    for name in images:
        assert column(second, name) == pytest.approx(column(first, name), abs=1e-6)


def test_what_is_not_known_of_every_run_is_left_out_and_told() -> None:
    odd = made("odd", 3, **{"rips H1.total": np.arange(6.0), "rips H0.count": np.full(6, 4.0)})
    same = made("same", 4, **{"rips H0.count": np.full(6, 4.0)})
    bare = Trajectory("bare", STEPS, by_feature({"controls mean": np.ones(6)}), {}, {"weight_norm": np.ones(6)})
    late = Trajectory("late", np.array([0, 90, 100]), {}, {}, {})
    found = [odd, same, bare, late]
    block = feature_blocks(found, runs_of(found), lambda run, step: {} if run == "bare" else diagrams(run, step), 0.5)
    assert block.runs == ("odd", "same")
    assert "rips H1.total level" not in block.names
    assert "rips H0.count level" not in block.names
    notes = " ".join(block.notes)
    assert "bare is left out: nothing topological" in notes
    assert "late is left out: it has fewer than 2 checkpoints in its first 50%" in notes
    assert "not known of every run: rips H1.total level, rips H1.total rate" in notes
    assert "the same in every run: rips H0.count level" in notes


def test_runs_that_did_not_end_are_left_out() -> None:
    found = [made("a", 1), made("b", 2)]
    runs = runs_of(found).with_columns(status=pl.Series(["complete", "running"]))
    block = feature_blocks(found, runs, without_diagrams, 0.5)
    assert block.runs == ("a",)
    assert block.topology.shape == (1, 0)  # of one run everything is the same in every run
    nothing = feature_blocks([], runs, without_diagrams, 0.5)
    assert (nothing.runs, nothing.norms.shape, nothing.topology.shape) == ((), (0, 0), (0, 0))
