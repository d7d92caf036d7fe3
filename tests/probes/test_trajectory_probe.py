"""The path of a run as the probe measures it, against NumPy on all weights at once."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from property_examples import examples
from small_studies import (
    CONTROLS,
    assert_same_study,
    checkpoint_file,
    family_study,
    frame,
    measurement_ids,
    series_study,
    some_weights,
    write_series,
    write_weights,
)

import toposcope as ts
from toposcope.checkpoints import Layer
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.errors import ToposcopeError
from toposcope.homology import ph_dimension, random_walk_shares
from toposcope.probes import Failure, Measurement, ProbeInput, trajectory
from toposcope.probes.feature import NETWORK
from toposcope.probes.probe import Weights
from toposcope.probes.trajectory import ALPHA_TOO_LARGE, DISTANCE, INFINITE, TrajectoryProbe
from toposcope.study import run_study

TRAJECTORY: dict[str, Any] = {"name": "trajectory"}
moderate = examples(40)


def points_of(spec: Path) -> np.ndarray:
    """All analysed weights of every checkpoint, one long row each."""
    return np.array(
        [np.concatenate([layer.matrix().ravel().astype(np.float64) for layer in c.analysed()]) for c in ts.series(spec)]
    )


def path_of(found: pl.DataFrame, step: int) -> dict[str, float]:
    rows = found.filter(pl.col("probe") == "trajectory", pl.col("step") == step, pl.col("layer") == NETWORK)
    return dict(rows.select("statistic", "value").iter_rows())


def by_hand(points: np.ndarray, steps: list[int]) -> dict[str, float]:
    """The statistics of a path, from its points."""
    moves = np.diff(points, axis=0)
    norms = np.linalg.norm(moves, axis=1)
    displacement = float(np.linalg.norm(points[-1] - points[0]))
    expected = {"n_checkpoints": len(points), "path_length": norms.sum(), "displacement": displacement}
    expected |= {f"{DISTANCE}{s}": np.linalg.norm(points[-1] - p) for s, p in zip(steps[:-1], points[:-1], strict=True)}
    if len(points) > 1:
        expected |= {"step_length": norms[-1], "straightness": displacement / norms.sum()}
    if len(points) > 2:
        expected["step_cosine"] = moves[-1] @ moves[-2] / norms[-1] / norms[-2]
        variances = np.linalg.svd(points - points.mean(axis=0), compute_uv=False) ** 2
        n = len(points)
        sums = np.vstack([np.zeros(n - 1), np.tril(np.ones((n - 1, n - 1))) * norms])
        walked = np.linalg.svd(sums - sums.mean(axis=0), compute_uv=False) ** 2
        for k in range(2):
            expected[f"pc{k + 1}.share"] = variances[k] / variances.sum()
            expected[f"pc{k + 1}@walk"] = random_walk_shares(n)[k]
            expected[f"pc{k + 1}@walk_same_steps"] = walked[k] / walked.sum()
    return expected


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of a run of 20 checkpoints of the family."""
    folder = tmp_path_factory.mktemp("trained")
    declared = family_study(folder, ["run"], [CONTROLS, TRAJECTORY], steps=38, checkpoint_every=2)
    assert run_study(declared, folder / "study", workers=1) == {}
    return folder / "study"


def test_a_run_of_twenty_checkpoints(trained: Path) -> None:
    found, points = frame(trained), points_of(trained / "runs/run")
    steps = found["step"].unique().sort().to_list()
    assert len(steps) == len(points) == 20
    for i, step in enumerate(steps):
        statistics = path_of(found, step)
        assert statistics == pytest.approx(by_hand(points[: i + 1], steps[: i + 1]), rel=1e-9, abs=1e-9), step
    kinds = dict(found.filter(probe="trajectory").select("statistic", "kind").unique().iter_rows())
    assert {kinds[n] for n in ("path_length", "displacement", "straightness", "step_cosine")} == {"norm"}
    assert {kind for name, kind in kinds.items() if name.startswith("pc")} == {"spectrum"}


def test_any_number_of_workers_and_a_second_run_give_the_same(tmp_path: Path) -> None:
    steps = [0, 1, 2, 4, 8, 16]
    series = write_series(tmp_path / "series", steps)
    whole = series_study(series, [TRAJECTORY])
    assert run_study(whole, tmp_path / "one", workers=1) == {}
    assert run_study(whole, tmp_path / "two", workers=2) == {}
    assert run_study(series_study(series, [TRAJECTORY], steps=steps[:3]), tmp_path / "later", workers=1) == {}
    known = measurement_ids(tmp_path / "later")
    trajectory._known.clear()  # as in another process
    assert run_study(whole, tmp_path / "later", workers=1) == {}
    assert known.items() <= measurement_ids(tmp_path / "later").items()  # nothing is measured again
    for other in ("two", "later"):
        assert frame(tmp_path / other).rows() == frame(tmp_path / "one").rows()
    assert run_study(whole, tmp_path / "later", workers=1) == {}
    assert_same_study(tmp_path / "later", tmp_path / "later")


def test_an_earlier_checkpoint_that_changes_is_measured_again_wherever_it_counts(tmp_path: Path) -> None:
    series = write_series(tmp_path / "series", [0, 1, 2, 3])
    declared = series_study(series, [TRAJECTORY])
    run_study(declared, tmp_path / "study", workers=1)
    before = frame(tmp_path / "study")
    write_weights(checkpoint_file(series, 1), some_weights(77))
    run_study(declared, tmp_path / "study", workers=1)
    after = frame(tmp_path / "study")
    assert path_of(after, 0) == path_of(before, 0)
    for i, step in enumerate((1, 2, 3), 2):
        expected = by_hand(points_of(series)[:i], [0, 1, 2, 3][:i])
        assert path_of(after, step) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_checkpoint_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    series = write_series(tmp_path / "series", [0, 1, 2, 3])
    weights = some_weights(1)
    weights["layers.0.mlp.fc1.weight"][2, 3] = float("nan")
    write_weights(checkpoint_file(series, 1), weights)
    errors = run_study(series_study(series, [TRAJECTORY]), tmp_path / "study", workers=1)
    ((unit, message),) = errors.items()
    assert unit.step == 1
    assert "layers.0.mlp.fc1.weight" in message
    assert "\n" not in message
    points = points_of(series)[[0, 2, 3]]
    assert path_of(frame(tmp_path / "study"), 3) == pytest.approx(by_hand(points, [0, 2, 3]), rel=1e-9, abs=1e-9)


def test_checkpoints_of_different_models_have_no_path(tmp_path: Path) -> None:
    series = write_series(tmp_path / "series", [0, 1])
    wider = some_weights(1, {"token_emb.weight": (20, 6), "layers.0.mlp.fc1.weight": (15, 6)})
    write_weights(checkpoint_file(series, 1), wider)
    ((_, message),) = run_study(series_study(series, [TRAJECTORY]), tmp_path / "study", workers=1).items()
    assert "another checkpoint of the run" in message
    assert "step_000001" in message or "step_000000" in message


# The dimension


def subject(points: np.ndarray, opened: Callable[[int], None] = lambda i: None) -> ProbeInput:
    """The last of some points as a checkpoint of one layer of one row."""

    def layers(i: int) -> dict[str, Layer]:
        opened(i)
        tensor = torch.from_numpy(points[i : i + 1])
        return {"fc.weight": Layer("fc.weight", "mlp.in", False, f"step {i}", in_memory("fc.weight", tensor))}

    last = len(points) - 1
    content = [row.tobytes().hex() for row in points]
    return ProbeInput(
        list(layers(last).values()),
        frozenset([NETWORK]),
        content=content[last],
        earlier={i: Weights(content[i], lambda i=i: layers(i)) for i in range(last)},  # type: ignore[misc]
        step=last,
    )


def measured(points: np.ndarray, **options: Any) -> Measurement:
    (result,) = TrajectoryProbe(**options).measure(subject(points))
    assert isinstance(result, Measurement), result
    return result


def test_the_dimension_of_the_last_checkpoints() -> None:
    walk = np.cumsum(np.random.default_rng(0).normal(size=(64, 300)), axis=0)
    statistics = measured(walk, window=60, seed=3).statistics
    expected = ph_dimension(walk[-60:], seed=3)
    assert statistics["ph_dimension"] == pytest.approx(expected.dimension, rel=1e-9)
    assert statistics["ph_dimension.noise"] == pytest.approx(expected.estimates[0].standard_error, rel=1e-9)
    ends = statistics["ph_dimension@low"], statistics["ph_dimension@high"]
    assert ends == pytest.approx(expected.interval, rel=1e-9)
    assert ends[0] < statistics["ph_dimension"] < ends[1]
    assert TrajectoryProbe.kind("ph_dimension") == "topology"


def test_too_few_checkpoints_have_no_dimension() -> None:
    walk = np.cumsum(np.random.default_rng(0).normal(size=(50, 10)), axis=0)
    assert "ph_dimension" in measured(walk).statistics
    assert not [name for name in measured(walk[:49]).statistics if name.startswith("ph_dimension")]


def test_a_dimension_that_the_theory_does_not_cover_is_flagged() -> None:
    """Of two places, however many points, the tree has one edge: dimension 1, which alpha = 1 is not below."""
    found = measured(np.arange(50.0)[:, None] % 2)
    assert found.statistics["ph_dimension"] == pytest.approx(1)
    assert found.flag == ALPHA_TOO_LARGE
    assert measured(2.0 ** np.arange(-30, 30)[:, None]).flag == INFINITE  # the tree of all is twice that of half


def test_a_run_that_stands_still() -> None:
    found = measured(np.ones((60, 4)))
    lengths = {name: value for name, value in found.statistics.items() if not name.startswith(DISTANCE)}
    assert lengths == {"n_checkpoints": 60, "path_length": 0, "displacement": 0, "step_length": 0}


def test_one_checkpoint_alone() -> None:
    assert measured(np.ones((1, 4))).statistics == {"n_checkpoints": 1, "path_length": 0, "displacement": 0}
    (failure,) = TrajectoryProbe().measure(subject(np.array([[1.0, np.inf]])))
    assert isinstance(failure, Failure)
    assert "fc.weight" in failure.message


# Distances


def test_a_known_distance_opens_no_checkpoint() -> None:
    points = np.random.default_rng(5).normal(size=(6, 40))
    seen: list[int] = []
    list(TrajectoryProbe().measure(subject(points[:5], seen.append)))
    assert set(seen) == {0, 1, 2, 3, 4}
    seen.clear()
    (result,) = TrajectoryProbe().measure(subject(points, seen.append))
    assert isinstance(result, Measurement)
    assert seen.count(5) == 1  # its layers are those of the subject
    assert all(seen.count(i) == 1 for i in range(5))  # each with the new one, none with each other


def weights_of(matrices: Mapping[str, np.ndarray], content: str) -> Weights:
    layers = {
        name: Layer(name, "other", False, content, in_memory(name, torch.from_numpy(matrix)))
        for name, matrix in matrices.items()
    }
    return Weights(content, lambda: layers)


@moderate
@given(st.integers(0, 2**32), st.sampled_from([np.float16, np.float32, np.float64]), st.integers(-300, 300))
def test_distances_are_those_of_long_vectors(seed: int, dtype: type, exponent: int) -> None:
    draw = np.random.default_rng(seed)
    scale = 2.0 ** (exponent if dtype is np.float64 else 0)
    checkpoints: list[dict[str, np.ndarray]] = [
        {name: (scale * draw.normal(size=shape)).astype(dtype) for name, shape in (("a", (3, 4)), ("b", (1, 70_000)))}
        for _ in range(3)
    ]
    found = trajectory.distance_matrix(
        [weights_of(matrices, f"{seed} {dtype} {exponent} {i}") for i, matrices in enumerate(checkpoints)]
    )
    rows = [np.concatenate([m.ravel().astype(np.float64) / scale for m in c.values()]) for c in checkpoints]
    expected = [[np.linalg.norm(a - b) for b in rows] for a in rows]
    assert_allclose(found / scale, expected, rtol=1e-12)


def test_entries_whose_squares_overflow() -> None:
    big = [{"a": np.array([[1e300, 0.0]])}, {"a": np.array([[0.0, 1e300]])}]
    found = trajectory.distance_matrix([weights_of(m, f"big {i}") for i, m in enumerate(big)])
    assert found[0, 1] == pytest.approx(2**0.5 * 1e300)
    beyond = [{"a": np.full((1, 4), 1.7e308)}, {"a": np.full((1, 4), -1.7e308)}]
    with pytest.raises(ToposcopeError, match="overflows"):
        trajectory.distance_matrix([weights_of(m, f"beyond {i}") for i, m in enumerate(beyond)])
