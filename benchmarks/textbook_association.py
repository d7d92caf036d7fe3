"""An association table by a plain loop over scipy.stats: the baseline of `benchmarks/study.py`.

The ten items of `toposcope.analysis.association`, one feature at a time and one resample at a time. The rules for the
length of blocks, the effective number of checkpoints and the verdict are toposcope's own in both: they are definitions.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import rankdata, spearmanr
from scipy.stats import t as student

from toposcope.analysis.dependence import block_length, effective_size
from toposcope.analysis.trajectories import Trajectory
from toposcope.analysis.verdict import with_verdicts
from toposcope.probes import Feature

Vector = NDArray[np.float64]
Row = dict[str, str | int | float]

RESAMPLES = 1000
CLOCKS = ("step", "cumulative_learning_rate", "weight_norm")


def association(found: Sequence[Trajectory], runs: int, features: int) -> pl.DataFrame:
    """Return the table of the first `features` features of the first `runs` runs, cross-paired with all runs."""
    rng = np.random.default_rng(0)
    rows: list[Row] = []
    for trajectory in found[:runs]:
        target, losses = next(iter(trajectory.targets.items()))
        for feature in list(trajectory.features)[:features]:
            others = [other.features[feature] for other in found if other is not trajectory]
            place: Row = {
                "run": trajectory.run,
                "group": "network",
                "target": target,
                "feature": str(feature),
                "kind": feature.kind,
            }
            rows.append(place | _items(trajectory, feature, losses, others, rng))
    return with_verdicts(pl.DataFrame(rows))


def _items(
    trajectory: Trajectory, feature: Feature, y: Vector, others: Sequence[Vector], rng: np.random.Generator
) -> Row:
    x, n = trajectory.features[feature], len(y)
    clocks = [trajectory.clocks[name] for name in CLOCKS]
    step = clocks[:1]
    rho, p = spearmanr(x, y)
    low, high = _interval(x, y, [rng.integers(0, n, n) for _ in range(RESAMPLES)])
    length = int(max(block_length(rankdata(v)[None])[0] for v in (x, y)))
    block_low, block_high = _interval(x, y, [_blocks(n, length, rng) for _ in range(RESAMPLES)])
    shifts = [spearmanr(x, np.roll(y, k))[0] for k in range(n)]
    rho_given_step, p_given_step = partial(x, y, step)
    rho_given_all, p_given_all = partial(x, y, clocks)
    dx, dy, later = np.diff(x), np.diff(y), [step[0][1:]]
    rho_differences = spearmanr(dx, dy)[0]
    p_differences = _two_sided(float(rho_differences), float(effective_size(rankdata(dx), rankdata(dy))) - 2)
    rho_changes, p_changes = partial(dx, dy, later)
    as_well = [abs(spearmanr(other, y)[0]) >= abs(rho) for other in others]
    as_well_given = [abs(partial(other, y, step)[0]) >= abs(rho_given_step) for other in others]
    twin = trajectory.twins["network"][feature]
    rho_twin_given_step, p_twin = partial(twin, y, step)
    return {
        **{"n": n, "rho": float(rho), "p": float(p), "low": low, "high": high},
        **{"block_low": block_low, "block_high": block_high, "block_length": float(length)},
        "n_eff": float(effective_size(rankdata(x), rankdata(y))),
        "p_shift": float(np.mean(np.abs(shifts) >= abs(rho) * (1 - 1e-12))),
        **{f"rho_{name}": float(spearmanr(c, y)[0]) for name, c in zip(CLOCKS, clocks, strict=True)},
        "rho_with_step": float(spearmanr(x, step[0])[0]),
        **{"rho_given_step": rho_given_step, "p_given_step": p_given_step},
        **{"rho_given_all": rho_given_all, "p_given_all": p_given_all},
        **{"rho_differences": float(rho_differences), "p_differences": p_differences},
        **{"rho_differences_given_step": rho_changes, "p_differences_given_step": p_changes},
        **{"n_others": float(len(others)), "share_others": float(np.mean(as_well))},
        "share_others_given_step": float(np.mean(as_well_given)),
        **{"rho_twin": float(spearmanr(twin, y)[0]), "rho_twin_given_step": rho_twin_given_step},
        "p_twin_given_step": p_twin,
        "p_pairing": np.nan,  # over all runs at once; the loop does without
        "noise": float(np.median(trajectory.noise[feature]) / np.median(np.abs(np.diff(x)))),
    }


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
    return rho, _two_sided(rho, float(effective_size(*left)) - 1 - int(np.linalg.matrix_rank(design)))


def _two_sided(rho: float, freedom: float) -> float:
    if not freedom > 0:
        return np.nan
    return float(2 * student.sf(abs(rho) * np.sqrt(freedom / (1 - rho**2)), freedom))
