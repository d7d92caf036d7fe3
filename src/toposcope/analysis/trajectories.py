"""What the analyses compare, checkpoint by checkpoint: features, targets, clocks."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

Vector = NDArray[np.float64]

PSEUDO_LAYERS = ("network", "pooled")
WEIGHT_NORM = "controls frobenius_norm"
CONTROLS = r"^(controls|log) | gradient_norm$"
"""Names of features that are not topology."""
MOSTLY = 0.9
"""Share of the checkpoints with a training loss that must have a validation loss, for it to be the target."""
SMOOTHING_STEPS = 100


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One run, on its measured checkpoints.

    Attributes
    ----------
    steps : ndarray, shape (n,)
    features : dict of ndarray, shape (n,)
        By name, ``probe statistic``; of the whole network or the pooled cloud. NaN where not measured. The log adds
        ``log grad_norm_mean`` and ``log grad_norm_std``, over the steps since the last checkpoint (METHODS 5).
    targets : dict of ndarray, shape (n,)
        The first is the one to trust: ``validation_loss`` if it is known at nearly all checkpoints, else
        ``smoothed_loss`` (the mean training loss of the last 100 steps, or of the steps since the last checkpoint if
        those are fewer). ``batch_loss`` is the loss of one batch, as published.
    clocks : dict of ndarray, shape (n,)
        ``step``, ``cumulative_learning_rate``, ``weight_norm``; those that are known.
    """

    run: str
    steps: NDArray[np.int64]
    features: dict[str, Vector]
    targets: dict[str, Vector]
    clocks: dict[str, Vector]


def trajectories(features: pl.DataFrame, labels: pl.DataFrame, log: pl.DataFrame) -> list[Trajectory]:
    """Arrange a study's frames by run.

    Parameters
    ----------
    features, labels, log : polars.DataFrame
        `Study.frame`, `Study.labels` and `Study.log`.
    """
    rows = features.filter(pl.col("layer").is_in(PSEUDO_LAYERS)).join(
        labels, on=["probe", "options"], maintain_order="left"
    )
    rows = rows.select("run", "step", pl.format("{} {}", "label", "statistic").alias("feature"), "value")
    # A run whose every checkpoint failed has nothing to compare.
    runs = rows.get_column("run").unique(maintain_order=True).to_list()
    return [_trajectory(run, rows.filter(run=run), log.filter(run=run)) for run in runs]


def _trajectory(run: str, rows: pl.DataFrame, log: pl.DataFrame) -> Trajectory:
    steps = rows.get_column("step").unique().sort().to_numpy()
    place = {int(step): i for i, step in enumerate(steps)}
    features: dict[str, Vector] = {}
    for step, feature, value in rows.select("step", "feature", "value").iter_rows():
        features.setdefault(feature, np.full(len(steps), np.nan))[place[step]] = value
    clocks = {"step": steps.astype(np.float64)}
    targets = {}
    if len(log):
        logged = _Log(log)
        targets = logged.targets(steps)
        features |= logged.gradient_norms(steps)
        if np.isfinite(logged.rate).any():
            clocks["cumulative_learning_rate"] = logged.cumulative_rate(steps)
    if WEIGHT_NORM in features:
        clocks["weight_norm"] = features[WEIGHT_NORM]
    return Trajectory(run, steps, features, targets, clocks)


class _Log:
    """A training log read at checkpoints."""

    def __init__(self, log: pl.DataFrame) -> None:
        def column(name: str) -> Vector:
            return log.get_column(name).fill_null(np.nan).to_numpy()

        self.steps = log.get_column("step").to_numpy()
        self.loss, self.rate, self.validation = column("loss"), column("learning_rate"), column("validation_loss")
        self.norm = column("grad_norm")

    def targets(self, steps: NDArray[np.int64]) -> dict[str, Vector]:
        spacing = int(np.median(np.diff(steps))) if len(steps) > 1 else SMOOTHING_STEPS
        found = {
            "validation_loss": self._at(steps, self.validation),
            "smoothed_loss": self._smoothed(steps, min(SMOOTHING_STEPS, spacing)),
            "batch_loss": self._at(steps, self.loss),
        }
        counts = {name: int(np.isfinite(values).sum()) for name, values in found.items()}
        validated = counts["validation_loss"] >= MOSTLY * max(counts["smoothed_loss"], 1)
        found.pop("smoothed_loss" if validated else "validation_loss")
        return {name: values for name, values in found.items() if counts[name]}

    def cumulative_rate(self, steps: NDArray[np.int64]) -> Vector:
        total = np.cumsum(np.nan_to_num(self.rate))
        index = np.searchsorted(self.steps, steps, side="right") - 1
        return np.where(index >= 0, total[np.maximum(index, 0)], 0.0)

    def gradient_norms(self, steps: NDArray[np.int64]) -> dict[str, Vector]:
        """Return mean and standard deviation of the gradient norm since the checkpoint before."""
        begin = np.concatenate([[-1], steps[:-1]])
        windows = [self.norm[(self.steps > b) & (self.steps <= s)] for b, s in zip(begin, steps, strict=True)]
        windows = [w[np.isfinite(w)] for w in windows]
        if not any(len(w) for w in windows):
            return {}
        return {
            "log grad_norm_mean": np.array([w.mean() if len(w) else np.nan for w in windows]),
            "log grad_norm_std": np.array([w.std() if len(w) > 1 else np.nan for w in windows]),
        }

    def _at(self, steps: NDArray[np.int64], values: Vector) -> Vector:
        index = np.minimum(np.searchsorted(self.steps, steps), len(self.steps) - 1)
        return np.where(self.steps[index] == steps, values[index], np.nan)

    def _smoothed(self, steps: NDArray[np.int64], window: int) -> Vector:
        means = []
        for step in steps:
            seen = self.loss[(self.steps > step - window) & (self.steps <= step)]
            seen = seen[np.isfinite(seen)]
            means.append(seen.mean() if len(seen) else np.nan)
        return np.array(means)
