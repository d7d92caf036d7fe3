"""The power of the verdict: how often it finds features planted in the runs (docs/methods/association.md)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.polynomial.chebyshev import chebvander
from numpy.typing import NDArray

from toposcope.analysis.adjustment import replicated
from toposcope.analysis.association import COLUMNS, MIN_CHECKPOINTS, NORM, PARTIALLED, RATE
from toposcope.analysis.pairing import MIN_RUNS, pairing_p
from toposcope.analysis.ranks import MIN_RESIDUAL_SHARE, correlate, is_free, partial, partial_rho, ranks
from toposcope.analysis.verdict import (
    ADJUSTED,
    BEYOND,
    FAMILY,
    MIN_POWER,
    NONE,
    PLANTED,
    POWER,
    RUNS,
    TREND,
    UNDETERMINED,
    verdicts_of,
)
from toposcope.seeds import derive_seed
from toposcope.typing import Matrix, Vector

SEED = 42
N_PLANTED = 32
"""Features planted in each run."""
SIZES = (PLANTED, 0.6, 0.75, 0.9)
"""Partial correlations that are planted."""
MAX_DEGREE, CHECKPOINTS_PER_DEGREE = 6, 8
"""Of the polynomial that the loss follows, in the logarithm of the step."""


@dataclass(frozen=True, eq=False)
class PlantedRun:
    """What features of one run are measured against.

    Attributes
    ----------
    number : int
        Runs of one table have different ones.
    steps : ndarray, shape (n,), int64
        Where target and features are known.
    target : ndarray, shape (n,)
    clocks : mapping of ndarray, shape (n,)
        Those of `AssociationTask` that are known at all of these steps.
    scale : ndarray, shape (n,)
        The features' own clock; NaN where it is not known.
    """

    number: int
    steps: NDArray[np.int64]
    target: Vector
    clocks: Mapping[str, Vector]
    scale: Vector

    def residual(self) -> Vector:
        """Return what a smooth curve and the clocks leave of the losses, of length 1, or 0 if they leave nothing.

        The curve is a polynomial in the logarithm of the step.
        """
        time = np.log1p((self.steps - self.steps[0]) / (self.steps[1] - self.steps[0]))
        degree = min(MAX_DEGREE, len(time) // CHECKPOINTS_PER_DEGREE)
        known = [clock for name, clock in self.clocks.items() if name in PARTIALLED] + [self.filled_scale()]
        clocks = [(clock - clock.mean()) / np.ptp(clock) for clock in known if np.ptp(clock) > 0]
        basis, _ = np.linalg.qr(np.column_stack([chebvander(2 * time / time[-1] - 1, degree), *clocks]))
        left = self.target - basis @ (basis.T @ self.target)
        size = float(np.linalg.norm(left))
        return left / size if size > MIN_RESIDUAL_SHARE * float(np.linalg.norm(self.target)) else np.zeros(len(time))

    def filled_scale(self) -> Vector:
        """Return the features' own clock, interpolated where it is not known; 0 without one."""
        known = np.isfinite(self.scale)
        return np.interp(self.steps, self.steps[known], self.scale[known]) if known.any() else np.zeros(len(known))


@dataclass(frozen=True, eq=False)
class _Grid:
    """Runs of a family with the same steps: their targets and covariates, ranked.

    Attributes
    ----------
    members : list of int
        Their places in the family.
    runs : list of PlantedRun
    """

    members: list[int]
    runs: list[PlantedRun]

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        return self.runs[0].steps

    @cached_property
    def target(self) -> Matrix:
        return ranks(np.array([run.target for run in self.runs]))

    @cached_property
    def change(self) -> Matrix:
        return ranks(np.diff([run.target for run in self.runs]))

    @cached_property
    def step(self) -> NDArray[np.float64]:
        """Ranks of the step, shape (1, 1, n)."""
        return ranks(self.steps.astype(np.float64))[None, None]

    @cached_property
    def clocks(self) -> NDArray[np.float64]:
        """Ranks of `PARTIALLED`, 0 where unknown, shape (r, k, n)."""
        return ranks(self._clocks(PARTIALLED))

    @cached_property
    def scale(self) -> NDArray[np.float64]:
        """Ranks of the step and of the features' own clock, shape (r, 2, n)."""
        return ranks(np.array([[self.steps, run.filled_scale()] for run in self.runs]))

    @cached_property
    def changes(self) -> NDArray[np.float64]:
        """Ranks of the step and of the changes of learning rate and weight norm, shape (r, 3, n - 1)."""
        moved = np.diff(self._clocks((RATE, NORM)))
        return ranks(np.concatenate([np.broadcast_to(self.steps[1:], (len(moved), 1, len(self.steps) - 1)), moved], 1))

    def _clocks(self, names: Sequence[str]) -> NDArray[np.float64]:
        unknown = np.zeros(len(self.steps))
        return np.array([[run.clocks.get(name, unknown) for name in names] for run in self.runs])

    def own(self, planted: NDArray[np.float64]) -> dict[str, Matrix]:
        """Return the columns of features of each run, shape (r, f, n), that need no other run."""
        x, moved = ranks(planted), ranks(np.diff(planted))
        known = np.array([float(np.isfinite(run.scale).sum()) or np.nan for run in self.runs])
        results = {
            "given_step": partial(x, self.target, self.step),
            "given_all": partial(x, self.target, self.clocks),
            "differences_given_step": partial(moved, self.change, self.changes[:, :2]),
            "differences_given_all": partial(moved, self.change, self.changes),
        }
        if np.isfinite(known).any():
            results["given_scale"] = partial(x, self.target, self.scale)
        of_clocks = correlate(self.clocks, self.target)[:, :, None].repeat(planted.shape[1], 2).swapaxes(0, 1)
        return {
            "rho": correlate(x, self.target),
            "n": np.full(x.shape[:2], float(x.shape[2])),
            "n_scale": np.broadcast_to(known[:, None], x.shape[:2]),
            **{f"rho_{name}": rho for name, rho in zip(PARTIALLED, of_clocks, strict=True)},
            **{f"rho_{name}": result.rho for name, result in results.items()},
            **{f"p_{name}": result.p for name, result in results.items()},
        }

    def pairings(self, planted: Sequence[Matrix], family: Sequence[PlantedRun], *, of_changes: bool) -> Matrix:
        """Return the strengths of all runs' features against the targets of these runs, shape (r, f, runs).

        Given the step, or of the changes given the clocks; NaN where runs have too few steps in common.
        """
        common = [np.isin(self.steps, run.steps).sum() for run in family]
        comparable = np.array(common) >= max(MIN_CHECKPOINTS, len(self.steps) / 2)
        values = np.concatenate([self._here(*of) for of in zip(planted, family, strict=True)])
        y, controls = (self.change, self.changes) if of_changes else (self.target, self.step)
        rho = partial_rho(ranks(np.diff(values) if of_changes else values)[None], y, controls)
        free = is_free(y[:, None], controls)
        strengths = np.nan_to_num(np.abs(rho)).reshape(len(self.runs), len(family), -1).swapaxes(1, 2)
        return np.where(free[:, :, None] & comparable, strengths, np.nan)

    def _here(self, planted: Matrix, run: PlantedRun) -> Matrix:
        """Return another run's features at these steps, interpolated where it has others."""
        if np.array_equal(run.steps, self.steps):
            return planted
        return np.array([np.interp(self.steps, run.steps, feature) for feature in planted])


class _Family:
    """The runs of a feature, as one of so many features of the table with the same target."""

    def __init__(self, runs: Sequence[PlantedRun], n_features: int) -> None:
        self.runs, self.n_features = runs, n_features
        members: dict[bytes, list[int]] = {}
        for place, run in enumerate(runs):
            members.setdefault(run.steps.tobytes(), []).append(place)
        self.grids = [_Grid(places, [runs[i] for i in places]) for places in members.values()]
        self.signals = [run.residual() for run in runs]
        rng = np.random.default_rng(derive_seed(SEED, "planted", len(runs)))
        self.noises = [_alike(signal, rng) for signal in self.signals]

    def power(self) -> tuple[Vector, Vector]:
        """Return `power` and `detectable` of `with_power` in each run, shape (r,)."""
        power = self._found(SIZES[: 1 if len(self.runs) >= MIN_RUNS else None])  # all at once where that costs little
        if len(power) < len(SIZES) and (power < MIN_POWER).any():
            power = np.concatenate([power, self._found(SIZES[1:])])
        enough = power >= MIN_POWER
        smallest = np.array(SIZES)[enough.argmax(axis=0)]
        return power[0], np.where(enough.any(axis=0), smallest, np.nan)

    def _found(self, sizes: Sequence[float]) -> Matrix:
        """Return the share of features of each size, planted in all runs, that the rule finds in each, shape (s, r)."""
        planted = [
            np.concatenate([size * signal + np.sqrt(1 - size**2) * noise for size in sizes])
            for signal, noise in zip(self.signals, self.noises, strict=True)
        ]
        shape = len(self.runs), len(planted[0])
        columns = {name: np.full(shape, np.nan) for name in ("n", *COLUMNS, "p_pairing", "p_pairing_differences")}
        for grid in self.grids:
            for name, values in grid.own(np.array([planted[i] for i in grid.members])).items():
                columns[name][grid.members] = values
        for name, p_of in ADJUSTED.items():  # as the first of so many features
            columns[name] = np.fmax(columns[p_of], np.minimum(1.0, self.n_features * replicated(columns[p_of].T)))
        found = _pass(columns)
        candidates = np.flatnonzero(found.any(axis=0))
        if len(self.runs) >= MIN_RUNS and len(candidates):
            columns = {name: values[:, candidates] for name, values in columns.items()}
            for of_changes in (False, True):
                self._compare(columns, [features[candidates] for features in planted], of_changes=of_changes)
            found[:, candidates] = _pass(columns)
        return found.reshape(len(self.runs), len(sizes), N_PLANTED).mean(axis=2).T

    def _compare(self, columns: dict[str, Matrix], planted: Sequence[Matrix], *, of_changes: bool) -> None:
        """Fill the columns of the comparison with other runs, where the verdict rests on it."""
        if not (np.isnan(columns["rho_given_step"]) == of_changes).any():
            return
        suffix, share = ("_differences", "share_others_differences") if of_changes else ("", "share_others_given_step")
        n_runs = len(self.runs)
        strengths = np.full((n_runs, len(planted[0]), n_runs), np.nan)
        for grid in self.grids:
            strengths[grid.members] = grid.pairings(planted, self.runs, of_changes=of_changes)
        squares = strengths.swapaxes(0, 1)  # features, runs, features of runs
        own = np.nan_to_num(squares.diagonal(axis1=1, axis2=2).T)[:, :, None]
        others = np.where(np.eye(n_runs, dtype=bool)[:, None], np.nan, strengths)
        count, stronger = np.isfinite(others).sum(axis=2), (others >= own * (1 - 1e-12)).sum(axis=2)
        columns[f"n_others{suffix}"] = count.astype(np.float64)
        columns[share] = np.divide(stronger, count, out=np.full(count.shape, np.nan), where=count > 0)
        columns[f"p_pairing{suffix}"] = np.tile([pairing_p(square, SEED) for square in squares], (n_runs, 1))


def _pass(columns: Mapping[str, Matrix]) -> NDArray[np.bool_]:
    """Return which features pass every test, or every one but the comparison with other runs where none is possible."""
    verdicts, gaps = verdicts_of({name: values.ravel() for name, values in columns.items()})
    passing = [verdict == BEYOND or gap is RUNS for verdict, gap in zip(verdicts, gaps, strict=True)]
    return np.reshape(passing, columns["rho"].shape)


def with_power(table: pl.DataFrame, runs: Sequence[PlantedRun]) -> pl.DataFrame:
    """Add the power of each verdict that says there is nothing, and withdraw it where the power is too small.

    Parameters
    ----------
    table : polars.DataFrame
        Of `toposcope.analysis.verdict.with_verdicts`, with ``design``, the place of each row's run in `runs`.
    runs : sequence of PlantedRun

    Returns
    -------
    polars.DataFrame
        Without ``block`` and ``design``, but with ``power``, how often a planted partial correlation of `PLANTED` is
        found in this run, and ``detectable``, the smallest of `SIZES` found in `MIN_POWER` of cases; NaN where no
        verdict rests on them, or none of them is found so often.
    """
    columns = {column.name: column for column in table.get_columns()}
    power, detectable = np.full((2, len(table)), np.nan)
    rests = np.array([verdict in (TREND, NONE) for verdict in columns["verdict"]], dtype=bool)
    families: dict[tuple[str, ...], tuple[list[int], list[int]]] = {}
    keys = zip(*(columns[name].to_list() for name in FAMILY), strict=True)
    for row, (family, rho, design) in enumerate(zip(keys, columns["rho"], columns["design"], strict=True)):
        if np.isfinite(rho):
            rows, designs = families.setdefault(family, ([], []))
            rows.append(row)
            designs.append(design)
    n_features = Counter(target for target, *_ in families)
    known: dict[tuple[int, ...], tuple[Vector, Vector]] = {}
    for (target, *_), (rows, designs) in families.items():
        if rests[rows].any():
            key = (n_features[target], *designs)
            if key not in known:
                known[key] = _Family([runs[i] for i in designs], n_features[target]).power()
            power[rows], detectable[rows] = known[key]
    power[~rests], detectable[~rests] = np.nan, np.nan
    withdrawn = {"verdict": UNDETERMINED, "untested": POWER.untested, "needs": POWER.needs}
    weak = np.flatnonzero(power < MIN_POWER)
    changed = {name: columns[name].scatter(weak, value) for name, value in withdrawn.items()}
    del columns["block"], columns["design"]
    return pl.DataFrame(columns | changed | {"power": power, "detectable": detectable})


def _alike(signal: Vector, rng: np.random.Generator) -> Matrix:
    """Return series with the autocorrelation of a signal and phases at random, of length 1, shape (f, n)."""
    spectrum = np.abs(np.fft.rfft(signal))
    phases = np.exp(2j * np.pi * rng.uniform(size=(N_PLANTED, len(spectrum))))
    series = np.fft.irfft(spectrum * phases, len(signal))
    return np.asarray(series / np.maximum(np.linalg.norm(series, axis=1, keepdims=True), np.finfo(float).tiny))
