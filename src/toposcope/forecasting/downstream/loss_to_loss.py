"""How one loss follows from another: losses of recipes, and the shifted power law L1 = K (L0 - E0)^kappa + E1."""

import re
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from toposcope.errors import ToposcopeError, choices
from toposcope.forecasting.downstream.ladder import LOSSES, usual_metric
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import scaling_law
from toposcope.logs.evaluations import Evaluations
from toposcope.typing import Indices, Matrix, Vector

SAME = 0.01  # largest relative difference of the parameters, and of the tokens, of runs that count as matched
MIN_MATCHED = 8  # runs of equal parameters and tokens, to be paired themselves rather than by a law
SAME_RUNS, MATCHED, BY_LAW = "losses of the same runs", "matched runs", "by law"
TRAIN_TO_TRAIN, TRAIN_TO_TEST, TEST_TO_TEST = "train-to-train", "train-to-test", "test-to-test"
NAMES = ("K", "kappa", "E0", "E1")
KAPPA_RANGE = (0.1, 10.0)
KAPPAS = np.geomspace(0.2, 5.0, 25)  # starts of kappa
FLOOR_SHARES = (0.0, 0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.96, 0.99)  # starts of a free E0, as shares of the lowest loss
MAX_FLOOR_SHARE = 1 - 1e-6  # of E0 in the lowest loss; at the lowest loss itself the law has no derivative
MAX_STARTS, MAX_STARTS_WITH_FLOOR = 6, 2  # starts that are followed to the end; with a given E0 only kappa is searched
TOLERANCE = 1e-14


def recipes_of(evaluations: Evaluations) -> tuple[str, ...]:
    """Return the recipes, sorted."""
    return tuple(sorted(evaluations.table["recipe"].drop_nulls().unique()))


def corpora_of(evaluations: Evaluations) -> tuple[str, ...]:
    """Return the corpora with losses, sorted."""
    return tuple(sorted(evaluations.table.filter(pl.col("role") == "corpus_loss")["task"].unique()))


def loss_curve(evaluations: Evaluations, recipe: str, loss: str) -> Points:
    """Return the mean loss, on a corpus or a task's right answers, that each run of a recipe ended at."""
    recipes = recipes_of(evaluations)
    if recipe not in recipes:
        raise ToposcopeError(f"recipe {recipe}: {choices(recipe, recipes)}")
    table = evaluations.table.filter(pl.col("role").is_in(["corpus_loss", "loss"]))
    if loss not in (names := sorted(table["task"].unique())):
        raise ToposcopeError(f"loss {loss}: {choices(loss, names)}")
    rows = table.filter((pl.col("task") == loss) & (pl.col("recipe") == recipe))
    if rows.is_empty():
        raise ToposcopeError(f"loss {loss}: not measured on recipe {recipe}")
    metric = usual_metric(rows["metric"])
    is_measured = pl.col("value").is_between(*LOSSES) & (pl.col("N") > 0) & (pl.col("D") > 0)
    rows = rows.filter((pl.col("metric") == metric) & is_measured)
    if rows.is_empty():
        raise ToposcopeError(f"loss {loss}: no run of recipe {recipe} states its N, its D and a positive loss")
    is_end = pl.col("D") == pl.col("D").max().over("run")
    ends = rows.filter(is_end).group_by("run", "N", "D").agg(pl.col("value").mean()).sort("N", "D", "run")
    N, D, value = (ends[name].to_numpy().astype(np.float64) for name in ("N", "D", "value"))
    return Points(N, D, value, ends["run"].to_numpy().astype(np.str_), np.full(len(ends), recipe, dtype=np.str_))


def training_corpus(evaluations: Evaluations, recipe: str) -> str:
    """Return the corpus whose name begins with more words of the recipe's name than any other; empty if none does.

    A recipe ``fineweb-edu-100b`` was trained on the corpus ``fineweb_edu_100b_val`` rather than ``fineweb_100b_val``.
    """

    def words(name: str) -> list[str]:
        return re.findall(r"[a-z0-9]+", name.lower())

    def common(corpus: str) -> int:
        pairs = zip(words(recipe), words(corpus), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

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
        found: Vector = self.K * reducible**self.kappa + self.E1
        return found


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
    from scipy.optimize import least_squares

    x, y = (np.asarray(losses, dtype=np.float64).ravel() for losses in (source, target))
    free = np.array([True, True, E0 is None, E1 is None])
    _check(x, y, E0, E1, int(free.sum()))
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    unit_x, unit_y = float(np.exp(np.log(x).mean())), float(np.exp(np.log(y).mean()))
    u, v = x / unit_x, y / unit_y
    given = np.array([np.nan, np.nan, np.nan if E0 is None else E0 / unit_x, np.nan if E1 is None else E1 / unit_y])

    def whole(theta: Vector) -> list[float]:
        """Return ln K, ln kappa, E0 and E1, those that are given included."""
        every = given.copy()
        every[free] = theta
        return [float(value) for value in every]

    def residuals(theta: Vector) -> Vector:
        log_k, log_kappa, e0, e1 = whole(theta)
        return np.asarray(np.log(np.exp(log_k) * (u - e0) ** np.exp(log_kappa) + e1) - np.log(v))

    def jacobian(theta: Vector) -> Matrix:
        log_k, log_kappa, e0, e1 = whole(theta)
        kappa, log_g = np.exp(log_kappa), np.log(u - e0)
        power = np.exp(log_k + kappa * log_g)
        columns = (power, power * kappa * log_g, -power * kappa / (u - e0), np.ones_like(u))
        chosen = [column for column, is_free in zip(columns, free, strict=True) if is_free]
        return np.asarray(np.stack(chosen, axis=1) / (power + e1)[:, None])

    tops = (30.0, np.log(KAPPA_RANGE[1]), MAX_FLOOR_SHARE * float(u.min()), MAX_FLOOR_SHARE * float(v.min()))
    box = np.array([-30.0, np.log(KAPPA_RANGE[0]), 0.0, 0.0])[free], np.array(tops)[free]
    options = {"ftol": TOLERANCE, "xtol": TOLERANCE, "gtol": TOLERANCE, "max_nfev": 500}
    starts = [start[free] for start in _starts(u, v, given)[: MAX_STARTS if free[2] else MAX_STARTS_WITH_FLOOR]]
    fits = [
        least_squares(residuals, np.clip(start, *box), jacobian, bounds=box, x_scale="jac", **options)
        for start in starts
    ]
    best = min(fits, key=lambda fit: fit.cost)
    log_k, log_kappa, e0, e1 = whole(best.x)
    kappa = float(np.exp(log_kappa))
    law = ShiftedPowerLaw(
        float(np.exp(log_k)) * unit_y / unit_x**kappa,
        e0 * unit_x if E0 is None else E0,
        kappa,
        e1 * unit_y if E1 is None else E1,
    )
    errors = _standard_errors(best.jac, best.cost, law, free, unit_x, unit_y)
    return FittedShiftedPowerLaw(law, errors, float(np.sqrt(2 * best.cost / len(x))))


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


def _starts(u: Vector, v: Vector, given: Vector) -> Matrix:
    """Return parameters at all pairs of E0 and kappa, those of the least squares of the relative error first."""
    rows, costs = [], []
    for e0 in [float(given[2])] if np.isfinite(given[2]) else [share * float(u.min()) for share in FLOOR_SHARES]:
        for kappa in KAPPAS:
            k, e1 = _linear_part((u - e0) ** kappa, v, float(given[3]))
            off = (k * (u - e0) ** kappa + e1) / v - 1
            costs.append(float(off @ off))
            rows.append([np.log(k), np.log(kappa), e0, e1])
    return np.array(rows)[np.argsort(costs, kind="stable")]


def _linear_part(g: Vector, y: Vector, E1: float) -> tuple[float, float]:
    """Return K > 0 and E1 >= 0 of y = K g + E1, by least squares of the relative error; an E1 of NaN is free."""
    a, b = g / y, 1 / y
    if np.isnan(E1):
        aa, ab, bb, a1, b1 = a @ a, a @ b, b @ b, a.sum(), b.sum()
        determinant = aa * bb - ab * ab
        if determinant > 1e-12 * aa * bb:
            k, e = (bb * a1 - ab * b1) / determinant, (aa * b1 - ab * a1) / determinant
            if k > 0 and e >= 0:
                return float(k), float(e)
        E1 = 0.0
    k = float(a @ (1 - E1 * b) / (a @ a))
    return max(k, 1e-12 * float(y.min() / g.max())), E1


def _standard_errors(
    jacobian: Matrix, cost: float, law: ShiftedPowerLaw, free: Vector, unit_x: float, unit_y: float
) -> dict[str, float]:
    n, p = jacobian.shape
    gram = jacobian.T @ jacobian
    scale = np.sqrt(np.diag(gram))
    errors = {name: np.nan if is_free else 0.0 for name, is_free in zip(NAMES, free, strict=True)}
    if not (scale > 0).all() or np.linalg.cond(gram / np.outer(scale, scale)) > 1e14:
        return errors
    covariance = np.linalg.inv(gram / np.outer(scale, scale)) / np.outer(scale, scale) * 2 * cost / (n - p)
    # ln K in the units of the losses is ln K' + ln unit_y - kappa ln unit_x
    gradient = np.zeros(p)
    gradient[0], gradient[1] = 1.0, -law.kappa * np.log(unit_x)
    deviations = np.sqrt(np.diag(covariance))
    units = np.array([np.nan, law.kappa, unit_x, unit_y])[free]
    fitted = [name for name, is_free in zip(NAMES, free, strict=True) if is_free]
    errors |= dict(zip(fitted, (units * deviations).tolist(), strict=True))
    return errors | {"K": law.K * float(np.sqrt(gradient @ covariance @ gradient))}


@dataclass(frozen=True, eq=False)
class LossLink:
    """A shifted power law between two losses, what it is used for, how runs were paired, and the pairs."""

    use: str
    pairing: str
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
    remarks: list[str] = []
    if source[0] == target[0]:
        _, i, j = np.intersect1d(one.run, other.run, return_indices=True)
        how = SAME_RUNS
    else:
        i, j = _matched_runs(one, other)
        how = pairing or (MATCHED if len(i) >= MIN_MATCHED else BY_LAW)
    if how == BY_LAW:
        L0, L1 = np.asarray(scaling_law(one, resamples=0).law.loss(other.N, other.D)), other.loss
    else:
        L0, L1 = one.loss[i], other.loss[j]
    E0, E1 = _floor(one, L0, remarks), _floor(other, L1, remarks)
    fitted = fit_shifted_power_law(L0, L1, E0=E0, E1=E1)
    if E0 is not None and E1 is not None:
        remarks.append("E0 and E1 are those of the scaling laws: the errors of K and kappa do not contain theirs")
    return LossLink(_use(evaluations, source, target), how, L0, L1, fitted, tuple(remarks))


def _matched_runs(one: Points, other: Points) -> tuple[Indices, Indices]:
    """Return the places of runs of both with equal parameters and tokens, as pairs; each run in one, the nearest."""
    apart = np.maximum(np.abs(np.log(one.N[:, None] / other.N)), np.abs(np.log(one.D[:, None] / other.D)))
    i, j = np.nonzero(apart <= np.log1p(SAME))
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


def _use(evaluations: Evaluations, source: tuple[str, str], target: tuple[str, str]) -> str:
    is_train = [loss == training_corpus(evaluations, recipe) for recipe, loss in (source, target)]
    if source[0] == target[0]:
        return TRAIN_TO_TEST if is_train[0] and not is_train[1] else TEST_TO_TEST
    return TRAIN_TO_TRAIN if all(is_train) else TRAIN_TO_TEST if is_train[0] else TEST_TO_TEST
