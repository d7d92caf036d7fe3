"""A training log, read at checkpoints: targets and covariates."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.logs.table import ByStep
from toposcope.probes import Feature
from toposcope.typing import Vector

MIN_VALIDATED_SHARE = 0.9  # share of the checkpoints with a loss that have a validation loss, for it to be the target
SMOOTHING_STEPS = 100
GRADIENT_NORM_MEAN = Feature("log", "", "grad_norm_mean", "norm")
GRADIENT_NORM_STD = Feature("log", "", "grad_norm_std", "norm")


class Logged:
    """The log of one run."""

    def __init__(self, log: pl.DataFrame) -> None:
        def column(name: str) -> Vector:
            if name not in log.columns:
                return np.full(len(log), np.nan)
            return log.get_column(name).fill_null(np.nan).to_numpy()

        self.steps = log.get_column("step").to_numpy()
        self.loss, self.rate, self.validation = column("loss"), column("learning_rate"), column("validation_loss")
        self.norm, self.weight_norm = column("grad_norm"), column("weight_norm")
        self._tokens = column("tokens")

    def targets(self, steps: NDArray[np.int64], *, batch_first: bool = False) -> dict[str, Vector]:
        """Return the targets that are known, the most reliable one first."""
        spacing = int(np.median(np.diff(steps))) if len(steps) > 1 else SMOOTHING_STEPS
        found = {
            "validation_loss": self._at(steps, self.validation),
            "smoothed_loss": self._smoothed(steps, min(SMOOTHING_STEPS, spacing)),
            "batch_loss": self._at(steps, self.loss),
        }
        counts = {name: int(np.isfinite(values).sum()) for name, values in found.items()}
        validated = counts["validation_loss"] >= MIN_VALIDATED_SHARE * max(counts["smoothed_loss"], 1)
        found.pop("smoothed_loss" if validated else "validation_loss")
        if np.array_equal(found.get("smoothed_loss", []), found["batch_loss"], equal_nan=True):
            found.pop("smoothed_loss")  # logged at checkpoints only, so smoothing changes nothing
        names = sorted(found, key=lambda name: name != "batch_loss") if batch_first else list(found)
        return {name: found[name] for name in names if counts[name]}

    def covariates(self, steps: NDArray[np.int64]) -> dict[str, Vector]:
        """Return the logged covariates that are known: ``learning_rate``, its sum, and ``weight_norm``.

        The rate is the last one logged up to a checkpoint; before the first logged one, that.
        """
        found = {}
        known = np.isfinite(self.rate)
        if known.any():
            latest = np.searchsorted(self.steps[known], steps, side="right") - 1
            found["learning_rate"] = self.rate[known][np.maximum(latest, 0)]
            total = np.cumsum(np.nan_to_num(self.rate))
            index = np.searchsorted(self.steps, steps, side="right") - 1
            found["cumulative_learning_rate"] = np.where(index >= 0, total[np.maximum(index, 0)], 0.0)
        weight_norm = self._at(steps, self.weight_norm)
        if np.isfinite(weight_norm).any():
            found["weight_norm"] = weight_norm
        return found

    def tokens(self, steps: NDArray[np.int64]) -> Vector:
        """Return the tokens seen until each checkpoint; NaN where the log has no value."""
        return self._at(steps, self._tokens)

    def gradient_norms(self, steps: NDArray[np.int64]) -> dict[Feature, Vector]:
        """Return mean and standard deviation of the gradient norm since the checkpoint before."""
        begin = np.concatenate([[-1], steps[:-1]])
        windows = [self.norm[(self.steps > b) & (self.steps <= s)] for b, s in zip(begin, steps, strict=True)]
        windows = [w[np.isfinite(w)] for w in windows]
        if not any(len(w) for w in windows):
            return {}
        return {
            GRADIENT_NORM_MEAN: np.array([w.mean() if len(w) else np.nan for w in windows]),
            GRADIENT_NORM_STD: np.array([w.std() if len(w) > 1 else np.nan for w in windows]),
        }

    def _at(self, steps: NDArray[np.int64], values: Vector) -> Vector:
        return ByStep(self.steps, values).at(steps)

    def _smoothed(self, steps: NDArray[np.int64], window: int) -> Vector:
        means = []
        for step in steps:
            seen = self.loss[(self.steps > step - window) & (self.steps <= step)]
            seen = seen[np.isfinite(seen)]
            means.append(seen.mean() if len(seen) else np.nan)
        return np.array(means)
