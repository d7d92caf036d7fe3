"""Claims are judged by what is true of a study: information, a clock, or nothing at all."""

from functools import cache
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from named_features import by_feature
from scipy.stats import permutation_test, rankdata, spearmanr

from toposcope.analysis.permutations import sign_flip
from toposcope.analysis.table import association_table
from toposcope.analysis.trajectory import WEIGHT_NORM, Trajectory
from toposcope.extend import UNDETERMINED
from toposcope.study.kinds import feature_named
from toposcope_experiments.published_study.case import EXPLAINED, FALLS, STANDS, p_of_rho
from toposcope_experiments.published_study.claims import RULES, SCHEMA, claims
from toposcope_experiments.published_study.correlation_claims import fisher_p
from toposcope_experiments.published_study.published import Law, Published, Trace

SIZES = {"a": 3_000, "b": 7_000, "c": 21_000, "d": 46_000, "e": 97_000}
LARGE = "large model"
STEPS = np.arange(0, 5001, 100)
H0, H1, NP = "rips H0.total", "rips H1.total", "neural_persistence np_mean"
PUBLISHED = Published(
    final_loss=dict(zip(SIZES, (2.5, 2.1, 1.9, 1.7, 1.5), strict=True)),
    correlations={
        "H0.total": dict(zip(SIZES, (-0.59, -0.85, -0.87, -0.90, -0.91), strict=True)),
        "np_mean": dict(zip(SIZES, (-0.3, 0.0, 0.7, 0.6, 0.5), strict=True)),
        "H1.total": dict(zip(SIZES, (-0.64, -0.64, -0.58, -0.49, 0.05), strict=True)),
    },
    prediction_errors={"loss_only": {"0.3": 0.10, "0.5": 0.08}, "combined": {"0.3": 0.09, "0.5": 0.06}},
    largest_change=dict(zip(SIZES, (300, 300, 300, 200, 300), strict=True)),
    training_steps=dict.fromkeys(SIZES, 5000),
    diminishing_returns=dict(zip(SIZES, (400, 800, 1500, 1600, 1800), strict=True)),
    scaling={
        "H0.total": Law(exponent=0.2, r_squared=0.85, rho=0.9, p=0.037),
        "loss": Law(exponent=-0.14, r_squared=0.99),
    },
    traces={LARGE: Trace(steps=list(range(7)), values={"H0.total": [1.0, 2, 3, 4, 5, 6, 7]})},
)


def a_run(name: str, rng: np.random.Generator, kind: str, place: float) -> Trajectory:
    """A run whose features follow the loss around its drift, or the step, or are noise; `place` is 0 to 1 by size."""
    n = len(STEPS)
    drift = np.linspace(0, 1, n)
    wiggle = rng.normal(size=n)
    loss = (3 - 0.5 * drift + 0.3 * wiggle) if kind == "information" else 3 - drift + 0.001 * wiggle

    def follows(sign: float, noise: float) -> np.ndarray:
        if kind == "noise":
            return np.asarray(rng.normal(size=n))
        if kind == "clock":
            return np.asarray(-sign * (drift + 0.005 * rng.normal(size=n)))
        return np.asarray(sign * loss + noise * rng.normal(size=n))

    features = {
        H0: follows(-1, 0.3 - 0.28 * place),
        H1: follows(-1, 0.02 + 0.28 * place),
        NP: follows(-1 if place < 0.3 else 1, 0.05),
    }
    batch = loss + (1 - place) * (0.02 if kind == "information" else 0.5) * rng.normal(size=n)
    covariates = {"step": STEPS.astype(np.float64)}
    return Trajectory(name, STEPS, by_feature(features), {"validation_loss": loss, "batch_loss": batch}, covariates)


@cache
def a_study(kind: str, seed: int = 0) -> list[Trajectory]:
    """A run of each size, and a larger one."""
    rng = np.random.default_rng(seed)
    return [a_run(name, rng, kind, i / 4) for i, name in enumerate([*SIZES])] + [a_run(LARGE, rng, kind, 0.9)]


@cache
def associations(trajectories: tuple[Trajectory, ...]) -> pl.DataFrame:
    return association_table(trajectories)


def some_runs(names: dict[str, int]) -> pl.DataFrame:
    rows = [(name, "family", n, "complete", 5000) for name, n in names.items()]
    columns = {"run": pl.String, "kind": pl.String, "n_parameters": pl.Int64, "status": pl.String}
    return pl.DataFrame(rows, schema={**columns, "last_step": pl.Int64}, orient="row")


def some_predictions(gain: float, n_runs: int, noise: float = 0.01) -> tuple[pl.DataFrame, dict[str, int]]:
    """Errors of a power law 0.1, of the blend with the last loss 0.08, of that with topology `gain` less."""
    rng = np.random.default_rng(5)
    names = {name: 10**3 + i for i, name in enumerate(list(SIZES) + [f"run {i}" for i in range(n_runs - len(SIZES))])}
    errors = {"paper_loss_only": 0.1, "paper_combined_without_topology": 0.08, "paper_combined": 0.08 - gain}
    rows = [
        (run, protocol, fraction, name, 1.0, 1.0, error + noise * rng.random(), False)
        for run in names
        for protocol in ("published", "exact")
        for fraction in (0.3, 0.5)
        for name, error in errors.items()
    ]
    columns = ("run", "protocol", "fraction", "forecaster", "prediction", "final", "error", "fallback")
    return pl.DataFrame(rows, schema=list(columns), orient="row"), names


def some_phases(diminishing: list[int], largest: int = 300, share_same: float = 0.9) -> pl.DataFrame:
    rows = [
        {"run": run, "feature": NP, "largest_change": largest, "diminishing_returns": step, "share_same": share_same}
        for run, step in zip(SIZES, diminishing, strict=True)
    ]
    return pl.DataFrame(rows)


def some_change_points(explained: bool) -> pl.DataFrame:
    return pl.DataFrame([{"run": run, "feature": NP, "step": 300, "explained": explained} for run in SIZES])


def some_scaling(**values: Any) -> pl.DataFrame:
    law = {"n": 5, "n_sizes": 5, "exponent": 0.2, "r_squared": 0.99, "rho": 1.0, "p_exact": 1 / 60, **values}
    quantities = [H0, str(WEIGHT_NORM), "validation_loss", "batch_loss"]
    rows: list[dict[str, Any]] = [{"quantity": quantity, **law} for quantity in quantities]
    rows[1] |= {"rho": values.get("norm_rho", 0.3)}
    for row in rows[2:]:
        row |= {"exponent": -abs(row["exponent"]), "rho": -1.0}
    return pl.DataFrame([{key: row[key] for key in row if key != "norm_rho"} for row in rows])


NO_CHANGE_POINTS = some_change_points(explained=False).clear()


def judge(
    trajectories: list[Trajectory],
    published: Published | None = PUBLISHED,
    *,
    phases: pl.DataFrame | None = None,
    change_points: pl.DataFrame = NO_CHANGE_POINTS,
    scaling: pl.DataFrame | None = None,
    predictions: pl.DataFrame | None = None,
    sizes: dict[str, int] = SIZES,
    associated: pl.DataFrame | None = None,
) -> dict[int, tuple[str, str]]:
    """Verdict and reason by the number of the claim."""
    table = claims(
        published,
        associations(tuple(trajectories)) if associated is None else associated,
        some_phases([0] * 5).clear() if phases is None else phases,
        change_points,
        some_scaling().clear() if scaling is None else scaling,
        trajectories,
        some_runs(sizes),
        some_predictions(0, 5)[0].clear() if predictions is None else predictions,
    )
    assert table.schema == pl.Schema(SCHEMA)
    return {number: (verdict, why) for number, verdict, why in table.select("number", "verdict", "why").iter_rows()}


def test_where_topology_adds_everything_stands() -> None:
    predictions, names = some_predictions(0.03, 20)
    study = a_study("information")
    published = Published(
        **{f: getattr(PUBLISHED, f) for f in PUBLISHED.__struct_fields__ if f != "final_loss"},
        final_loss={**PUBLISHED.final_loss, **dict.fromkeys(names, 2.0)},
    )
    others = [Trajectory(name, STEPS, {}, {}, {}) for name in names if name not in SIZES]
    found = judge(
        [*study, *others],
        published,
        phases=some_phases([400, 800, 1500, 1600, 1800]),
        change_points=some_change_points(explained=False),
        scaling=some_scaling(),
        predictions=predictions,
        sizes={**names, **SIZES},
    )
    assert {number: verdict for number, (verdict, _) in found.items()} == dict.fromkeys(range(1, 10), STANDS), found


def test_a_clock_says_what_the_step_says() -> None:
    found = judge(a_study("clock"))
    assert found[1][0] == EXPLAINED
    assert found[3][0] == EXPLAINED
    assert found[9][0] == EXPLAINED


def test_what_strengthens_by_the_noise_of_one_batch_does_not_stand() -> None:
    study = a_study("clock")
    batch = [abs(spearmanr(t.features[feature_named(H0)], t.targets["batch_loss"])[0]) for t in study[:5]]
    assert batch == sorted(batch)
    assert batch[-1] - batch[0] > 0.2
    verdict, why = judge(study)[2]
    assert verdict == FALLS
    assert f"{batch[0]:.3f}" in why


def test_noise_does_not_stand() -> None:
    found = judge(a_study("noise"))
    assert found[1][0] == FALLS
    assert STANDS not in {found[number][0] for number in (1, 2, 3, 4, 9)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clock", "noise"])
def test_false_positives_are_rare(kind: str) -> None:
    """Of 30 studies in which topology adds nothing, no association claim stands in more than one."""
    stood = [
        [number for number in (1, 2, 3, 4, 9) if judged[number][0] == STANDS]
        for seed in range(30)
        if (judged := judge(a_study(kind, seed)))
    ]
    assert sum(map(bool, stood)) <= 1, stood


def test_a_publication_and_a_study_of_nothing() -> None:
    found = judge([])
    assert set(found) == set(range(1, len(RULES) + 1))
    # the last is judged on what was published alone
    assert {number: verdict for number, (verdict, _) in found.items() if number < 9} == dict.fromkeys(
        range(1, 9), UNDETERMINED
    )
    assert judge(a_study("clock"), Published()) == {}
    assert judge(a_study("clock"), None) == {}


def test_without_sizes_nothing_is_said_of_size() -> None:
    found = judge(a_study("information"), sizes={})
    assert found[1][0] == STANDS
    assert {found[number][0] for number in (2, 3, 4, 6)} == {UNDETERMINED}


def judge_gain(predictions: pl.DataFrame, names: dict[str, int]) -> tuple[str, str]:
    """What is said of the published gain of prediction, from these errors alone."""
    published = Published(final_loss=dict.fromkeys(names, 2.0), prediction_errors=PUBLISHED.prediction_errors)
    study = [Trajectory(name, STEPS, {}, {}, {}) for name in names]
    return judge(study, published, predictions=predictions, sizes=names)[5]


@pytest.mark.parametrize(
    ("gain", "n_runs", "expected"),
    [
        (0.03, 20, STANDS),
        (0.03, 5, UNDETERMINED),
        (0.0001, 20, UNDETERMINED),
        (-0.001, 20, FALLS),
        (-0.1, 20, FALLS),
        (-0.1, 5, FALLS),
    ],
)
def test_the_gain_of_prediction(gain: float, n_runs: int, expected: str) -> None:
    predictions, names = some_predictions(gain, n_runs, noise=0.0 if abs(gain) == 0.001 else 0.02)
    verdict, why = judge_gain(predictions, names)
    if gain == 0.0001:  # the mean of noise has either sign
        assert verdict in (UNDETERMINED, FALLS)
    else:
        assert verdict == expected, why
    assert f"{n_runs} runs" in why


def test_a_blend_worse_than_the_power_law_is_no_gain() -> None:
    predictions, names = some_predictions(0.03, 20, noise=0)
    worse = predictions.with_columns(
        error=pl.when(pl.col("forecaster") == "paper_loss_only").then(0.01).otherwise("error")
    )
    assert judge_gain(worse, names)[0] == FALLS


@pytest.mark.parametrize(
    ("n_runs", "later", "expected"), [(5, -0.01, UNDETERMINED), (20, -0.01, FALLS), (20, 0.01, STANDS)]
)
def test_a_gain_at_one_fraction_only_takes_a_test_to_fall(n_runs: int, later: float, expected: str) -> None:
    """Topology gains 0.02 at 30% of training and `later` at 50%; five runs cannot tell, twenty can."""
    predictions, names = some_predictions(0.02, n_runs)
    blend = (pl.col("forecaster") == "paper_combined") & (pl.col("fraction") == 0.5)
    mixed = predictions.with_columns(error=pl.when(blend).then(pl.col("error") + 0.02 - later).otherwise("error"))
    verdict, why = judge_gain(mixed, names)
    assert verdict == expected, why
    assert why.count("with topology") == why.count("with the last loss") == 4


def test_only_fractions_with_a_published_gain_are_claimed() -> None:
    told = {"loss_only": {"0.2": 0.1, "0.30": 0.1}, "combined": {"0.2": 0.2, "0.30": 0.08}}
    published = Published(prediction_errors=told)
    table = claims(
        published, associations(()), some_phases([0] * 5).clear(), NO_CHANGE_POINTS, some_scaling().clear(), [],
        some_runs({}), some_predictions(0, 5)[0].clear(),
    )  # fmt: skip
    assert table.get_column("claim").to_list() == [
        "Topology improves the prediction of the final loss by 20.0% at 30% of training"
    ]


@pytest.mark.parametrize(
    ("published", "numbers"),
    [
        (Published(source="x"), set()),
        (Published(final_loss={"a": 2.5, "b": 2.1}), set()),
        (Published(final_loss={"a": 2.5, "b": 2.1, "c": 1.9}), {8}),
        (Published(correlations={"H0.total": {"a": -0.5}}), {1, 2}),
        (Published(correlations={"H1.total": {"a": -0.5}, "np_mean": {}}), {4}),
        (Published(correlations={"np_mean": {"a": -0.5}}, diminishing_returns={"a": 300}), {3, 6}),
        (Published(prediction_errors={"combined": {"0.3": 0.1}}), {5}),
        (Published(scaling={"H0.total": Law(exponent=0.2, r_squared=0.9)}), {7}),
        (Published(scaling={"loss": Law(exponent=-0.2, r_squared=0.9)}), {8}),
        (Published(traces={"x": Trace(steps=[0], values={"np_mean": [0.3]})}), {9}),
    ],
)
def test_only_claims_that_are_made_are_judged(published: Published, numbers: set[int]) -> None:
    assert set(judge(a_study("clock"), published)) == numbers


def test_phases_say_what_is_missing() -> None:
    phases = some_phases([400, 800, 1500, 1600, 1800])
    for changed, told in (
        ({}, "No published step of the largest change is declared"),
        ({"a": 300}, "Not judged: needs the published length of training"),
    ):
        published = Published(
            final_loss=PUBLISHED.final_loss, largest_change=changed, diminishing_returns=PUBLISHED.diminishing_returns
        )
        verdict, why = judge(a_study("clock"), published, phases=phases)[6]
        assert (verdict, why[: len(told)]) == (UNDETERMINED, told)


def test_how_long_runs_were_trained_is_said_as_it_is() -> None:
    study = a_study("clock")
    assert "All were trained for 5,000 steps" in judge(study, scaling=some_scaling())[8][1]
    short = study[0]
    cut = Trajectory(
        short.run, short.steps[:40], {k: v[:40] for k, v in short.features.items()},
        {k: v[:40] for k, v in short.targets.items()}, {k: v[:40] for k, v in short.covariates.items()},
    )  # fmt: skip
    why = judge([cut, *study[1:]], scaling=some_scaling())[8][1]
    assert "They were trained for 3,900 to 5,000 steps" in why
    assert "All were" not in why


def test_a_power_law_of_single_batches_cannot_be_told() -> None:
    study = [
        Trajectory(t.run, t.steps, t.features, {"batch_loss": t.targets["batch_loss"]}, t.covariates)
        for t in a_study("clock")
    ]
    verdict, why = judge(study, scaling=some_scaling())[8]
    assert verdict == UNDETERMINED
    assert "the loss of one batch alone" in why


@pytest.mark.parametrize(
    ("phases", "explained", "expected"),
    [
        (some_phases([400, 800, 1500, 1600, 1800]), False, STANDS),
        (some_phases([400, 800, 1500, 1600, 1800]), True, EXPLAINED),
        (some_phases([800, 400, 1800, 1500, 1600]), False, UNDETERMINED),  # as published: exact p .35
        (some_phases([400, 800, 1500, 1600, 1800], share_same=0.3), False, UNDETERMINED),
        (some_phases([400, 800, 1500, 1600, 1800], largest=1000), False, FALLS),
        (some_phases([1800, 1600, 1500, 800, 400]), False, FALLS),
    ],
)
def test_phases(phases: pl.DataFrame, explained: bool, expected: str) -> None:
    verdict, why = judge(a_study("clock"), phases=phases, change_points=some_change_points(explained))[6]
    assert verdict == expected, why


@pytest.mark.parametrize("kind", ["information", "clock", "noise"])
@settings(max_examples=15)
@given(
    scale=st.sampled_from([0.01, 0.5, 2, 2.5, 1000]),
    grid=st.sampled_from([1, 2, 5]),
    larger=st.sampled_from([1, 7, 1000]),
)
def test_what_is_published_is_the_same_whatever_the_replica_is(kind: str, scale: float, grid: int, larger: int) -> None:
    """A replica of another length or size: the claims read the same, and where its shares are, so is each verdict."""

    def of_replica(scale: float, grid: int, larger: int) -> dict[int, tuple[str, str]]:
        study = [
            Trajectory(
                t.run, np.asarray(t.steps[::grid] * scale, np.int64), {f: v[::grid] for f, v in t.features.items()},
                {k: v[::grid] for k, v in t.targets.items()}, {"step": t.covariates["step"][::grid] * scale},
            )
            for t in a_study(kind)
        ]  # fmt: skip
        phases = some_phases([400, 800, 1500, 1600, 1800])
        phases = phases.with_columns((pl.col("largest_change", "diminishing_returns") * scale).cast(pl.Int64))
        table = claims(
            PUBLISHED, associations(tuple(a_study(kind))), phases, NO_CHANGE_POINTS, some_scaling(), study,
            some_runs({run: n * larger for run, n in SIZES.items()}), some_predictions(0.01, 20)[0],
        )  # fmt: skip
        return {number: (claim, verdict) for number, claim, verdict, _ in table.iter_rows()}

    found = of_replica(scale, grid, larger)
    assert found == of_replica(1, 1, 1)
    assert "the largest change at 4% to 6% of training" in found[6][0]


@pytest.mark.parametrize(("n_eff", "expected"), [(5.0, UNDETERMINED), (200.0, EXPLAINED)])
def test_a_change_with_size_that_the_step_shares_takes_a_test_too(n_eff: float, expected: str) -> None:
    """|rho| of feature and step rise alike, from .6 to .9; few effective checkpoints cannot separate them."""
    sizes = dict(list(SIZES.items())[:3])
    row = {
        "group": "network", "feature": H0, "target": "validation_loss", "n_eff": n_eff, "verdict": "trend only",
        "block_low": -0.99, "block_high": -0.2, "n": 51,
    }  # fmt: skip
    table = pl.DataFrame(
        [{"run": run, "rho": rho, "rho_step": rho, **row} for run, rho in zip(sizes, (-0.6, -0.8, -0.9), strict=True)]
    )
    study = [t for t in a_study("clock") if t.run in sizes]
    published = Published(correlations={"H0.total": dict.fromkeys(sizes, -0.8)})
    verdict, why = judge(study, published, sizes=sizes, associated=table)[2]
    assert verdict == expected, why


@pytest.mark.parametrize(("verdict", "rho", "expected"), [
    ("trend only", -0.9, EXPLAINED), ("cannot be told", -0.9, UNDETERMINED), ("cannot be told", -0.7, EXPLAINED),
])  # fmt: skip
def test_the_step_explains_only_what_it_was_tested_on_or_tracks_as_well(
    verdict: str, rho: float, expected: str
) -> None:
    row = {
        "group": "network", "feature": H0, "target": "validation_loss", "n_eff": 4.0, "verdict": verdict,
        "block_low": -0.99, "block_high": -0.2, "n": 51, "rho": rho, "rho_step": -0.8,
    }  # fmt: skip
    published = Published(correlations={"H0.total": {"a": -0.8}})
    associated = pl.DataFrame([{"run": "a", **row}])
    assert judge(a_study("clock")[:1], published, associated=associated)[1][0] == expected


def test_a_course_of_few_changes_is_no_trend() -> None:
    """A walk of four steps goes one way in one of eight cases: its order alone would give p .017."""
    trace = Trace(steps=list(range(5)), values={"H0.total": [1.0, 2, 3, 4, 5]})
    published = Published(correlations=PUBLISHED.correlations, traces={LARGE: trace})
    verdict, why = judge(a_study("clock"), published)[9]
    assert (verdict, "p 0.12, of its changes" in why) == (UNDETERMINED, True), why


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        ({}, (STANDS, STANDS)),
        ({"norm_rho": 1.0}, (EXPLAINED, STANDS)),
        ({"p_exact": 1 / 12, "rho": 0.9}, (UNDETERMINED, UNDETERMINED)),
        ({"r_squared": 0.5}, (STANDS, FALLS)),
        ({"exponent": -0.1}, (FALLS, STANDS)),
        ({"n_sizes": 2}, (UNDETERMINED, UNDETERMINED)),
    ],
)
def test_scaling(law: dict[str, float], expected: tuple[str, str]) -> None:
    found = judge(a_study("clock"), scaling=some_scaling(**law))
    assert (found[7][0], found[8][0]) == expected
    assert law.get("n_sizes") == 2 or "the exact p over 5 sizes is 0.083, not 0.037" in found[7][1]


def test_a_trace_that_goes_the_other_way() -> None:
    falling = Published(
        correlations=PUBLISHED.correlations,
        traces={LARGE: Trace(steps=list(range(7)), values={"H0.total": [7.0, 6, 5, 4, 3, 2, 1]})},
    )
    assert judge(a_study("clock"), falling)[9][0] == FALLS
    wavering = Published(
        correlations=PUBLISHED.correlations,
        traces={LARGE: Trace(steps=list(range(7)), values={"H0.total": [69.7, 69.4, 70.9, 69.8, 54.4, 46.1, 45.4]})},
    )
    verdict, why = judge(a_study("clock"), wavering)[9]
    assert verdict == UNDETERMINED  # exact p .09
    assert "rises from 69.7 to 70.9 at step 2, then falls to 45.4" in why
    assert "in the small runs it goes mostly up with the step, by their rho with the step +" in why


def test_exact_p_values() -> None:
    """Of 120 orders of five, 10 are as far from chance as rho .9 in either direction, 2 as rho 1."""
    assert [p_of_rho(rho, 5) for rho in (0.9, -0.9, 1.0, 0.0)] == pytest.approx([1 / 12, 1 / 12, 1 / 60, 1])
    assert sign_flip(np.array([1.0, 2, 3, 4, 5])) == pytest.approx(2 / 2**5)
    assert sign_flip(np.zeros(5)) == 1
    rng = np.random.default_rng(1)
    for n in (6, 12, 20):
        differences = rng.normal(0.3, 1, n)
        oracle = permutation_test(
            (differences, np.zeros(n)), lambda a, b: (a - b).mean(), permutation_type="samples", n_resamples=20_000
        )
        assert sign_flip(differences) == pytest.approx(oracle.pvalue, abs=1e-12 if n < 14 else 0.02)


def test_fisher_z_keeps_its_level() -> None:
    generator = np.random.default_rng(3)

    def p() -> float:
        rho = []
        for n in (30, 60):
            y = generator.normal(size=n)
            rho.append(float(np.corrcoef(rankdata(y), rankdata(y + generator.normal(size=n)))[0, 1]))
        return fisher_p(rho[0], 30, rho[1], 60)

    assert 0.03 < np.mean([p() < 0.05 for _ in range(1500)]) < 0.075
    assert np.isnan(fisher_p(0.5, 3.0, 0.9, 50))


@pytest.mark.parametrize(
    "lacking", ["association", "phases", "change_points", "scaling", "trajectories", "n_parameters", "predictions"]
)
def test_a_claim_that_lacks_something_is_judged_or_says_what_it_needs(lacking: str) -> None:
    study = [] if lacking == "trajectories" else a_study("information")
    tables = {
        "association": associations(tuple(a_study("information"))),
        "phases": some_phases([400, 800, 1500, 1600, 1800]),
        "change_points": some_change_points(explained=False),
        "scaling": some_scaling(),
        "predictions": some_predictions(0.03, 20)[0],
    }
    association, phases, points, scaling, predictions = (t.clear() if n == lacking else t for n, t in tables.items())
    runs = some_runs({} if lacking == "n_parameters" else SIZES)
    found = claims(PUBLISHED, association, phases, points, scaling, study, runs, predictions)
    assert found["number"].to_list() == list(range(1, 10))
    unjudged = {n: why for n, v, why in found.select("number", "verdict", "why").iter_rows() if v == UNDETERMINED}
    lacks = {"association": [1, 2, 3, 4], "phases": [6], "scaling": [7, 8], "n_parameters": [2, 3, 4, 6]}
    for number in lacks.get(lacking, []):
        assert any(word in unjudged[number] for word in ("It takes", "takes 3", "not measured", "fewer than"))


def test_features_imported_without_a_correlation_are_a_trace() -> None:
    large = by_feature({"published H0.total": np.arange(7.0) + 1})
    run = Trajectory("released", np.arange(7), large, {}, {})
    without = Published(correlations=PUBLISHED.correlations)
    assert judge([*a_study("clock"), run], without)[9] == (EXPLAINED, judge([*a_study("clock"), run], without)[9][1])
    assert judge(a_study("clock"), without).keys() == {1, 2, 3, 4}
    assert judge([run], Published(final_loss={"a": 1.0})).keys() == set()
