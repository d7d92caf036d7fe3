"""A ladder: small models of one recipe, a task's loss and score along their training and at its end, their noise."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.extend import ToposcopeError, Vector, choices
from toposcope_downstream.evaluations import Evaluations, Target

LAST = 5  # evaluations at the end of a run whose scatter is the noise from checkpoint to checkpoint
MIN_LAST = 4  # fewer leave too little next to a line
LOSS_ROLES = ("loss", "likelihood")  # roles of what a score may be predicted from, of the same task
WINDOW, END_SHARE = 5, 0.1  # the end of a run: at most so many evaluations, in the last so large share of its tokens
LOSSES = (1e-9, 1e9)  # numbers outside are no losses
LEAST_ERROR = 0.003  # standard error of a score if nothing is known of its noise


def spread_about_line(D: Vector, values: Vector, k: int = LAST) -> float:
    """Return the standard deviation of the last values about the line through them.

    A score that still rises has no noise for that: the line takes the trend out, and with it two degrees of freedom.
    """
    logged = np.isfinite(values)
    D, values = D[logged][-k:], values[logged][-k:]
    if len(values) < MIN_LAST or not np.ptp(D):
        return np.nan
    x = (D - D.mean()) / np.ptp(D)
    rest = values - values.mean() - (x @ values) / (x @ x) * x
    return float(np.sqrt(rest @ rest / (len(rest) - 2)))


@dataclass(frozen=True, eq=False)
class LadderModel:
    """A trained model of a ladder."""

    run: str
    N: float  # parameters
    D: Vector  # shape (m,); tokens seen at each evaluation, increasing
    loss: Vector  # shape (m,); the loss that is linked to the score; NaN where none was logged, or it is not positive
    score: Vector  # shape (m,); NaN where it was not logged

    @property
    def final_loss(self) -> float:
        """The mean of the last losses; NaN without any."""
        return self._final(self.loss)

    @property
    def final_score(self) -> float:
        """The mean of the last scores; NaN without any."""
        return self._final(self.score)

    @property
    def score_noise(self) -> float:
        """The standard deviation of the last scores about their trend; NaN for fewer than 4."""
        late = self._late()
        return spread_about_line(self.D[late], self.score[late], WINDOW)

    def _final(self, values: Vector) -> float:
        last = values[self._late() & np.isfinite(values)][-WINDOW:]
        return float(last.mean()) if len(last) else np.nan

    def _late(self) -> NDArray[np.bool_]:
        return np.asarray(self.D[-1] - self.D <= END_SHARE * self.D[-1])


@dataclass(frozen=True, eq=False)
class Ladder:
    """Small models of one recipe on one task."""

    target: Target  # the task's score, with chance and the number of questions where they are known
    models: tuple[LadderModel, ...]  # by parameters, then tokens, increasing
    loss_name: str = ""  # what the losses are of: a metric of the task, or a corpus. Empty if no loss is used

    def without(self, runs: Sequence[str]) -> "Ladder":
        """Return the ladder without some of its runs."""
        return Ladder(self.target, tuple(model for model in self.models if model.run not in runs), self.loss_name)


def ladder_of(evaluations: Evaluations, task: str, loss: str = "", recipe: str | None = None) -> Ladder:
    """Return the ladder of one task."""
    table = evaluations.table
    if task not in evaluations.targets:
        raise ToposcopeError(f"task {task}: {choices(task, evaluations.tasks)}")
    recipes = sorted(table["recipe"].unique())
    if recipe is None and len(recipes) > 1:
        raise ToposcopeError(f"{len(recipes)} recipes; name one of {', '.join(recipes[:5])}, or the runs of the ladder")
    if recipe is not None and recipe not in recipes:
        raise ToposcopeError(f"recipe {recipe}: {choices(recipe, recipes)}")
    table = table.filter(pl.col("recipe") == recipe) if recipe is not None else table
    known = table.filter((pl.col("N") > 0) & (pl.col("D") > 0))
    is_score = pl.col("role") == "score"
    scores = _along(known.filter((pl.col("task") == task) & is_score), "score")
    if scores.is_empty():
        raise ToposcopeError(f"task {task}: {_sizeless(table.filter((pl.col('task') == task) & is_score))}")
    own = known.filter((pl.col("task") == task) & (pl.col("role") == "loss"))
    name = loss or usual_metric(own["metric"])
    losses = _along(known.filter(_is_loss(task, name)), "loss")
    if name and losses.is_empty():
        offered = [*known.filter((pl.col("task") == task) & pl.col("role").is_in(LOSS_ROLES))["metric"].unique()]
        offered += [*known.filter(pl.col("role") == "corpus_loss")["task"].unique()]
        raise ToposcopeError(f"loss {name} of task {task}: {choices(name, sorted(offered))}")
    losses = losses.with_columns(pl.when(pl.col("loss").is_between(*LOSSES)).then("loss").alias("loss"))
    joined = scores.join(losses, on=["run", "N", "D"], how="full", coalesce=True)
    models = [
        LadderModel(
            str(run), float(n), *(rows[column].to_numpy().astype(np.float64) for column in ("D", "loss", "score"))
        )
        for (run, n), rows in joined.sort("D").group_by("run", "N", maintain_order=True)
    ]
    models.sort(key=lambda model: (model.N, model.D[-1], model.run))
    return Ladder(evaluations.targets[task], tuple(models), name)


def scored_tasks(evaluations: Evaluations, tasks: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the tasks that were named, else all with scores."""
    if not evaluations.tasks:
        why = f"; {evaluations.remarks[0]}" if evaluations.remarks else ""
        raise ToposcopeError(f"the evaluations have no scores of tasks{why}")
    if unknown := next((task for task in tasks or () if task not in evaluations.tasks), None):
        raise ToposcopeError(f"task {unknown}: {choices(unknown, evaluations.tasks)}")
    return tuple(tasks or evaluations.tasks)


def losses_for(evaluations: Evaluations, task: str) -> tuple[list[str], list[str]]:
    """Return the losses that may be linked to a task's score, sorted: the corpora, and the metrics of its own loss."""
    corpora = evaluations.table.filter(pl.col("role") == "corpus_loss")["task"]
    own = evaluations.table.filter((pl.col("task") == task) & (pl.col("role") == "loss"))["metric"]
    return sorted(corpora.unique()), sorted(own.unique())


def usual_metric(metrics: pl.Series) -> str:
    """Return the metric of a loss that most rows have, bits per byte first; empty without rows."""
    ranked = sorted(
        metrics.value_counts().rows(), key=lambda row: (row[0] not in ("bits_per_byte", "bpb"), -row[1], row[0])
    )
    return str(ranked[0][0]) if ranked else ""


def _sizeless(scores: pl.DataFrame) -> str:
    """Say what no run with a score states, and how to state it; with the name of a run as it is to be written."""
    if scores.is_empty():
        return "no run of this recipe has a score"
    missing = [what for name, what in (("N", "parameters N"), ("D", "tokens D")) if not (scores[name] > 0).any()]
    stated = " and its ".join(missing or ["parameters N together with its tokens D"])
    return (
        f"no run with a score, such as {scores['run'].min()!s}, states its {stated}; add columns N and D, or a table "
        "runs.csv with run, N, D next to the results"
    )


def _is_loss(task: str, name: str) -> pl.Expr:
    own = (pl.col("task") == task) & (pl.col("metric") == name) & pl.col("role").is_in(LOSS_ROLES)
    return own | ((pl.col("task") == name) & (pl.col("role") == "corpus_loss"))


def _along(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return the mean value of each run at each number of tokens."""
    return rows.group_by("run", "N", "D").agg(pl.col("value").mean().alias(name))


@dataclass(frozen=True, eq=False)
class Endpoints:
    """Ends of the runs of a ladder, in its order."""

    run: tuple[str, ...]
    N: Vector  # shape (n,), as the others
    D: Vector
    loss: Vector  # mean over the last evaluations, as the score; NaN where it is unknown
    score: Vector
    # standard deviation of a score from checkpoint to checkpoint, pooled over the runs; 0 if it is unknown
    noise: float
    # standard deviation of the scores about a smooth surface over ln N and ln D: what is known of their noise where
    # neither the number of questions nor checkpoints show it; else 0
    scatter: float = 0.0

    def __len__(self) -> int:
        return len(self.run)

    @property
    def compute(self) -> Vector:
        """Operations of training, 6 N D."""
        return np.asarray(6 * self.N * self.D)

    def where(self, known: NDArray[np.bool_]) -> "Endpoints":
        """Return some of the runs; the noise stays."""
        runs = tuple(run for run, is_known in zip(self.run, known, strict=True) if is_known)
        N, D, loss, score = (values[known] for values in (self.N, self.D, self.loss, self.score))
        return Endpoints(runs, N, D, loss, score, self.noise, self.scatter)


def endpoints(ladder: Ladder) -> Endpoints:
    """Return the ends of the runs that have a score there."""
    models = [model for model in ladder.models if np.isfinite(model.final_score)]
    spreads = np.array([model.score_noise for model in models])
    known = spreads[np.isfinite(spreads)]  # each of a few values, so that one alone says little
    N, D = np.array([model.N for model in models]), np.array([model.D[-1] for model in models])
    loss, score = (np.array([getattr(model, f"final_{of}") for model in models]) for of in ("loss", "score"))
    noise = float(np.sqrt(np.mean(known**2))) if len(known) else 0.0
    scatter = _scatter(np.log(N), np.log(D), score) if ladder.target.n is None and not len(known) else 0.0
    return Endpoints(tuple(model.run for model in models), N, D, loss, score, noise, scatter)


def score_error(score: float, points: Endpoints, n: int | None) -> float:
    """Return the standard error of a score: of n questions, and of the last checkpoints; or the scatter."""
    questions = max(score * (1 - score), 0.0) / n if n else 0.0
    return float(np.sqrt(questions + points.noise**2 / WINDOW + points.scatter**2))


def _scatter(x: Vector, y: Vector, score: Vector) -> float:
    """Return the standard deviation of scores about a quadratic surface; 0 with too few runs."""
    if len(score) < 12:  # for six coefficients
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    terms = np.stack([np.ones_like(x), x, y, x**2, x * y, y**2], axis=1)
    found, _, rank, _ = np.linalg.lstsq(terms, score)
    residual = score - terms @ found
    return float(np.sqrt(residual @ residual / (len(score) - rank)))
