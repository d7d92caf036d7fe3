"""How one loss follows from another: the shifted power law, and what other recipes' laws say of a new recipe's loss."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError, choices
from toposcope.forecasting.downstream.ladder import LOSSES, usual_metric
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.held_out import Mask, quantile
from toposcope.forecasting.least_squares import complex_step, huber_weights, least_squares
from toposcope.forecasting.scaling.law_search import DELTA
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import ScalingLaw, scaling_law
from toposcope.forecasting.tuning import DRIFT_SHARE, MIN_HELD_OUT_REACH
from toposcope.logs.evaluations import Evaluations
from toposcope.typing import Indices, Matrix, Vector

SAME_SIZE = 0.01  # largest relative difference of the parameters, and of the tokens, of runs that count as matched
MIN_MATCHED = 8  # runs of equal parameters and tokens, to be paired themselves rather than by a law
KAPPA_RANGE = (0.1, 10.0)
KAPPAS = np.geomspace(0.2, 5.0, 25)  # starts of kappa
FLOOR_SHARES = np.array([0.0, 0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.96, 0.99])  # starts of E0, in the lowest loss
MAX_FLOOR_SHARE = 1 - 1e-6  # of E0 in the lowest loss; at the lowest loss itself the law has no derivative
MAX_STARTS = 6  # starts that are followed to the end
LossAt = Callable[[Vector, Vector], Vector]  # from parameters and tokens to the loss
METHODS = ("shared_shape", "average", "own_law", "shifted_power_law", "proportional")
"""``average`` is the geometric mean of `shared_shape` and `own_law`, whose errors have opposite signs more often."""
MAX_REWEIGHTINGS = 50


def recipes_of(evaluations: Evaluations) -> tuple[str, ...]:
    """Return the recipes, sorted."""
    return tuple(sorted(evaluations.table["recipe"].drop_nulls().unique()))


def corpora_of(evaluations: Evaluations) -> tuple[str, ...]:
    """Return the corpora with losses, sorted."""
    return tuple(sorted(evaluations.table.filter(pl.col("role") == "corpus_loss")["task"].unique()))


def loss_curve(evaluations: Evaluations, recipe: str, loss: str) -> Points:
    """Return the mean loss, on a corpus or a task's right answers, that each run of a recipe ended at."""
    table = evaluations.table.filter(pl.col("role").is_in(["corpus_loss", "loss"]))
    for what, name, known in (("recipe", recipe, recipes_of(evaluations)), ("loss", loss, table["task"].unique())):
        if name not in known:
            raise ToposcopeError(f"{what} {name}: {choices(name, sorted(known))}")
    rows = table.filter((pl.col("task") == loss) & (pl.col("recipe") == recipe))
    if rows.is_empty():
        raise ToposcopeError(f"loss {loss}: not measured on recipe {recipe}")
    is_measured = pl.col("value").is_between(*LOSSES) & (pl.col("N") > 0) & (pl.col("D") > 0)
    rows = rows.filter((pl.col("metric") == usual_metric(rows["metric"])) & is_measured)
    if rows.is_empty():
        raise ToposcopeError(f"loss {loss}: no run of recipe {recipe} states its N, its D and a positive loss")
    ends = rows.filter(pl.col("D") == pl.col("D").max().over("run"))
    ends = ends.group_by("run", "N", "D").agg(pl.col("value").mean()).sort("N", "D", "run")
    N, D, value = (ends[name].to_numpy().astype(np.float64) for name in ("N", "D", "value"))
    return Points(N, D, value, ends["run"].to_numpy().astype(np.str_), np.full(len(ends), recipe, dtype=np.str_))


def training_corpus(evaluations: Evaluations, recipe: str) -> str:
    """Return the corpus whose name begins with more words of the recipe's name than any other; empty if none does.

    A recipe ``fineweb-edu-100b`` was trained on the corpus ``fineweb_edu_100b_val`` rather than ``fineweb_100b_val``.
    """

    def common(corpus: str) -> int:
        words = (re.findall(r"[a-z0-9]+", name.lower()) for name in (recipe, corpus))
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*words, strict=False)))

    ranked = sorted(((common(corpus), corpus) for corpus in corpora_of(evaluations)), reverse=True)
    if not ranked or ranked[0][0] == 0 or (len(ranked) > 1 and ranked[0][0] == ranked[1][0]):
        return ""
    return ranked[0][1]


@dataclass(frozen=True)
class ShiftedPowerLaw:
    """L1 = K (L0 - E0)^kappa + E1 (Brandfonbrener et al. 2024, equation 4); it rises with L0."""

    K: float
    E0: float
    kappa: float
    E1: float

    def __call__(self, loss: ArrayLike) -> Vector:
        """Return L1, of the shape of L0; E1 where L0 is E0 or less."""
        reducible = np.maximum(np.asarray(loss, dtype=np.float64) - self.E0, 0)
        return np.asarray(self.K * reducible**self.kappa + self.E1)


@dataclass(frozen=True, eq=False)
class FittedShiftedPowerLaw:
    """A shifted power law, the standard errors of its parameters by name, and the rms residual of ln L1."""

    law: ShiftedPowerLaw
    standard_errors: dict[str, float]
    rms: float


def fit_shifted_power_law(
    source: ArrayLike, target: ArrayLike, *, E0: float | None = None, E1: float | None = None
) -> FittedShiftedPowerLaw:
    """Fit L1 = K (L0 - E0)^kappa + E1 by least squares of ln L1; a given E0 or E1 is not fitted.

    Given E0 and kappa the law is linear in K and E1: all pairs of a grid are solved, and the best followed to the end.
    """
    x, y = (np.asarray(losses, dtype=np.float64).ravel() for losses in (source, target))
    free = np.array([True, True, E0 is None, E1 is None])
    _check(x, y, E0, E1, int(free.sum()))
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    unit_x, unit_y = float(np.exp(np.log(x).mean())), float(np.exp(np.log(y).mean()))
    u, v = x / unit_x, y / unit_y
    given = np.array([0, 0, 0 if E0 is None else E0 / unit_x, 0 if E1 is None else E1 / unit_y])

    def residuals(theta: NDArray[np.complex128], _: Indices) -> NDArray[np.complex128]:
        whole = np.tile(given.astype(np.complex128), (len(theta), 1))
        whole[:, free] = theta
        log_k, log_kappa, e0, e1 = (column[:, None] for column in whole.T)
        return np.asarray(np.log(np.exp(log_k) * (u - e0) ** np.exp(log_kappa) + e1) - np.log(v))

    starts = _starts(u, v, E0=None if E0 is None else given[2], E1=None if E1 is None else given[3])
    tops = np.array([30.0, np.log(KAPPA_RANGE[1]), MAX_FLOOR_SHARE * u.min(), MAX_FLOOR_SHARE * v.min()])
    bounds = np.array([-30.0, np.log(KAPPA_RANGE[0]), 0, 0])[free], tops[free]
    linearised = complex_step(residuals)
    theta, squares = least_squares(
        linearised, starts[:MAX_STARTS, free], bounds=bounds, tolerance=1e-26, relative=1e-14, steps=500
    )
    best = int(np.argmin(squares))
    whole = given.astype(np.float64)
    whole[free] = theta[best]
    kappa = float(np.exp(whole[1]))
    law = ShiftedPowerLaw(
        float(np.exp(whole[0])) * unit_y / unit_x**kappa,
        float(whole[2]) * unit_x if E0 is None else E0,
        kappa,
        float(whole[3]) * unit_y if E1 is None else E1,
    )
    _, jacobian = linearised(theta[[best]], np.arange(1))
    errors = _standard_errors(jacobian[0], float(squares[best]), law, free, unit_x, unit_y)
    return FittedShiftedPowerLaw(law, errors, float(np.sqrt(squares[best] / len(x))))


def _check(x: Vector, y: Vector, E0: float | None, E1: float | None, n_free: int) -> None:
    if len(x) != len(y):
        raise RefusedError(f"shifted power law: {len(x)} losses for {len(y)}; give pairs")
    if not (np.isfinite(x + y).all() and (x > 0).all() and (y > 0).all()):
        raise RefusedError("shifted power law: a loss is not finite and positive; leave out runs that diverged")
    different = len(np.unique(x))
    if different <= n_free:
        raise RefusedError(
            f"shifted power law: {different} different losses for {n_free} free parameters; {n_free + 1} are needed, "
            "or irreducible losses that are known"
        )
    for name, floor, losses in (("E0", E0, x), ("E1", E1, y)):
        if floor is not None and not 0 <= floor < losses.min():
            raise RefusedError(
                f"shifted power law: {name} is {floor:.4g}, not below the lowest loss {losses.min():.4g}"
            )


def _starts(u: Vector, v: Vector, E0: float | None, E1: float | None) -> Matrix:
    """Return ln K, ln kappa, E0 and E1 at all pairs of E0 and kappa, the best first.

    K > 0 and E1 >= 0 are by least squares of the relative error.
    """
    floors = FLOOR_SHARES * u.min() if E0 is None else np.array([E0])
    e0, kappa = (axis.ravel() for axis in np.meshgrid(floors, KAPPAS, indexing="ij"))
    a, b = (u - e0[:, None]) ** kappa[:, None] / v, 1 / v
    aa, ab, bb, a1, b1 = (a * a).sum(1), a @ b, b @ b, a.sum(1), b.sum()
    e1 = np.full(len(a), E1 or 0.0)
    if E1 is None:
        determinant = aa * bb - ab * ab
        whole = np.where(determinant > 1e-12 * aa * bb, determinant, np.inf)
        k, free_e1 = (bb * a1 - ab * b1) / whole, (aa * b1 - ab * a1) / whole
        e1 = np.where((k > 0) & (free_e1 >= 0), free_e1, 0.0)
    k = np.maximum((a1 - e1 * ab) / aa, 1e-12)
    off = k[:, None] * a + e1[:, None] * b - 1
    return np.stack([np.log(k), np.log(kappa), e0, e1], axis=1)[np.argsort((off**2).sum(1), kind="stable")]


def _standard_errors(
    jacobian: Matrix, squares: float, law: ShiftedPowerLaw, free: Vector, unit_x: float, unit_y: float
) -> dict[str, float]:
    """Return those of the linearised problem, by name; 0 of what was given, NaN of what is not determined."""
    n, p = jacobian.shape
    gram = jacobian.T @ jacobian
    scale = np.sqrt(np.diag(gram))
    names = np.array(["K", "kappa", "E0", "E1"])
    errors = dict(zip(names.tolist(), np.where(free, np.nan, 0.0).tolist(), strict=True))
    if not (scale > 0).all() or np.linalg.cond(gram / np.outer(scale, scale)) > 1e14:
        return errors
    covariance = np.linalg.inv(gram / np.outer(scale, scale)) / np.outer(scale, scale) * squares / (n - p)
    # ln K in the units of the losses is ln K' + ln unit_y - kappa ln unit_x
    gradient = np.zeros(p)
    gradient[:2] = 1.0, -law.kappa * np.log(unit_x)
    deviations = np.array([np.nan, law.kappa, unit_x, unit_y])[free] * np.sqrt(np.diag(covariance))
    errors |= dict(zip(names[free].tolist(), deviations.tolist(), strict=True))
    return errors | {"K": law.K * float(np.sqrt(gradient @ covariance @ gradient))}


@dataclass(frozen=True, eq=False)
class LossLink:
    """A shifted power law between two losses, what it is used for, how runs were paired, and the pairs."""

    use: str  # ``train-to-train``, ``train-to-test`` or ``test-to-test``
    pairing: str  # ``losses of the same runs``, ``matched runs`` or ``by law``
    L0: Vector
    L1: Vector
    fitted: FittedShiftedPowerLaw
    remarks: tuple[str, ...] = ()


def loss_to_loss(
    evaluations: Evaluations, source: tuple[str, str], target: tuple[str, str], pairing: str = ""
) -> LossLink:
    """Fit the shifted power law between two losses, each a recipe and its loss on a corpus or task.

    Irreducible losses are those of the scaling laws where these have any below the losses. Losses of one recipe are
    paired by run; of two by equal parameters and tokens if there are 8 such pairs, else by the law of the source.
    """
    one, other = loss_curve(evaluations, *source), loss_curve(evaluations, *target)
    if source[0] == target[0]:
        _, i, j = np.intersect1d(one.run, other.run, return_indices=True)
        pairing = "losses of the same runs"
    else:
        i, j = _matched_runs(one, other)
        pairing = pairing or ("matched runs" if len(i) >= MIN_MATCHED else "by law")
    L0, L1 = one.loss[i], other.loss[j]
    if pairing == "by law":
        L0, L1 = np.asarray(scaling_law(one, resamples=0).law.loss(other.N, other.D)), other.loss
    remarks: list[str] = []
    E0, E1 = _floor(one, L0, remarks), _floor(other, L1, remarks)
    fitted = fit_shifted_power_law(L0, L1, E0=E0, E1=E1)
    if E0 is not None and E1 is not None:
        remarks.append("E0 and E1 are those of the scaling laws: the errors of K and kappa do not contain theirs")
    from_train, to_train = (loss == training_corpus(evaluations, recipe) for recipe, loss in (source, target))
    use = "test-to-test"
    if from_train and not (to_train and source[0] == target[0]):
        use = "train-to-train" if to_train else "train-to-test"
    return LossLink(use, pairing, L0, L1, fitted, tuple(remarks))


def _matched_runs(one: Points, other: Points) -> tuple[Indices, Indices]:
    """Return the places of runs of both with equal parameters and tokens, as pairs; each run in one, the nearest."""
    apart = np.maximum(np.abs(np.log(one.N[:, None] / other.N)), np.abs(np.log(one.D[:, None] / other.D)))
    i, j = np.nonzero(apart <= np.log1p(SAME_SIZE))
    order = np.lexsort((j, i, apart[i, j]))
    pairs: dict[int, int] = {}
    for a, b in zip(i[order].tolist(), j[order].tolist(), strict=True):
        if a not in pairs and b not in pairs.values():
            pairs[a] = b
    places = sorted(pairs)
    return np.array(places, dtype=np.int64), np.array([pairs[place] for place in places], dtype=np.int64)


def _floor(curve: Points, losses: Vector, remarks: list[str]) -> float | None:
    """Return the irreducible loss by the scaling law; None, with a remark, if there is none below the losses."""
    try:
        floor = scaling_law(curve, resamples=0).law.E
    except RefusedError as error:
        remarks.append(f"{curve.family[0]}: its irreducible loss is fitted with the link, as there is no law ({error})")
        return None
    if not floor < losses.min():
        remarks.append(f"{curve.family[0]}: its law has an irreducible loss above its lowest loss; it is fitted here")
        return None
    return floor


@dataclass(frozen=True, eq=False)
class Donor:
    """A recipe whose law on a corpus or task is known."""

    recipe: str
    points: Points
    law: ScalingLaw

    def reducible(self, N: Vector, D: Vector) -> Vector:
        """Return the loss by the law above its irreducible part."""
        return self.law.loss(N, D) - self.law.E


class Donors(NamedTuple):
    """The laws of other recipes on their own corpora, and on the corpus that is predicted."""

    on_own: tuple[Donor, ...]
    on_same: tuple[Donor, ...]


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
    logs = [np.log(runs.loss / law.loss(runs.N, runs.D)).mean() for law in laws]
    return lambda N, D: np.exp(np.mean([c + np.log(law.loss(N, D)) for c, law in zip(logs, laws, strict=True)], axis=0))


def _shared_shape(runs: Points, donors: Donors) -> LossAt:
    """L1 = E1 + sum of K_d (L_d - E_d) over donors, none negative: least squares of the relative error by compute.

    Residuals beyond 1e-3 count linearly, as in the scaling law.
    """
    from scipy.optimize import nnls

    if len(np.unique(runs.loss)) < 2:
        raise RefusedError("shared_shape: one run; 2 are needed for a scale and an irreducible loss")

    def columns(N: Vector, D: Vector) -> Vector:
        return np.stack([np.ones(np.shape(N)), *(donor.reducible(N, D) for donor in donors.on_own)], axis=-1)

    scaled, shares = columns(runs.N, runs.D) / runs.loss[:, None], runs.C / runs.C.max()
    weights, coefficients = np.sqrt(shares), np.zeros(scaled.shape[1])
    for _ in range(MAX_REWEIGHTINGS):
        before = coefficients
        coefficients = nnls(scaled * weights[:, None], weights)[0]
        if np.allclose(coefficients, before, rtol=1e-10, atol=0):
            break
        weights = np.sqrt(shares * huber_weights(np.abs(scaled @ coefficients - 1), DELTA, DELTA))
    return lambda N, D: np.asarray(columns(N, D) @ coefficients)


def _shifted_power_law(runs: Points, donors: Donors) -> LossAt:
    """L1 = K (L0 - E0)^kappa + E1 from the donor of the best fit, L0 and E0 of its law (Brandfonbrener et al. 2024)."""
    laws = [donor.law for donor in donors.on_own]
    fits = [(fit_shifted_power_law(law.loss(runs.N, runs.D), runs.loss, E0=law.E), law) for law in laws]
    fitted, law = min(fits, key=lambda fit: fit[0].rms)
    return lambda N, D: fitted.law(law.loss(N, D))


def _own_law(runs: Points, donors: Donors) -> LossAt:
    """E + A / N^alpha + B / D^beta fitted to the runs of the new recipe alone."""
    return scaling_law(runs, resamples=0).law.loss


@dataclass(frozen=True)
class HeldOutLoss:
    """A run that was held out and predicted from smaller runs of its recipe and the laws of other recipes."""

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
        """The absolute error of ln L over `growth`, which is what errors grow by with the compute of a model."""
        return abs(float(np.log(self.predicted / self.true))) / growth(self.reach)


def small_ones(curve: Points, like: Points) -> Mask:
    """Return the runs nearest to others in ln N and ln D, another for each; the smaller half if none is larger."""
    taken, compute = np.zeros(len(curve), dtype=bool), curve.C
    for N, D in list(zip(like.N, like.D, strict=True))[: len(curve)]:
        apart = np.where(taken, np.inf, np.abs(np.log(curve.N / N)) + np.abs(np.log(curve.D / D)))
        taken[int(np.argmin(apart))] = True
    if not (compute[~taken] >= MIN_HELD_OUT_REACH * compute[taken].max()).any():
        taken &= compute <= np.median(compute[taken])
    return taken


def larger_held_out(curve: Points, small: Mask, names: tuple[str, str], donors: Donors) -> Iterator[HeldOutLoss]:
    """Yield the larger runs of a curve as each method predicts them from its small ones."""
    runs = curve.where(small)
    top = float(runs.C.max())
    far = curve.where(~small & (MIN_HELD_OUT_REACH * top <= curve.C))
    for method, at in fit_methods(runs, donors)[0].items() if len(far) else ():
        columns = (far.run, far.N, far.D, far.C / top, at(far.N, far.D), far.loss)
        for run, N, D, reach, predicted, true in zip(*(column.tolist() for column in columns), strict=True):
            yield HeldOutLoss(*names, run, N, D, reach, method, predicted, true)


def growth(reach: float) -> float:
    """Return 1 + ln(reach), at least 1: errors are taken to grow so with the compute of a model."""
    return 1 + max(float(np.log(reach)), 0.0)


def errors_by_curve(rows: Sequence[HeldOutLoss], method: str) -> dict[tuple[str, str], list[float]]:
    """Return the errors of a method, by recipe and corpus."""
    cases: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row.method == method:
            cases.setdefault((row.recipe, row.loss), []).append(row.error)
    return cases


def error_of(rows: Sequence[HeldOutLoss], method: str) -> float:
    """Return the geometric mean over curves of a method's root mean square error; infinite if it was never tried."""
    cases = [np.sqrt(np.mean(np.square(errors))) for errors in errors_by_curve(rows, method).values()]
    return float(np.exp(np.mean(np.log(np.maximum(cases, 1e-12))))) if cases else np.inf


def donor_drift(donors: Donors) -> float:
    """Return the 90% quantile of what donors' laws miss beyond their runs, for each e-fold of compute; 0 if unknown."""
    missed: list[float] = []
    for points in (donor.points for donor in donors.on_own):
        small = DRIFT_SHARE * points.C.max() >= points.C
        edge = float(points.C[small].max(initial=0.0))
        far = points.where(~small & (MIN_HELD_OUT_REACH * edge < points.C))
        try:
            law = scaling_law(points.where(small), resamples=0).law
        except RefusedError:
            continue
        missed += (np.abs(np.log(law.loss(far.N, far.D) / far.loss)) / np.log(far.C / edge)).tolist()
    return quantile(np.array(missed)) if missed else 0.0
