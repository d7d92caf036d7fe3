"""What is known of one training run, and where each fact comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.logs.anomalies import MIN_ROWS, Divergence
from toposcope.logs.columns import target_of
from toposcope.logs.table import ByStep, LogTable
from toposcope.logs.watched import COMPLETE, Watched
from toposcope.typing import Steps, Vector

# 79 published runs of fewer than 60 rows: docs/logs.md
MIN_MEAN_ROWS, LINE_ROWS = 3, 5  # rows with a mean of their own; with fewer, those of a line through the last ones

AXES = ("step", "epoch", "row", "sample", "token")
UNITS = ("nats", "bits", "bits per byte", "nats per byte", "bits per character")
FINAL_SHARE = 0.02  # share of the logged steps whose mean is the final loss, where it is a training loss


@dataclass(frozen=True, eq=False)
class Run:
    """What is known of a training run: the loss that it logged, step by step, and where each fact comes from.

    Attributes
    ----------
    name : str
        Of the run.
    steps : ndarray, shape (n,), int64
        Ascending, each once; steps of the optimiser since training began, unless `axis` says otherwise.
    loss : ndarray, shape (n,), float64
        Finite, in `unit`; positive unless it need not fall.
    learning_rate : ndarray, shape (n,), float64
        NaN where it was not logged.
    last_step : int or None
        Of the planned training; None if unknown.
    parameters, tokens_per_step, steps_per_epoch : float
        NaN if unknown; the last is of one pass over the data.
    family : str
        Which runs belong together: same data, same tokenizer, same unit. Empty if unknown.
    schedule : str
        The kind of learning-rate schedule, as the log names it. Empty if unknown.
    unit : str
        One of `UNITS`.
    target : str
        The column that `loss` was read from.
    norms : dict of ndarray, shape (n,), float64
        ``weight_norm`` and ``grad_norm``, where logged; NaN where not.
    remarks : tuple of str
        What was ignored or guessed while reading, a sentence each.
    table : LogTable or None
        Everything that was logged, with every loss and accuracy; None for a log that was not read.
    diverged : Divergence or None
        How the run ended badly, if it did.
    finished : bool
        Whether the tool says that the run ended.
    failed : str
        The error that ended the run, as its log or its tracker states it; empty of any other run.
    axis : str
        What `steps` and `last_step` count, one of `AXES`.
    evidence : dict of str
        Where facts come from, a clause by the name of their attribute (``last_step``, ``steps``, ``parameters``,
        ``finished``, ``target``); what has none was logged under its own name.
    watched : Watched or None
        What a monitor stored besides the log.
    need_not_fall : str
        Why the loss need not fall where training goes well, a clause; empty of a loss that should.
    source : Path or None
        The file or folder that it was read from, if nothing else was; None for a log that was not read.

    Raises
    ------
    ToposcopeError
        If the steps do not ascend, or a loss that should fall is not finite and positive.
    """

    name: str
    steps: Steps
    loss: Vector
    learning_rate: Vector
    last_step: int | None = None
    parameters: float = np.nan
    tokens_per_step: float = np.nan
    family: str = ""
    schedule: str = ""
    unit: str = "nats"
    target: str = "loss"
    norms: dict[str, Vector] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    table: LogTable | None = None
    diverged: Divergence | None = None
    finished: bool = False
    failed: str = ""
    source: Path | None = None
    axis: str = "step"
    evidence: Mapping[str, str] = field(default_factory=dict)
    watched: Watched | None = None
    need_not_fall: str = ""
    steps_per_epoch: float = np.nan

    def __post_init__(self) -> None:
        if not len(self.steps):
            raise ToposcopeError(f"{self.name}: no step has a loss")
        if (np.diff(self.steps) <= 0).any():
            raise ToposcopeError(f"{self.name}: steps do not ascend")
        if not (np.isfinite(self.loss) & ((self.loss > 0) | bool(self.need_not_fall))).all():
            raise ToposcopeError(f"{self.name}: a loss is not finite and positive")

    @property
    def is_validation(self) -> bool:
        """Whether the losses are of held-out data, by the name of their column."""
        return target_of(self.target).validation

    @property
    def last_seen(self) -> int:
        """The last step of which anything was logged; the last loss may be of an earlier one."""
        logged = self.table.steps if self.table is not None else self.steps
        return int(max(self.steps[-1], *logged[-1:]))

    @property
    def is_complete(self) -> bool:
        """Whether the run came to its end: its tool says so, or the log goes to the last planned step.

        But for the steps between two rows: where steps are counted from 0, the last row is one before the end.
        """
        if self.finished or (self.watched is not None and self.watched.status == COMPLETE):
            return True
        if self.last_step is None:
            return False
        left = self.last_step - self.last_seen
        usual = float(np.median(np.diff(self.steps))) if len(self.steps) > 1 else 0.0
        between = left < usual or (left == usual and self.steps[0] == 0)
        return left <= 1 or (between and left <= FINAL_SHARE * self.last_step)

    @property
    def is_warming_up(self) -> bool:
        """Whether the learning rate has risen up to the last row that has one."""
        rates = self.learning_rate[np.isfinite(self.learning_rate)]
        return len(rates) > 1 and bool(rates[-1] > rates[:-1].max()) and bool((np.diff(rates) >= 0).all())

    @property
    def keeps_its_rate(self) -> bool:
        """Whether the learning rate has not decayed to a tenth of its peak; also of a run whose rate is unknown."""
        rates = self.learning_rate[np.isfinite(self.learning_rate)]
        return not len(rates) or bool(rates[-1] >= 0.1 * rates.max())

    @property
    def validation(self) -> ByStep | None:
        """The validation losses of the run: those of the target, else those logged next to it."""
        if self.is_validation:
            return ByStep(self.steps, self.loss)
        return self._logged("validation_loss")

    @property
    def training(self) -> ByStep | None:
        """The training losses of the run: those of the target, else those logged next to it."""
        if not self.is_validation:
            return ByStep(self.steps, self.loss)
        return self._logged("loss")

    @property
    def best(self) -> tuple[int, float]:
        """Step and value of the lowest validation loss; of the lowest loss where there is none."""
        steps, losses = self.validation or ByStep(self.steps, self.loss)
        lowest = int(np.argmin(losses))
        return int(steps[lowest]), float(losses[lowest])

    def _logged(self, name: str) -> ByStep | None:
        """Return the finite values of a column of the table; None without any."""
        values = np.empty(0) if self.table is None else self.table.values[name]
        logged = np.isfinite(values)
        return ByStep(self.table.steps[logged], values[logged]) if self.table is not None and logged.any() else None

    def until(self, step: float) -> Self | None:
        """Return what was logged up to a step, that included; None if nothing was."""
        n = int(np.searchsorted(self.steps, step, side="right"))
        if n == 0:
            return None
        return replace(
            self._part(slice(n)),
            table=self.table.until(step) if self.table else None,
            diverged=self.diverged if self.diverged and self.diverged.step <= step else None,
            finished=self.finished and self.last_seen <= step,
            failed=self.failed if self.last_seen <= step else "",
        )

    def since(self, step: int) -> Self:
        """Return what was logged from a step on; rows of other losses stay."""
        return self._part(slice(int(np.searchsorted(self.steps, step)), None))

    def thinned(self, max_rows: int) -> Self:
        """Return a log of at most so many rows, without its table: losses are averaged over neighbouring rows."""
        n_block = -(-len(self.steps) // max_rows)
        if n_block == 1:
            return self
        # an incomplete block is dropped at the start, so that the last row stays the end of the log
        starts = np.arange(len(self.steps) % n_block, len(self.steps), n_block)
        ends = starts + n_block - 1
        return replace(
            self,
            steps=self.steps[ends],
            loss=np.add.reduceat(self.loss[starts[0] :], starts - starts[0]) / n_block,
            learning_rate=self.learning_rate[ends],
            norms={name: values[ends] for name, values in self.norms.items()},
            table=None,
        )

    def _part(self, rows: slice) -> Self:
        norms = {name: values[rows] for name, values in self.norms.items()}
        rates = self.learning_rate[rows]
        return replace(self, steps=self.steps[rows], loss=self.loss[rows], learning_rate=rates, norms=norms)

    def final_loss(self) -> tuple[float, float]:
        """Return the final loss and its standard error (``docs/methods/forecasting.md``).

        A validation loss is that of the last evaluation, without a standard error; a training loss is
        `final_training_loss`.
        """
        if self.is_validation:
            return float(self.loss[-1]), np.nan
        return final_training_loss(self.steps, self.loss)


def _end_of_line(steps: Steps, losses: Vector, n_last: int) -> tuple[float, float]:
    """Return the value of the line through losses, in the middle of the last few, and its standard error."""
    x = steps - steps.mean()
    size = float(x @ x)
    slope = float(x @ losses) / size
    scatter = losses - losses.mean() - slope * x
    at = float(x[-n_last:].mean())
    error = np.sqrt(scatter @ scatter / (len(x) - 2) * (1 / len(x) + at**2 / size))
    value = float(losses.mean()) + slope * at
    # of a loss that falls to nearly 0 a line may not
    return (value, float(error)) if value > 0 else (float(losses[-n_last:].mean()), np.nan)


def final_losses(losses: Vector) -> Vector:
    """Return the losses whose mean is the final training loss: the last `FINAL_SHARE` of those logged, at least one."""
    return losses[-max(1, round(FINAL_SHARE * len(losses))) :]


def final_training_loss(steps: Steps, losses: Vector) -> tuple[float, float]:
    """Return the final training loss of a log and its standard error, by the scatter of the rows.

    It is the mean of `final_losses`. Where these are fewer than 3 rows of 20 or more, it is the value in their middle
    of the line through the last 5 rows: the mean of 5 would be too high where the loss falls, as in a cool-down.

    Parameters
    ----------
    steps : ndarray, shape (n,), ascending
    losses : ndarray, shape (n,), finite

    Returns
    -------
    tuple of float
        The standard error is NaN where the loss is of one row.
    """
    last = final_losses(losses)
    if len(last) < MIN_MEAN_ROWS and len(losses) >= MIN_ROWS:
        return _end_of_line(steps[-LINE_ROWS:], losses[-LINE_ROWS:], len(last))
    error = float(last.std(ddof=1) / np.sqrt(len(last))) if len(last) > 1 else np.nan
    return float(last.mean()), error
