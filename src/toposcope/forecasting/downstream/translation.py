"""The loss that a new recipe reaches at larger sizes, from a few small runs of it and the laws of other recipes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from toposcope.errors import ToposcopeError, choices
from toposcope.forecasting.downstream.curves import corpora_of, loss_curve, recipes_of
from toposcope.forecasting.downstream.predicted import Model
from toposcope.forecasting.downstream.prediction import DEFAULT
from toposcope.forecasting.downstream.translation_left_out import (
    Laws,
    LossLeftOut,
    coverage,
    donor_drift,
    interval_width,
    leave_curves_out,
    leave_sizes_out,
    median_error,
    score,
)
from toposcope.forecasting.downstream.translation_methods import METHODS, Donor, fit_methods
from toposcope.forecasting.scaling.points import Points
from toposcope.logs.evaluations import Evaluations


@dataclass(frozen=True)
class LossPrediction:
    """The loss of a model on a corpus or on a task.

    Attributes
    ----------
    model : Model
    loss, low, high : float
        With the 90% interval, in the units of the runs' losses; NaN where refused.
    refusal : str
        Why it cannot be told and what would help; empty if it is predicted.
    methods : mapping
        What each method predicts.
    """

    model: Model
    loss: float
    low: float
    high: float
    refusal: str = ""
    methods: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Translation:
    """Predicted losses of a new recipe.

    Attributes
    ----------
    recipe, loss : str
        Whose runs on which corpus, or task.
    runs : Points
        Of the new recipe.
    donors : tuple of Donor
    predictions : tuple of LossPrediction
    method : str
        The method of the predictions; empty if all are refused.
    errors : mapping
        Median absolute error of each method on those curves left out that it is chosen by, as a share of the loss.
    coverage : float
        Share of the runs of curves left out whose loss was within the 90% interval from the other curves.
    left_out : tuple of LossLeftOut
    remarks : tuple of str
    """

    recipe: str
    loss: str
    runs: Points
    donors: tuple[Donor, ...]
    predictions: tuple[LossPrediction, ...]
    method: str
    errors: Mapping[str, float]
    coverage: float
    left_out: tuple[LossLeftOut, ...]
    remarks: tuple[str, ...] = ()


def translate(
    evaluations: Evaluations,
    recipe: str,
    models: Sequence[Model],
    *,
    loss: str = "",
    donors: Sequence[str] | None = None,
    corpora: Mapping[str, str] | None = None,
    method: str = DEFAULT,
) -> Translation:
    """Predict a loss of a recipe's larger models from a few small runs of it and the scaling laws of other recipes.

    Parameters
    ----------
    evaluations : Evaluations
        Losses at the ends of runs of several recipes. All runs of `recipe` count as its small ones, but for those that
        have the name of a model.
    recipe : str
        The new one.
    models : sequence of Model
    loss : str
        The corpus, or the task, that the loss is on; by default the corpus that the recipe was trained on.
    donors : sequence of str, optional
        Recipes whose laws to use; by default all others.
    corpora : mapping, optional
        The corpus that each recipe was trained on, where its name does not begin as the recipe's does.
    method : str
        One of `METHODS`, or ``default``: what predicts runs best that are left out.

    Returns
    -------
    Translation

    Raises
    ------
    ToposcopeError
        If there is no such recipe, loss or method, or no model.

    Notes
    -----
    Methods are tried out on curves left out: each donor, on every corpus, is taken for the new recipe, its runs nearest
    to the new recipe's small runs are kept, and its larger ones predicted from the other donors (from its own training
    corpus where there is only one donor). The larger half of the new recipe's own runs is predicted from the smaller
    half too. Errors of the logarithm of the loss count over 1 + ln(reach). The geometric mean over curves of their root
    mean square chooses the method: over training corpora for the loss on a training corpus, else over the others. The
    90% quantile over all curves, times 1 + ln(reach) of the model, makes the interval. Beyond the compute of the donors
    what their own laws miss when their larger runs are left out is added in quadrature.

    Examples
    --------
    >>> import polars as pl
    >>> from toposcope.logs.evaluations import COLUMNS
    >>> def runs(recipe, scale, floor, sizes):
    ...     law = lambda N, D: floor + scale * (400 / N**0.34 + 900 / D**0.31)
    ...     return [
    ...         {"run": f"{recipe} {N:g} {D:g}", "recipe": recipe, "N": N, "D": D, "task": c, "metric": "loss",
    ...          "role": "corpus_loss", "value": law(N, D) * (1 if c == recipe else 1.1)}
    ...         for N, D in sizes for c in ("web", "books", "code")
    ...     ]
    >>> grid = [(N, D) for N in (2e7, 5e7, 1e8, 4e8, 1e9) for D in (1e9, 4e9, 2e10)]
    >>> rows = runs("web", 1, 2, grid) + runs("books", 0.9, 1.9, grid) + runs("code", 0.6, 1, grid[:6:2])
    >>> evaluations = Evaluations(pl.DataFrame(rows, schema=COLUMNS))
    >>> found = translate(evaluations, "code", [Model("large", 1e9, 2e10)])
    >>> round(found.predictions[0].loss, 3), round(1 + 0.6 * (400 / 1e9**0.34 + 900 / 2e10**0.31), 3)
    (1.555, 1.555)
    """
    if not models:
        raise ToposcopeError("no model to predict; name its parameters N and its tokens D")
    if method not in (DEFAULT, *METHODS):
        raise ToposcopeError(f"method {method}: {choices(method, (DEFAULT, *METHODS))}")
    if recipe not in (known := recipes_of(evaluations)):
        raise ToposcopeError(f"recipe {recipe}: {choices(recipe, known)}")
    laws = Laws(evaluations, corpora or {})
    loss = loss or laws.trained_on(recipe)
    if not loss:
        raise ToposcopeError(
            f"recipe {recipe}: no corpus whose name begins as it does; name the loss, one of "
            f"{', '.join(corpora_of(evaluations))}"
        )
    remarks: list[str] = []
    names = laws.usable(donors, recipe, loss, remarks)
    runs = without(loss_curve(evaluations, recipe, loss), [model.name for model in models])
    if not names:
        return _refused(recipe, loss, runs, models, "; ".join(["no other recipe has a law to lend", *remarks]))
    if not len(runs):
        return _refused(recipe, loss, runs, models, f"no run of {recipe} with its loss on {loss}; train a small one")
    chosen = laws.donors(names, loss)
    found, refused = fit_methods(runs, chosen)
    left_out = (*leave_curves_out(laws, names, loss, runs), *leave_sizes_out(runs, (recipe, loss), chosen))
    if method != DEFAULT and method not in found:
        return _refused(recipe, loss, runs, models, refused.get(method, f"{method}: needs shared_shape and own_law"))
    alike = laws.of_one_kind(left_out, recipe, loss)
    best = method if method != DEFAULT else min(found, key=lambda name: score(alike, name))
    drift = donor_drift(chosen)
    predictions = []
    for model in models:
        at = np.array([model.N]), np.array([model.D])
        by_method = {name: float(predicted(*at)[0]) for name, predicted in found.items()}
        width = interval_width(left_out, best, compute(model) / float(runs.C.max()))
        if best != "own_law":
            reach = compute(model) / max(float(donor.points.C.max()) for donor in chosen.on_own)
            width = float(np.hypot(width, drift * max(np.log(reach), 0.0)))
        value = by_method[best]
        ends = (value * np.exp(-width), value * np.exp(width)) if np.isfinite(width) else (np.nan, np.nan)
        predictions.append(LossPrediction(model, value, float(ends[0]), float(ends[1]), methods=by_method))
    if not any(row.method == best for row in left_out):
        remarks.append("no interval: nothing larger could be left out of any recipe")
    errors = {name: median_error(alike, name) for name in found}
    held = coverage(left_out, best)
    return Translation(
        recipe, loss, runs, chosen.on_own, tuple(predictions), best, errors, held, left_out, tuple(remarks)
    )


def without(runs: Points, names: Sequence[str]) -> Points:
    """Return the runs that have none of these names."""
    return runs.where(~np.isin(runs.run, list(names)))


def compute(model: Model) -> float:
    """Return 6 N D."""
    return 6 * model.N * model.D


def _refused(recipe: str, loss: str, runs: Points, models: Sequence[Model], why: str) -> Translation:
    refused = tuple(LossPrediction(model, np.nan, np.nan, np.nan, f"cannot be told: {why}") for model in models)
    return Translation(recipe, loss, runs, (), refused, "", {}, np.nan, ())
