"""How one loss follows from another: the shifted power law between losses of recipes, corpora and tasks."""

import re
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from toposcope.extend import (
    Indices,
    Matrix,
    Points,
    RefusedError,
    ToposcopeError,
    Vector,
    choices,
    complex_step,
    least_squares,
    scaling_law,
)
from toposcope_downstream.evaluations import Evaluations
from toposcope_downstream.ladder import LOSSES, usual_metric

SAME_SIZE = 0.01  # largest relative difference of the parameters, and of the tokens, of runs that count as matched
MIN_MATCHED = 8  # runs of equal parameters and tokens, to be paired themselves rather than by a law
KAPPA_RANGE = (0.1, 10.0)
KAPPAS = np.geomspace(0.2, 5.0, 25)  # starts of kappa
FLOOR_SHARES = np.array([0.0, 0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.96, 0.99])  # starts of E0, in the lowest loss
MAX_FLOOR_SHARE = 1 - 1e-6  # of E0 in the lowest loss; at the lowest loss itself the law has no derivative
MAX_STARTS = 6  # starts that are followed to the end


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
