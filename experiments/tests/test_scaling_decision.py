"""The scaling decision: planted truths, scores against loops over rows, the ridge against scikit-learn, the command."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

pytest.importorskip("torch")

from experiment_commands import run_three_times
from planted_margins import planted

from toposcope import neural_persistence, rips
from toposcope.family import build
from toposcope_experiments.scaling_decision import design as designs
from toposcope_experiments.scaling_decision.charts import map_chart
from toposcope_experiments.scaling_decision.decisions import decision_table
from toposcope_experiments.scaling_decision.design import Condition, Design, Pair, model_size
from toposcope_experiments.scaling_decision.features import FEATURES, TOPOLOGY, known_at, weight_features
from toposcope_experiments.scaling_decision.prediction import (
    LAW,
    OF_CONTROLS,
    OTHER_MARGIN,
    OWN,
    Decisions,
    Predicted,
    predict,
    predict_by_law,
    twins,
)
from toposcope_experiments.scaling_decision.score import calibration, scaling_point
from toposcope_experiments.scaling_decision.verdict import EXPLAINED, HELPS, NOT_FOUND, Outcome

PLANTED = {("h0", 0.1): HELPS, ("norm", 0.1): EXPLAINED, ("", 0.0): NOT_FOUND}
"""What the margin depends on, and by how much: a gain of about twice the least that is found."""


@pytest.mark.parametrize("truth", PLANTED, ids=lambda truth: truth[0] or "nothing")
def test_a_planted_truth_is_found(truth: tuple[str, float]) -> None:
    assert Outcome.of(planted(100, *truth)).verdict == PLANTED[truth]


@pytest.mark.slow
@pytest.mark.parametrize("truth", PLANTED, ids=lambda truth: truth[0] or "nothing")
def test_planted_truths_are_found_in_18_of_20(truth: tuple[str, float]) -> None:
    outcomes = [Outcome.of(planted(seed, *truth)) for seed in range(20)]
    counts = Counter(outcome.verdict for outcome in outcomes)
    assert counts[PLANTED[truth]] >= 18, counts
    if truth[0] == "h0":
        assert np.median([o.primary.mean / o.primary.detectable for o in outcomes]) < 2.6


def test_regret_is_that_of_a_loop_over_rows() -> None:
    table = planted(3, "norm", 0.08)
    outcome = Outcome.of(table)
    other = {row[:5]: row[5] for row in table.select("condition", "seed", "pair", "further", "point", "margin").rows()}
    lost: dict[str, list[float]] = {}
    for (condition, seed, *cell), margin in other.items():
        scale = other[(condition, 1 - seed, *cell)] < 0
        lost.setdefault(condition, []).append(0.0 if scale == (margin < 0) else abs(margin))
    found = dict(zip(outcome.decisions.conditions, outcome.regret(OTHER_MARGIN), strict=True))
    assert found == pytest.approx({name: np.mean(each) for name, each in lost.items()})


def test_the_ridge_is_that_of_scikit_learn() -> None:
    """Of one group: conditions left out by hand, the strength chosen by leaving out conditions once more."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(6, 2, 1, 4, 3))
    margin = x[..., 0] - 0.5 * x[..., 2] + 0.3 * rng.normal(size=x.shape[:-1])
    found = predict(margin, x).margin
    assert found is not None
    for out in range(6):
        learnt = np.arange(6) != out
        base, centre = x[learnt].mean(axis=(0, 1)), margin[learnt].mean(axis=(0, 1))
        apart, y = x - base, margin - centre
        apart = apart / apart[learnt].std(axis=(0, 1, 2, 3))
        errors = {}
        for strength in np.geomspace(1e-3, 1e3, 13):
            left = []
            for inner in np.flatnonzero(learnt):
                rest = learnt & (np.arange(6) != inner)
                model = Ridge(alpha=strength * 5 * 8, fit_intercept=False).fit(
                    apart[rest].reshape(-1, 3), y[rest].ravel()
                )
                left.append(((model.predict(apart[inner].reshape(-1, 3)) - y[inner].ravel()) ** 2).mean())
            errors[strength] = np.mean(left)
        best = min(errors, key=lambda strength: errors[strength])
        model = Ridge(alpha=best * 5 * 8, fit_intercept=False).fit(apart[learnt].reshape(-1, 3), y[learnt].ravel())
        expected = centre + model.predict(apart[out].reshape(-1, 3)).reshape(2, 1, 4)
        np.testing.assert_allclose(found[out], expected, rtol=1e-9)


def test_the_law_finds_a_surface_and_what_is_left_out_is_not_seen() -> None:
    table = planted(1)
    compute, more = pl.col("log_compute"), pl.col("more")
    on, fresh = compute + (1 + more).log(), compute + more.log()
    table = table.with_columns(
        continued=4 - 0.2 * pl.col("log_small") - 0.1 * on + 0.01 * pl.col("log_small") * on,
        fresh=4 - 0.2 * pl.col("log_large") - 0.1 * fresh + 0.01 * pl.col("log_large") * fresh,
    ).with_columns(margin=pl.col("fresh") - pl.col("continued"))
    found = predict_by_law(Decisions(table)).margin
    assert found is not None
    np.testing.assert_allclose(found, Decisions(table).margin, atol=1e-7)
    # nothing of a condition's own margins reaches its predictions
    first = table["condition"].min()
    changed = table.with_columns(margin=pl.when(pl.col("condition") == first).then(9.0).otherwise("margin"))
    names = ("last", "h0")
    one, other = (predict(d.margin, d.stacked(names)).margin for d in (Decisions(table), Decisions(changed)))
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one[0], other[0])
    assert not np.allclose(one[1], other[1])


@given(st.lists(st.floats(-1, 1).filter(lambda x: x != 0), min_size=2, max_size=12))
def test_the_scaling_point_is_the_last_change_to_scaling_up(margins: list[float]) -> None:
    at, outside, crossings = scaling_point(np.arange(float(len(margins))), np.array(margins))
    signs = [margin < 0 for margin in margins]
    lasting = [k for k in range(len(margins)) if all(signs[k:])]
    assert crossings == sum(a != b for a, b in pairwise(signs))
    if not lasting:
        assert (at, outside) == (len(margins) - 0.5, True)
    elif lasting[0] == 0:
        assert (at, outside) == (-0.5, True)
    else:
        assert not outside
        assert lasting[0] - 1 <= at <= lasting[0]


def test_probabilities_of_what_is_true_are_calibrated() -> None:
    rng = np.random.default_rng(2)
    predicted = rng.normal(0, 0.05, (400, 2, 9, 10))
    margin = predicted + rng.normal(0, 0.03, predicted.shape)
    bins = calibration(margin, Predicted(predicted < 0, predicted, np.full_like(predicted, 0.03)))
    assert bins["decisions"].sum() == margin.size
    np.testing.assert_allclose(bins["stated"], bins["seen"], atol=0.02)


def test_twins_are_of_other_conditions() -> None:
    for n in (2, 3, 25):
        for draw in range(5):
            assert sorted(twins(n, draw)) == list(range(n))
            assert (twins(n, draw) != np.arange(n)).all()


def test_what_is_known_looks_back_only() -> None:
    """Slopes of a power law; the published rule; later steps change nothing that was known before."""
    compute = 2.0 ** (np.arange(9) / 2)
    persistence = np.array([0.0, 1, 2, 3, 3.01, 3.02, 3.5, 4, 4.5])
    looks = pl.DataFrame({
        "condition": "a", "width": 4, "seed": 0, "step": np.arange(9) + 1, "compute": compute,
        "loss": 3 - 0.1 * np.log(compute), "gradient_norm": 1.0,
    })  # fmt: skip
    weights = looks.select("condition", "width", "seed", "step").with_columns(
        pl.Series("neural_persistence", persistence),
        *(pl.lit(1.0).alias(name) for name in ("norm", "stable_rank", "h0", "h1", "update", "speed")),
    )
    known = known_at(looks, weights)
    np.testing.assert_allclose(known["slope"][2:], -0.1)
    np.testing.assert_allclose(known["plateau"][4:], 0.0, atol=1e-12)
    assert known["slope"][:2].is_nan().all()
    assert known["published_rule"].to_list() == [False] * 4 + [True] * 5
    before = known_at(looks[:6], weights[:6])
    assert before.equals(known[:6])


def test_topology_is_of_the_matrices_and_free_of_scale() -> None:
    size = model_size(8)
    shapes = {name: tuple(p.shape) for name, p in build(size).named_parameters()}
    flat = np.concatenate([p.detach().numpy().ravel() for p in build(size, seed=1).parameters()])
    one, large = weight_features(flat, shapes), weight_features(8 * flat, shapes)
    matrices = [p.detach().numpy() for n, p in build(size, seed=1).named_parameters() if p.ndim == 2 and "pos" not in n]
    assert len(matrices) == 5
    assert one.mean("neural_persistence") == pytest.approx(
        np.mean([neural_persistence(m).normalized for m in matrices])
    )
    h0 = np.mean([rips(m)[0].lifetimes.sum() / np.linalg.norm(m) for m in matrices])
    assert one.mean("h0_total") == pytest.approx(h0, rel=1e-5)
    for name in ("neural_persistence", "h0_total", "h1_total", "stable_rank"):
        assert large.mean(name) == pytest.approx(one.mean(name), rel=1e-5)
    assert large.norm == pytest.approx(8 * one.norm, rel=1e-5)
    assert set(TOPOLOGY) == {"neural_persistence", "h0", "h1", "speed"}


def test_margins_are_of_the_ends_of_both_ways() -> None:
    """With losses that tell width, seed and compute, of a design whose middle width is in two pairs."""
    design = Design(designs.CONDITIONS[:3], (Pair(4, 8, 2e9, 3), Pair(8, 16, 4e9, 3)))
    packs = [pack for pair in design.pairs for pack in design.packs(pair)]
    ends = pl.DataFrame([
        {
            "condition": condition.name, "pair": pack.pair.name, "width": pack.width, "seed": seed, "step": end,
            "loss": 100 * pack.width + 10 * seed + end * designs.flops_of_step(pack.width, pack.batch) / 1e9,
        }
        for pack in packs for condition, seed in pack.members for end in pack.ends
    ])  # fmt: skip
    looks = pl.DataFrame([
        {"condition": condition.name, "width": pack.width, "seed": seed, "step": look}
        for pack in packs for condition, seed in pack.members for look in pack.looks
    ])  # fmt: skip
    known = looks.with_columns(*(pl.lit(1.0).alias(name) for name in FEATURES), published_rule=pl.lit(False))
    found = decision_table(design, ends, known)
    assert len(found) == 3 * 2 * 2 * 3 * 3
    small = found["pair"].str.extract(r"(\d+)").cast(pl.Int64).to_numpy()
    compute, more = np.exp(found["log_compute"].to_numpy()) / 1e9, found["more"].to_numpy()
    expected = 100 * small + 5 - 10 * found["seed"].to_numpy() - compute
    step = designs.flops_of_step(16, 2) / 1e9  # ends lie within half a step of the compute
    np.testing.assert_allclose(found["margin"], expected, atol=step)
    np.testing.assert_allclose(found["continued"] - 100 * small - 10 * found["seed"], compute * (1 + more), atol=step)
    only = decision_table(design, ends.filter(pair="4 or 8"), known)
    assert only.equals(found.filter(pair="4 or 8"))
    lost = ends.with_columns(loss=pl.when(pl.int_range(len(ends)) == 0).then(float("nan")).otherwise("loss"))
    assert decision_table(design, lost, known).n_unique("condition") == 2


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conditions = (*(Condition(rate, 4, "docs") for rate in designs.RATES), Condition(0.003, 8, "source"))
    tiny = Design(conditions, (Pair(4, 8, 0.8e9, 3), Pair(8, 16, 1.6e9, 3)))
    monkeypatch.setattr(designs, "quick_design", lambda: tiny)
    printed, again = run_three_times(tmp_path, "scaling-decision", "--quick")
    assert [row["predictor"] for row in printed["predictors"]][6:9:2] == [OF_CONTROLS, OWN]
    assert LAW in {row["predictor"] for row in printed["predictors"]}
    assert len(printed["conditions"]) == 4
    assert again.err.endswith("index.html\n") or "page: " in again.out
    decisions = pl.read_csv(tmp_path / "one" / "decisions.csv")
    assert len(decisions) == 4 * 2 * 2 * 3 * 3
    assert map_chart(Outcome.of(decisions)).name == "scaling-decision-map"
    assert "larger model" in (tmp_path / "one" / "index.html").read_text(encoding="utf-8")
