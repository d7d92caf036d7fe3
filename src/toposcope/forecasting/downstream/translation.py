"""The loss that a new recipe reaches at larger sizes, from a few small runs of it and the laws of other recipes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError, choices
from toposcope.forecasting.downstream.held_out import coverage_by_group
from toposcope.forecasting.downstream.loss_to_loss import (
    corpora_of,
    fit_shifted_power_law,
    loss_curve,
    recipes_of,
    training_corpus,
)
from toposcope.forecasting.downstream.predicted import Model
from toposcope.forecasting.downstream.prediction import DEFAULT
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.intervals import quantile
from toposcope.forecasting.scaling.law_search import DELTA
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import ScalingLaw, scaling_law
from toposcope.logs.evaluations import Evaluations
from toposcope.typing import Vector

LossAt = Callable[[Vector, Vector], Vector]  # from parameters and tokens to the loss
METHODS = ("shared_shape", "average", "own_law", "shifted_power_law", "proportional")
"""``average`` is the geometric mean of `shared_shape` and `own_law`, whose errors have opposite signs more often."""
MAX_REWEIGHTINGS = 50
MIN_LEFT_OUT_REACH = 1.2
"""Of the compute of a run that is left out, over the largest of the runs that it is predicted from."""
MIN_RUNS = 3  # of the new recipe, for leaving out the larger half
DRIFT_SHARE = 0.25  # of a donor's largest compute: runs above are left out to see what its law misses beyond its runs


@dataclass(frozen=True, eq=False)
class Donor:
    """A recipe whose law on a corpus or task is known."""

    recipe: str
    loss: str
    points: Points
    law: ScalingLaw

    def reducible(self, N: Vector, D: Vector) -> Vector:
        """Return the loss by the law above its irreducible part."""
        return self.law.loss(N, D) - self.law.E


class Donors(NamedTuple):
    """The laws of other recipes on their own corpora, and on the corpus that is predicted."""

    on_own: tuple[Donor, ...]
    on_same: tuple[Donor, ...]


@dataclass(frozen=True)
class LossLeftOut:
    """A run that was left out and predicted from smaller runs of its recipe and the laws of other recipes."""

    recipe: str
    loss: str
    run: str
    N: float
    D: float
    reach: float
    method: str
    predicted: float
    true: float

    @property
    def error(self) -> float:
        """Predicted over true, logarithm."""
        return float(np.log(self.predicted / self.true))


@dataclass(frozen=True)
class LossPrediction:
    """The loss of a model on a corpus or a task with its 90% interval; NaN where refused, NaN ends without one."""

    model: Model
    loss: float
    low: float
    high: float
    refusal: str = ""
    methods: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Translation:
    """Predicted losses of a new recipe.

    ``errors`` holds the median absolute error of each method on the curves left out that it is chosen by, as a share of
    the loss; ``coverage`` the share of the runs of curves left out within the 90% interval from the other curves.
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


class Laws:
    """The scaling laws of recipes on corpora and tasks, each fitted once."""

    def __init__(self, evaluations: Evaluations) -> None:
        self.evaluations = evaluations
        self._donors: dict[tuple[str, str], Donor] = {}

    def trained_on(self, recipe: str) -> str:
        """Return the corpus that a recipe was trained on; empty if it is not known."""
        return training_corpus(self.evaluations, recipe)

    def donor(self, recipe: str, loss: str) -> Donor:
        """Return the law of a recipe on a corpus or a task."""
        if (recipe, loss) not in self._donors:
            points = loss_curve(self.evaluations, recipe, loss)
            self._donors[recipe, loss] = Donor(recipe, loss, points, scaling_law(points, resamples=0).law)
        return self._donors[recipe, loss]

    def donors(self, recipes: Sequence[str], loss: str) -> Donors:
        """Return the laws of recipes on their training corpora, and on a loss."""
        on_own = [self.donor(recipe, self.trained_on(recipe) or loss) for recipe in recipes]
        return Donors(tuple(on_own), tuple(self.donor(recipe, loss) for recipe in recipes))

    def of_one_kind(self, rows: Sequence[LossLeftOut], recipe: str, loss: str) -> list[LossLeftOut]:
        """Return the rows on training corpora if the loss is on one, else those on others; all if there are none."""
        is_own = loss == self.trained_on(recipe)
        return [row for row in rows if (row.loss == self.trained_on(row.recipe)) == is_own] or [*rows]


def translate(
    evaluations: Evaluations, recipe: str, models: Sequence[Model], *, loss: str = "", method: str = DEFAULT
) -> Translation:
    """Predict a loss of a recipe's larger models from a few small runs of it and the scaling laws of other recipes."""
    if not models:
        raise ToposcopeError("no model to predict; name its parameters N and its tokens D")
    if method not in (DEFAULT, *METHODS):
        raise ToposcopeError(f"method {method}: {choices(method, (DEFAULT, *METHODS))}")
    if recipe not in (known := recipes_of(evaluations)):
        raise ToposcopeError(f"recipe {recipe}: {choices(recipe, known)}")
    laws = Laws(evaluations)
    loss = loss or laws.trained_on(recipe)
    if not loss:
        raise ToposcopeError(
            f"recipe {recipe}: no corpus whose name begins as it does; name the loss, one of "
            f"{', '.join(corpora_of(evaluations))}"
        )
    names, remarks = [], []
    for other in known:
        try:
            if other != recipe:
                laws.donors([other], loss)
                names.append(other)
        except ToposcopeError as error:
            remarks.append(f"{other} is not used: {error}")
    runs = loss_curve(evaluations, recipe, loss)
    runs = runs.where(~np.isin(runs.run, [model.name for model in models]))

    def refused(why: str) -> Translation:
        predictions = [LossPrediction(model, np.nan, np.nan, np.nan, why) for model in models]
        return Translation(recipe, loss, runs, (), tuple(predictions), "", {}, np.nan, ())

    if not names:
        return refused("; ".join(["no other recipe has a law to lend", *remarks]))
    if not len(runs):
        return refused(f"no run of {recipe} with its loss on {loss}; train a small one")
    donors = laws.donors(names, loss)
    found, reasons = fit_methods(runs, donors)
    left_out = tuple(_left_out_of_all(laws, names, (recipe, loss), runs, donors))
    if method != DEFAULT and method not in found:
        return refused(reasons.get(method, f"{method}: needs shared_shape and own_law"))
    alike = laws.of_one_kind(left_out, recipe, loss)
    best = method if method != DEFAULT else min(found, key=lambda name: _score(alike, name))
    errors, drift = _by_curve(left_out, best), _donor_drift(donors)
    every = [error for of in errors.values() for error in of]
    top = max(float(donor.points.C.max()) for donor in donors.on_own)
    predictions = []
    for model in models:
        by_method = {name: float(at(np.array([model.N]), np.array([model.D]))[0]) for name, at in found.items()}
        value, compute = by_method[best], 6 * model.N * model.D
        width = quantile(np.array(every)) * _growth(compute / float(runs.C.max())) if every else np.nan
        if best != "own_law":
            width = float(np.hypot(width, drift * max(np.log(compute / top), 0.0)))
        low, high = (value * np.exp(-width), value * np.exp(width)) if np.isfinite(width) else (np.nan, np.nan)
        predictions.append(LossPrediction(model, value, float(low), float(high), methods=by_method))
    if not errors:
        remarks.append("no interval: nothing larger could be left out of any recipe")
    medians = {name: [abs(row.error) for row in alike if row.method == name] for name in found}
    return Translation(
        recipe,
        loss,
        runs,
        donors.on_own,
        tuple(predictions),
        best,
        {name: float(np.median(off)) if off else np.nan for name, off in medians.items()},
        coverage_by_group(errors),
        left_out,
        tuple(remarks),
    )


def fit_methods(runs: Points, donors: Donors) -> tuple[dict[str, LossAt], dict[str, str]]:
    """Return what each of `METHODS` fits to runs of a recipe, and why others cannot be fitted, by name."""
    found: dict[str, LossAt] = {}
    refused: dict[str, str] = {}
    for fit in (_shared_shape, _shifted_power_law, _own_law, _proportional):
        name = fit.__name__.removeprefix("_")
        try:
            found[name] = fit(runs, donors)
        except RefusedError as error:
            refused[name] = str(error)
    if "shared_shape" in found and "own_law" in found:
        one, other = found["shared_shape"], found["own_law"]
        found["average"] = lambda N, D: np.asarray(np.sqrt(one(N, D) * other(N, D)))
    return {name: found[name] for name in METHODS if name in found}, refused


def _proportional(runs: Points, donors: Donors) -> LossAt:
    """L1 = c L0, L0 on the same corpus: one run is enough; the geometric mean over donors."""
    laws = [donor.law for donor in donors.on_same]
    ratios = [np.exp(np.log(runs.loss / law.loss(runs.N, runs.D)).mean()) for law in laws]

    def at(N: Vector, D: Vector) -> Vector:
        logs = [np.log(c * law.loss(N, D)) for c, law in zip(ratios, laws, strict=True)]
        return np.asarray(np.exp(np.mean(logs, axis=0)))

    return at


def _shared_shape(runs: Points, donors: Donors) -> LossAt:
    """L1 = E1 + sum of K_d (L_d - E_d) over donors, none negative: least squares of the relative error by compute.

    Residuals beyond 1e-3 count linearly, as in the scaling law.
    """
    from scipy.optimize import nnls

    if len(np.unique(runs.loss)) < 2:
        raise RefusedError("shared_shape: one run; 2 are needed for a scale and an irreducible loss")
    columns = np.stack([np.ones(len(runs)), *(donor.reducible(runs.N, runs.D) for donor in donors.on_own)], axis=1)
    scaled, shares = columns / runs.loss[:, None], runs.C / runs.C.max()
    weights, coefficients = np.sqrt(shares), np.zeros(columns.shape[1])
    for _ in range(MAX_REWEIGHTINGS):
        before = coefficients
        coefficients = nnls(scaled * weights[:, None], weights)[0]
        if np.allclose(coefficients, before, rtol=1e-10, atol=0):
            break
        weights = np.sqrt(shares * DELTA / np.maximum(np.abs(scaled @ coefficients - 1), DELTA))

    def at(N: Vector, D: Vector) -> Vector:
        columns = np.stack([np.ones(np.shape(N)), *(donor.reducible(N, D) for donor in donors.on_own)], axis=-1)
        return np.asarray(columns @ coefficients)

    return at


def _shifted_power_law(runs: Points, donors: Donors) -> LossAt:
    """L1 = K (L0 - E0)^kappa + E1 from the donor of the best fit, L0 and E0 of its law (Brandfonbrener et al. 2024)."""
    laws = [donor.law for donor in donors.on_own]
    fits = [(fit_shifted_power_law(law.loss(runs.N, runs.D), runs.loss, E0=law.E), law) for law in laws]
    fitted, law = min(fits, key=lambda fit: fit[0].rms)
    return lambda N, D: fitted.law(law.loss(N, D))


def _own_law(runs: Points, donors: Donors) -> LossAt:
    """E + A / N^alpha + B / D^beta fitted to the runs of the new recipe alone."""
    return scaling_law(runs, resamples=0).law.loss


def _left_out_of_all(
    laws: Laws, recipes: Sequence[str], names: tuple[str, str], runs: Points, donors: Donors
) -> Iterator[LossLeftOut]:
    """Take each donor on each corpus for a new recipe with such runs; and predict the larger half of its own runs."""
    for recipe in recipes:
        others = [other for other in recipes if other != recipe]
        for corpus in dict.fromkeys([*corpora_of(laws.evaluations), names[1]]):
            try:
                curve = laws.donor(recipe, corpus).points
                if others:
                    lenders = laws.donors(others, corpus)
                elif laws.trained_on(recipe) not in ("", corpus):
                    lenders = laws.donors([recipe], laws.trained_on(recipe))
                else:
                    continue
            except ToposcopeError:
                continue  # a corpus on which one of them has no law is no case
            yield from _left_out(curve, _small_ones(curve, runs), (recipe, corpus), lenders)
    if len(runs) >= MIN_RUNS:
        yield from _left_out(runs, np.median(runs.C) >= runs.C, names, donors)


def _small_ones(curve: Points, like: Points) -> NDArray[np.bool_]:
    """Return the runs nearest to others in ln N and ln D, another for each; the smaller half if none is larger."""
    taken, compute = np.zeros(len(curve), dtype=bool), curve.C
    for N, D in list(zip(like.N, like.D, strict=True))[: len(curve)]:
        apart = np.where(taken, np.inf, np.abs(np.log(curve.N / N)) + np.abs(np.log(curve.D / D)))
        taken[int(np.argmin(apart))] = True
    if not (compute[~taken] >= MIN_LEFT_OUT_REACH * compute[taken].max()).any():
        taken &= compute <= np.median(compute[taken])
    return taken


def _left_out(curve: Points, small: NDArray[np.bool_], names: tuple[str, str], donors: Donors) -> Iterator[LossLeftOut]:
    runs = curve.where(small)
    top = float(runs.C.max())
    far = curve.where(~small & (MIN_LEFT_OUT_REACH * top <= curve.C))
    if not len(far):
        return
    for method, at in fit_methods(runs, donors)[0].items():
        predicted = at(far.N, far.D)
        for run, N, D, loss, guess in zip(far.run, far.N, far.D, far.loss, predicted, strict=True):
            reach = float(6 * N * D / top)
            yield LossLeftOut(*names, str(run), float(N), float(D), reach, method, float(guess), float(loss))


def _growth(reach: float) -> float:
    """Return 1 + ln(reach), at least 1: errors are taken to grow so with the compute of a model."""
    return 1 + max(float(np.log(reach)), 0.0)


def _by_curve(rows: Sequence[LossLeftOut], method: str) -> dict[tuple[str, str], list[float]]:
    """Return the errors of a method over `_growth`, by recipe and corpus."""
    cases: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row.method == method:
            cases.setdefault((row.recipe, row.loss), []).append(abs(row.error) / _growth(row.reach))
    return cases


def _score(rows: Sequence[LossLeftOut], method: str) -> float:
    """Return the geometric mean over curves of a method's root mean square error; infinite if it was never tried."""
    cases = [np.sqrt(np.mean(np.square(errors))) for errors in _by_curve(rows, method).values()]
    return float(np.exp(np.mean(np.log(np.maximum(cases, 1e-12))))) if cases else np.inf


def _donor_drift(donors: Donors) -> float:
    """Return the 90% quantile of what donors' laws miss beyond their runs, for each e-fold of compute; 0 if unknown."""
    missed: list[float] = []
    for donor in donors.on_own:
        points, compute = donor.points, donor.points.C
        small = compute <= DRIFT_SHARE * compute.max()
        edge = float(compute[small].max(initial=0.0))
        far = points.where(~small & (compute > MIN_LEFT_OUT_REACH * edge))
        try:
            law = scaling_law(points.where(small), resamples=0).law
        except RefusedError:
            continue
        folds = np.log(far.C / edge)
        missed += (np.abs(np.log(law.loss(far.N, far.D) / far.loss)) / folds).tolist()
    return quantile(np.array(missed)) if missed else 0.0
