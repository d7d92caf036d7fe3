"""The items of an association: each against SciPy or written out by hand."""

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import rankdata, spearmanr

from toposcope.analysis.association import COLUMNS, MIN_CHECKPOINTS, AssociationTask, FeatureSeries, associate
from toposcope.analysis.given_covariates import correlations_given, covariate_basis

RNG = np.random.default_rng(7)
STEPS = np.arange(0, 4000, 100)
N = len(STEPS)


def ask(features: np.ndarray, target: np.ndarray, seed: int = 1, **more: object) -> list[dict[str, float]]:
    covariates = {"step": STEPS.astype(np.float64)[: features.shape[1]], **more.pop("covariates", {})}  # type: ignore[dict-item]
    series = FeatureSeries(STEPS[: features.shape[1]], features)
    answer = associate(AssociationTask(series, target, covariates, **more), seed)  # type: ignore[arg-type]
    rows = zip(answer.n, answer.table, strict=True)
    return [{"n": float(k), **dict(zip(COLUMNS, row, strict=True))} for k, row in rows]


def test_rho_p_and_covariates_are_scipys() -> None:
    x, y, covariate = RNG.normal(size=(3, N))
    (found,) = ask(x[None], y, covariates={"weight_norm": covariate})
    rho, p = spearmanr(x, y)
    assert [found["rho"], found["p"], found["n"]] == pytest.approx([rho, p, N])
    for scale in (1.0, 1e-100, 1e100):
        assert ask(scale * x[None], y)[0]["pearson"] == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert found["rho_step"] == pytest.approx(spearmanr(STEPS, y)[0])
    assert found["rho_with_step"] == pytest.approx(spearmanr(STEPS, x)[0])
    assert found["rho_weight_norm"] == pytest.approx(spearmanr(covariate, y)[0])
    assert np.isnan(found["rho_cumulative_learning_rate"])


def test_intervals_hold_the_point_and_repeat() -> None:
    x = RNG.normal(size=N)
    y = x + RNG.normal(size=N)
    (found,), (again,), (other) = ask(x[None], y), ask(x[None], y), ask(x[None], y, seed=2)
    for low, high in (("low", "high"), ("block_low", "block_high")):
        assert found[low] < spearmanr(x, y)[0] < found[high]
        assert (again[low], again[high]) == (found[low], found[high])
        assert (other[0][low], other[0][high]) != (found[low], found[high])
    assert found["block_length"] >= np.sqrt(N)


def test_interval_of_single_checkpoints_is_that_of_scipys_bootstrap() -> None:
    x = RNG.normal(size=N)
    y = x + RNG.normal(size=N)
    (found,) = ask(x[None], y)
    rng = np.random.default_rng(3)
    rho = [spearmanr(x[i], y[i])[0] for i in rng.integers(0, N, (2000, N))]
    assert [found["low"], found["high"]] == pytest.approx(np.percentile(rho, [2.5, 97.5]), abs=0.05)


def test_blocks_are_wider_where_neighbours_are_alike() -> None:
    drift = RNG.normal(size=(2, N)).cumsum(axis=1)
    (found,) = ask(drift[:1], drift[1])
    assert found["block_high"] - found["block_low"] > found["high"] - found["low"]


def test_shifts_are_counted() -> None:
    x, y = RNG.normal(size=(2, N))
    (found,) = ask(x[None], y)
    rho = [abs(spearmanr(x, np.roll(y, k))[0]) for k in range(N)]
    assert found["p_shift"] == pytest.approx(np.mean(np.array(rho) >= rho[0] - 1e-12))


def test_differences_are_those_of_checkpoints() -> None:
    x, y = RNG.normal(size=(2, N)).cumsum(axis=1)
    (found,) = ask(x[None], y)
    assert found["rho_differences"] == pytest.approx(spearmanr(np.diff(x), np.diff(y))[0])
    a, b, c = (
        spearmanr(*pair)[0] for pair in ((np.diff(x), np.diff(y)), (np.diff(x), STEPS[1:]), (np.diff(y), STEPS[1:]))
    )
    assert found["rho_differences_given_step"] == pytest.approx((a - b * c) / np.sqrt((1 - b**2) * (1 - c**2)))


def test_given_covariates_against_least_squares_written_out() -> None:
    """Of white noise next to a trend, a rate that restarts and the square of a scale, ranks of residuals remain."""
    n = 400
    steps, t = np.arange(n) * 100, np.arange(n) / n
    rate = 1e-3 * (0.1 + np.cos(np.pi * np.concatenate([t[: n // 2], t[: n // 2]])) ** 2)
    scale, x, y = RNG.normal(size=(3, n))
    total = np.cumsum(rate)
    feature = 3 * np.sqrt(t) - 400 * rate + 0.1 * (0.6 * y + 0.8 * x) + scale**2
    loss = 4 - np.log1p(5 * total / total[-1]) + 300 * rate + 0.02 * y
    covariates = {"step": steps.astype(np.float64), "learning_rate": rate, "cumulative_learning_rate": total}
    ours = FeatureSeries(steps, np.array([feature, feature, rate]))
    scales = np.array([scale, np.full(n, np.nan), np.full(n, np.nan)])
    answer = associate(AssociationTask(ours, loss, covariates, scales=scales), 0)
    found, blind, none = (dict(zip(COLUMNS, row, strict=True)) for row in answer.table)
    assert found["rho_given_all"] == pytest.approx(spearmanr(0.6 * y + 0.8 * x, y)[0], abs=0.06)
    assert found["p_given_all"] < 1e-8
    assert abs(blind["rho_given_all"]) < 0.3
    assert (none["rho_given_all"], none["p_given_all"]) == (0.0, 1.0)


@pytest.mark.parametrize("phi", [-0.7, 0.0, 0.7, 0.9])
def test_p_given_covariates_is_uniform_whatever_the_noise_of_either(phi: float) -> None:
    """Below a level as often as the level says, or less: of a loss of AR(1) noise and features of AR(1) and walks."""
    rng, steps = np.random.default_rng(3), np.arange(60) * 10
    basis = covariate_basis(steps, {})
    p = []
    for _ in range(150):
        e = lfilter([1], [1, -phi], rng.normal(size=(11, 160)))[:, -60:]
        e[6:] = np.cumsum(e[6:], axis=1)
        p += [*correlations_given(e[1:], e[0], basis).p]
    assert 0.02 < np.mean(np.array(p) < 0.05) < 0.075


def test_other_runs_are_compared_on_common_steps() -> None:
    target = RNG.normal(size=N)
    own = (target + 0.5 * RNG.normal(size=N))[None]
    better, worse = FeatureSeries(STEPS[::2], target[::2][None]), FeatureSeries(STEPS, RNG.normal(size=(1, N)))
    elsewhere = FeatureSeries(STEPS + 1, target[None])
    (found,) = ask(own, target, others=[better, worse, elsewhere])
    assert found["n_others"] == 2
    assert found["share_others"] == 0.5


def test_another_run_with_too_few_common_checkpoints_is_not_one_that_did_worse() -> None:
    short = FeatureSeries(STEPS[-8:], RNG.normal(size=(1, 8)))
    (found,) = ask(RNG.normal(size=(1, N)), RNG.normal(size=N), others=[short])
    assert found["n_others"] == 0
    assert np.isnan(found["share_others"])


def test_noise_is_beside_the_change() -> None:
    x, y = RNG.normal(size=(2, N))
    (found, without) = ask(np.array([x, x]), y, noise=np.array([np.full(N, 0.2), np.full(N, np.nan)]))
    assert found["noise"] == pytest.approx(0.2 / np.median(np.abs(np.diff(x))))
    assert np.isnan(without["noise"])


def test_twins_are_measured_as_features_are() -> None:
    x, twin, y = RNG.normal(size=(3, N))
    (found,) = ask(x[None], y, twins=twin[None])
    (alone,) = ask(twin[None], y)
    assert [found["rho_twin"], found["rho_twin_given_step"]] == pytest.approx([alone["rho"], alone["rho_given_step"]])


def test_unknown_checkpoints_are_left_out() -> None:
    x, y = RNG.normal(size=(2, N))
    x[3] = y[7] = np.nan
    keep = np.isfinite(x) & np.isfinite(y)
    (found,) = ask(x[None], y, covariates={"weight_norm": np.where(np.arange(N) == 3, np.nan, np.arange(N) ** 2.0)})
    assert found["n"] == N - 2
    assert found["rho"] == pytest.approx(spearmanr(x[keep], y[keep])[0])
    assert found["rho_weight_norm"] == pytest.approx(spearmanr(np.arange(N)[keep], y[keep])[0])
    (partly,) = ask(x[None], y, covariates={"weight_norm": np.where(np.arange(N) == 5, np.nan, 1.0 * np.arange(N))})
    assert np.isnan(partly["rho_weight_norm"])


@pytest.mark.parametrize("n", [0, 1, 4])
def test_too_few_checkpoints_give_nothing(n: int) -> None:
    (found,) = ask(RNG.normal(size=(1, n)), RNG.normal(size=n))
    assert found.pop("n") == n
    assert not np.isfinite(list(found.values())).any()


def test_a_constant_gives_nothing_and_stops_no_other() -> None:
    x, y = RNG.normal(size=(2, N))
    constant, varied = ask(np.array([np.ones(N), x]), y)
    assert np.isnan(constant["rho"])
    assert varied["rho"] == pytest.approx(spearmanr(x, y)[0])
    assert np.isnan(ask(x[None], np.ones(N))[0]["rho"])


def test_a_feature_whose_changes_are_all_equal_has_no_correlation_of_changes() -> None:
    (found,) = ask(np.arange(N, dtype=np.float64)[None], RNG.normal(size=N))
    assert np.isnan(found["rho_differences"])


def test_each_feature_is_asked_given_its_own_scale() -> None:
    x, y, scale, other = RNG.normal(size=(4, N))
    features = np.array([x, x, x, scale])
    scales = np.array([scale, other, np.full(N, np.nan), scale])
    found = ask(features, y, scales=scales)
    for row, covariate in zip(found[:2], (scale, other), strict=True):
        assert row["rho_top_eigenvalue"] == pytest.approx(spearmanr(covariate, y)[0])
        expected = _partial(x, y, [STEPS, covariate])
        assert row["rho_given_scale"] == pytest.approx(expected)
        assert 0 < row["p_given_scale"] <= 1
    assert np.isnan([found[2][name] for name in ("rho_top_eigenvalue", "rho_given_scale", "p_given_scale")]).all()
    assert np.isfinite(found[3]["rho_top_eigenvalue"])
    assert np.isnan([found[3]["rho_given_scale"], found[3]["p_given_scale"]]).all()  # nothing is left given itself


def _partial(x: np.ndarray, y: np.ndarray, controls: list[np.ndarray]) -> float:
    """Correlate residuals of ordinary least squares on ranks."""
    design = np.column_stack([np.ones(N), *(rankdata(c) for c in controls)])
    left = [rankdata(v) - design @ np.linalg.lstsq(design, rankdata(v), rcond=None)[0] for v in (x, y)]
    return float(np.corrcoef(left)[0, 1])


def test_a_scale_is_asked_where_it_is_known() -> None:
    x, y = RNG.normal(size=(2, N))
    gap = np.where(np.arange(N) == 3, np.nan, np.arange(N) % 7 + RNG.normal(size=N))
    rare = np.where(np.arange(N) < MIN_CHECKPOINTS - 1, np.arange(N) ** 2.0, np.nan)
    none = np.full(N, np.nan)
    partly, constant, hardly, without = ask(np.array([x] * 4), y, scales=np.array([gap, np.ones(N), rare, none]))
    known = np.isfinite(gap)
    assert partly["n_scale"] == N - 1
    assert partly["rho_top_eigenvalue"] == pytest.approx(spearmanr(gap[known], y[known])[0])
    (alone,) = ask(np.array([x]), y)
    assert constant["n_scale"] == N
    assert constant["rho_given_scale"] == pytest.approx(alone["rho_given_step"])
    assert np.isnan(constant["rho_top_eigenvalue"])
    assert hardly["n_scale"] == MIN_CHECKPOINTS - 1
    assert np.isnan(hardly["rho_given_scale"])
    assert np.isnan(without["n_scale"])
