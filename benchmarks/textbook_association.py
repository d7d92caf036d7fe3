"""An association table by a plain loop over scipy.stats: the baseline of `benchmarks/study.py`.

The ten items of `toposcope.analysis.association`, one feature at a time and one resample at a time. The rules for the
length of blocks, the effective number of checkpoints, what covariates may explain, the noise of what they leave and the
verdict are toposcope's own in both: they are definitions.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import gamma
from scipy.stats import rankdata, spearmanr
from scipy.stats import t as student

from toposcope.analysis.association_verdict import with_verdicts
from toposcope.analysis.given_covariates import covariate_basis, noise_given
from toposcope.analysis.ranks import block_length, effective_size
from toposcope.analysis.smooth_trend import ColouredNoise
from toposcope.analysis.trajectory import Trajectory
from toposcope.probes import Feature

Vector = NDArray[np.float64]
Row = dict[str, str | int | float]
Others = list[tuple[Vector, Vector]]  # a feature and what the covariates of its run may explain

RESAMPLES = 1000
COVARIATES = ("step", "learning_rate", "cumulative_learning_rate", "weight_norm")


def association(found: Sequence[Trajectory], runs: int, features: int) -> pl.DataFrame:
    """Return the table of the first `features` features of the first `runs` runs, cross-paired with all runs."""
    rng = np.random.default_rng(0)
    rows: list[Row] = []
    for trajectory in found[:runs]:
        target, losses = next(iter(trajectory.targets.items()))
        for feature in list(trajectory.features)[:features]:
            others = [(other.features[feature], basis_of(other)) for other in found if other is not trajectory]
            place: Row = {
                "run": trajectory.run,
                "group": "network",
                "target": target,
                "feature": str(feature),
                "kind": feature.kind,
                "block": 0,
            }
            rows.append(place | _items(trajectory, feature, losses, others, rng))
    return with_verdicts(pl.DataFrame(rows)).drop("block")


def _items(trajectory: Trajectory, feature: Feature, y: Vector, others: Others, rng: np.random.Generator) -> Row:
    x, n = trajectory.features[feature], len(y)
    covariates = [trajectory.covariates[name] for name in COVARIATES]
    step = covariates[:1]
    rho, p = spearmanr(x, y)
    low, high = _interval(x, y, [rng.integers(0, n, n) for _ in range(RESAMPLES)])
    length = int(max(block_length(rankdata(v)[None])[0] for v in (x, y)))
    block_low, block_high = _interval(x, y, [_blocks(n, length, rng) for _ in range(RESAMPLES)])
    shifts = [spearmanr(x, np.roll(y, k))[0] for k in range(n)]
    rho_given_step, p_given_step = partial(x, y, step)
    basis = basis_of(trajectory)
    noise = noise_given(y, basis)
    x_left, y_left = (left_ranks(values, basis, noise) for values in (x, y))
    rho_given_all = float(np.corrcoef(x_left, y_left)[0, 1])
    n_given_all = float(effective_size(x_left, y_left, n // 5)) - (basis.shape[1] - 1)
    n_eff = float(effective_size(rankdata(x), rankdata(y)))
    dx, dy = np.diff(x), np.diff(y)
    later = [step[0][1:], np.diff(trajectory.covariates["learning_rate"])]
    rho_differences = spearmanr(dx, dy)[0]
    p_differences = _dependent_p(float(rho_differences), float(effective_size(rankdata(dx), rankdata(dy))))
    rho_changes, p_changes = partial(dx, dy, later)
    as_well = []
    for other, other_basis in others:
        both = np.column_stack([basis, other_basis])
        own, theirs, loss = (left_ranks(values, both, noise) for values in (x, other, y))
        as_well.append(abs(np.corrcoef(theirs, loss)[0, 1]) >= abs(np.corrcoef(own, loss)[0, 1]))
    twin = trajectory.twins["network"][feature]
    rho_twin_given_step, p_twin = partial(twin, y, step)
    return {
        **{"n": n, "rho": float(rho), "p": float(p), "low": low, "high": high},
        **{"block_low": block_low, "block_high": block_high, "block_length": float(length)},
        **{"n_eff": n_eff, "p_n_eff": _dependent_p(float(rho), n_eff)},
        "p_shift": float(np.mean(np.abs(shifts) >= abs(rho) * (1 - 1e-12))),
        **{f"rho_{name}": float(spearmanr(c, y)[0]) for name, c in zip(COVARIATES, covariates, strict=True)},
        "rho_with_step": float(spearmanr(x, step[0])[0]),
        **{"rho_given_step": rho_given_step, "p_given_step": p_given_step},
        **{"rho_given_all": rho_given_all, "p_given_all": _dependent_p(rho_given_all, n_given_all)},
        **{"rho_differences": float(rho_differences), "p_differences": p_differences},
        **{"rho_differences_given_step": rho_changes, "p_differences_given_step": p_changes},
        **{"n_others": float(len(others)), "share_others": float(np.mean(as_well))},
        **{"rho_twin": float(spearmanr(twin, y)[0]), "rho_twin_given_step": rho_twin_given_step},
        "p_twin_given_step": p_twin,
        "p_pairing": np.nan,  # over all runs at once; the loop does without
        # Features of weights have no scale of hidden states.
        **dict.fromkeys(("n_scale", "rho_top_eigenvalue", "rho_given_scale", "p_given_scale"), np.nan),
        "noise": float(np.median(trajectory.noise[feature]) / np.median(np.abs(np.diff(x)))),
    }


def basis_of(trajectory: Trajectory) -> Vector:
    """Return what the covariates of a run may explain, a column each."""
    return covariate_basis(trajectory.steps, trajectory.covariates)


def left_ranks(values: Vector, columns: Vector, noise: ColouredNoise) -> Vector:
    """Return the ranks, where the noise is white, of what least squares on columns leaves."""
    left = values - columns @ np.linalg.lstsq(columns, values, rcond=None)[0]
    return np.asarray(rankdata(noise.whiten(left[:, None])[:, 0]))


def _interval(x: Vector, y: Vector, draws: Sequence[NDArray[np.int64]]) -> tuple[float, float]:
    low, high = np.percentile([spearmanr(x[drawn], y[drawn])[0] for drawn in draws], [2.5, 97.5])
    return float(low), float(high)


def _blocks(n: int, length: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw blocks of neighbours until there are n places."""
    starts = rng.integers(0, n - length + 1, -(-n // length))
    return np.concatenate([np.arange(start, start + length) for start in starts])[:n]


def partial(x: Vector, y: Vector, controls: Sequence[Vector]) -> tuple[float, float]:
    """Correlate ranks after a linear regression on the ranks of the controls."""
    design = np.column_stack([np.ones(len(x)), *(rankdata(c) for c in controls)])
    left = [ranks - design @ np.linalg.lstsq(design, ranks, rcond=None)[0] for ranks in (rankdata(x), rankdata(y))]
    rho = float(np.corrcoef(*left)[0, 1])
    return rho, _dependent_p(rho, float(effective_size(*left)) + 1 - int(np.linalg.matrix_rank(design)))


def _dependent_p(rho: float, n: float) -> float:
    """Student's p with n - 2 degrees of freedom, at least the two perfect orders of all orders of n."""
    if not n > 2:
        return np.nan
    p = 2 * student.sf(abs(rho) * np.sqrt((n - 2) / (1 - rho**2)), n - 2)
    return float(max(p, min(1.0, 2 / gamma(n + 1))))
