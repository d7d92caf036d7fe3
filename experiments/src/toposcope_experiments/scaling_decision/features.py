"""What is known of a run when it is looked at: features of the loss, plain controls and topology."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import safetensors.numpy

from toposcope import neural_persistence, rips
from toposcope.extend import Diagram, Matrix
from toposcope.family import build
from toposcope.homology import wasserstein
from toposcope_experiments.scaling_decision.design import Pack, model_size
from toposcope_experiments.scaling_decision.training import weights_path

LOSS = ("last", "slope", "plateau")
CONTROLS = ("norm", "gradient_norm", "update", "stable_rank")
TOPOLOGY = ("neural_persistence", "h0", "h1", "speed")
FEATURES = (*LOSS, *CONTROLS, *TOPOLOGY)
FALLEN = 0.1  # of the peak of the change of neural persistence: the published rule stops there


class MatrixTopology(NamedTuple):
    """Topology of one weight matrix."""

    neural_persistence: float
    h0: Diagram  # of the rows
    h0_total: float
    h1_total: float
    norm: float
    stable_rank: float


@dataclass(frozen=True, eq=False)
class WeightFeatures:
    """What is computed from the weights of a run at one step."""

    weights: Matrix  # shape (parameters,)
    matrices: list[MatrixTopology]

    @property
    def norm(self) -> float:
        """Frobenius norm of all weights."""
        return float(np.linalg.norm(self.weights))

    def mean(self, name: str) -> float:
        """Return a field's mean over the matrices, those of homology over the norm of their matrix."""
        unit = "norm" if name in ("h0_total", "h1_total") else None
        return float(np.mean([getattr(each, name) / (getattr(each, unit) if unit else 1) for each in self.matrices]))


def measure_pack(task: tuple[Pack, Path]) -> pl.DataFrame:
    """Return the features of each run of a pack at each step at which it is looked at, but for those of the loss."""
    pack, folder = task
    shapes = {name: tuple(parameter.shape) for name, parameter in build(model_size(pack.width)).named_parameters()}
    rows: list[dict[str, object]] = []
    before: list[WeightFeatures] = []
    for step in pack.looks:
        stacked = safetensors.numpy.load_file(weights_path(folder, pack, step))["weights"]
        now = [weight_features(weights, shapes) for weights in stacked]
        for number, (condition, seed) in enumerate(pack.members):
            row = {"condition": condition.name, "width": pack.width, "seed": seed, "step": step}
            rows.append(row | _features(now[number], before[number] if before else None))
        before = now
    return pl.DataFrame(rows)


def weight_features(weights: Matrix, shapes: Mapping[str, tuple[int, ...]]) -> WeightFeatures:
    """Measure the weights of a run, shape (parameters,), that follow each other in the order of `shapes`."""
    return WeightFeatures(weights, list(_matrices(weights, shapes)))


def _matrices(weights: Matrix, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[MatrixTopology]:
    """Yield the topology of the embedding and of each matrix of the block."""
    begin = 0
    for name, shape in shapes.items():
        values = weights[begin : begin + int(np.prod(shape))].reshape(shape)
        begin += values.size
        if values.ndim == 2 and not name.startswith("pos_emb"):
            h0, h1 = rips(values, max_dimension=1)
            singular = np.linalg.svd(values.astype(np.float64), compute_uv=False)
            yield MatrixTopology(
                neural_persistence(values).normalized,
                h0,
                float(h0.lifetimes.sum()),
                float(h1.lifetimes.sum()),
                float(np.linalg.norm(singular)),
                float((singular**2).sum() / singular[0] ** 2),
            )


def _features(now: WeightFeatures, before: WeightFeatures | None) -> dict[str, float]:
    found = {
        "norm": float(np.log(now.norm)),
        "stable_rank": now.mean("stable_rank"),
        "neural_persistence": now.mean("neural_persistence"),
        "h0": now.mean("h0_total"),
        "h1": now.mean("h1_total"),
        "update": np.nan,
        "speed": np.nan,
    }
    if before is not None:
        found["update"] = float(np.log(np.linalg.norm(now.weights - before.weights) / now.norm))
        distances = [
            wasserstein(one.h0, other.h0, order=1) / other.norm
            for one, other in zip(before.matrices, now.matrices, strict=True)
        ]
        found["speed"] = float(np.mean(distances))
    return found


def known_at(looks: pl.DataFrame, weights: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each run and look with all `FEATURES` and the published rule's answer, NaN where not known yet.

    Parameters
    ----------
    looks : DataFrame
        Columns ``condition``, ``width``, ``seed``, ``step``, ``compute``, ``loss``, ``gradient_norm``.
    weights : DataFrame
        Of `measure_pack`.
    """
    keys = ["condition", "width", "seed", "step"]
    runs = looks.join(weights, on=keys, how="left").sort(keys)
    parts = [_of_run(rows) for _, rows in runs.group_by("condition", "width", "seed", maintain_order=True)]
    return pl.concat(parts)


def _of_run(rows: pl.DataFrame) -> pl.DataFrame:
    """Add what follows from the looks before."""
    log_compute, loss = np.log(rows["compute"].to_numpy()), rows["loss"].to_numpy()
    persistence, steps = rows["neural_persistence"].to_numpy(), rows["step"].to_numpy()
    slope = np.full(len(rows), np.nan)
    slope[2:] = (loss[2:] - loss[:-2]) / (log_compute[2:] - log_compute[:-2])
    plateau = np.full(len(rows), np.nan)
    plateau[4:] = slope[4:] - slope[2:-2]
    change = np.abs(np.diff(persistence)) / np.diff(steps)
    fallen = np.concatenate([[False], np.logical_or.accumulate(change < FALLEN * np.maximum.accumulate(change))])
    columns = {
        "last": loss,
        "slope": slope,
        "plateau": plateau,
        "gradient_norm": np.log(rows["gradient_norm"].to_numpy()),
        "published_rule": fallen,
    }
    return rows.with_columns(pl.Series(name, values) for name, values in columns.items())
