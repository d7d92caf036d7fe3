"""Frames arranged by run, group and layer, and their scale-free twins."""

import numpy as np
import polars as pl
import pytest

from toposcope.analysis.groups import layer_groups
from toposcope.analysis.logged import Logged
from toposcope.analysis.trajectory import SCALE, Trajectory, trajectories
from toposcope.probes import make_probes
from toposcope.probes.feature import TOPOLOGY
from toposcope.study.kinds import feature_named, kind_of

ROLES = {
    "layers.0.attn.qkv.weight": "attn.qkv",
    "layers.0.mlp.w1.weight": "mlp.in",
    "layers.1.attn.qkv.weight": "attn.qkv",
    "layers.2.mlp.w1.weight": "mlp.in",
    "head.weight": "head",
}


def test_groups_of_layers() -> None:
    groups = layer_groups(ROLES)
    names = list(ROLES)
    assert groups["attn.qkv"] == [names[0], names[2]]
    assert groups["attention"] == groups["attn.qkv"]
    assert groups["mlp"] == [names[1], names[3]]
    assert groups["early"] == names[:2]  # of three blocks the middle one is neither
    assert groups["late"] == [names[3]]
    assert groups["head"] == ["head.weight"]
    assert layer_groups({"fc.weight": "other"}) == {"other": ["fc.weight"]}


def frames(n: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Two probes of two layers and a network, over n checkpoints; H0 totals are 2 and 6 times the layers' norms."""
    steps = np.arange(n) * 100
    probes = make_probes([{"name": "rips"}, {"name": "controls"}])
    layers = {"layers.0.mlp.w1.weight": ("mlp.in", 1.0, 2.0), "head.weight": ("head", 3.0, 6.0)}
    rows = []
    for step in steps.tolist():
        for probe in probes:
            told = []
            for layer, (role, norm, ratio) in layers.items():
                grown = norm * (1 + step)
                statistics = {
                    "rips": {"H0.total": ratio * grown, "H0.count": 7.0, "H0.mean": ratio * grown / 7},
                    "controls": {"frobenius_norm": grown},
                }[probe.name()]
                told.append(statistics)
                rows += [
                    (step, layer, role, probe.name(), probe.options(), k, probe.kind(k), v)
                    for k, v in statistics.items()
                ]
            rows += [
                (step, "network", "network", probe.name(), probe.options(), k, probe.kind(k), v)
                for k, v in probe.combine(told).items()
            ]
    columns = ["step", "layer", "role", "probe", "options", "statistic", "kind", "value"]
    features = pl.DataFrame(rows, schema=columns, orient="row").with_columns(run=pl.lit("a"), flag=pl.lit(""))
    labels = pl.DataFrame(
        [(p.name(), p.options(), p.label()) for p in probes], ["probe", "options", "label"], orient="row"
    )
    log = pl.DataFrame(
        {
            "run": "a",
            "step": np.arange(100 * n),
            "loss": 5 - np.arange(100 * n) / 1000,
            "learning_rate": 0.1,
            "grad_norm": 1.0,
            "validation_loss": None,
        },
        schema_overrides={"validation_loss": pl.Float64},
    )
    return features, labels, log


def test_groups_are_combined_as_the_network_is() -> None:
    (found,) = trajectories(*frames(6))
    np.testing.assert_allclose(found.features[feature_named("rips H0.total")], 20 * (1 + found.steps))
    np.testing.assert_allclose(found.groups["mlp"][feature_named("rips H0.total", "mlp")], 2 * (1 + found.steps))
    np.testing.assert_allclose(found.groups["head"][feature_named("rips H0.total", "head")], 18 * (1 + found.steps))
    np.testing.assert_allclose(
        found.groups["head"][feature_named("controls frobenius_norm", "head")], 3 * (1 + found.steps)
    )
    np.testing.assert_allclose(
        found.layers["head.weight"][feature_named("rips H0.total", "head.weight")], 18 * (1 + found.steps)
    )
    assert list(found.roles) == ["layers.0.mlp.w1.weight", "head.weight"]


def test_twins_are_divided_layer_by_layer() -> None:
    (found,) = trajectories(*frames(6))
    np.testing.assert_allclose(found.twins["network"][feature_named("rips H0.total", "network")], 2 + 6)
    np.testing.assert_allclose(found.twins["head"][feature_named("rips H0.total", "head")], 6)
    np.testing.assert_allclose(found.twins["network"][feature_named("rips H0.mean", "network")], 8 / 14)
    assert feature_named("rips H0.count") not in found.twins["network"]
    assert feature_named("controls frobenius_norm") not in found.twins["network"]


def test_a_layer_that_was_not_measured_leaves_a_gap_in_its_groups() -> None:
    features, labels, log = frames(6)
    gone = (pl.col("step") == 200) & (pl.col("layer") == "head.weight") & (pl.col("probe") == "rips")
    (found,) = trajectories(features.filter(~gone), labels, log)
    assert np.isnan(found.groups["head"][feature_named("rips H0.total", "head")][2])
    assert np.isfinite(found.groups["mlp"][feature_named("rips H0.total", "mlp")]).all()
    assert np.isnan(found.twins["network"][feature_named("rips H0.total", "network")][2])


def test_without_controls_there_are_no_twins_of_layers() -> None:
    features, labels, log = frames(6)
    (found,) = trajectories(features.filter(pl.col("probe") == "rips"), labels, log)
    assert not any(found.twins.values())


def test_targets_by_protocol() -> None:
    features, labels, log = frames(6)
    assert list(trajectories(features, labels, log)[0].targets) == ["smoothed_loss", "batch_loss"]
    assert list(trajectories(features, labels, log, batch_first=True)[0].targets) == ["batch_loss", "smoothed_loss"]
    sparse = log.filter(pl.col("step") % 100 == 0)
    assert list(trajectories(features, labels, sparse)[0].targets) == ["batch_loss"]


def test_a_logged_weight_norm_is_a_clock() -> None:
    features, labels, log = frames(6)
    logged = log.with_columns(weight_norm=pl.col("step").cast(pl.Float64) ** 2)
    only_rips = features.filter(pl.col("probe") == "rips")
    np.testing.assert_allclose(
        trajectories(only_rips, labels, logged)[0].covariates["weight_norm"], np.arange(6) ** 2 * 1e4
    )
    # Measured on the analysed layers, it is preferred.
    assert trajectories(features, labels, logged)[0].covariates["weight_norm"][0] == pytest.approx(np.sqrt(10))


DECLARED = make_probes(
    [
        *({"name": "language_modelling"}, {"name": "language_modelling", "length": 64}),
        {"name": "distances", "of": "hidden_states"},
        *({"name": "hidden_states", "layers": "all", "keep": 10}, {"name": "embeddings"}),
    ]
)
STATES = "hidden_states:layers=all"


def with_states(n: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """The two layers of `frames`, and clouds beside them: the last state has radius 5, two layers 1 and 3, times 1 + s.

    Their H0 totals are 10, 2 and 12 times 1 + s.
    """
    features, labels, log = frames(n)
    rows = []
    for step in (np.arange(n) * 100).tolist():
        grown = 1.0 + step
        clouds = {"network": ("network", 5, 10), "hidden.00": ("hidden", 1, 2), "hidden.01": ("hidden", 3, 12)}
        for layer, (role, radius, total) in clouds.items():
            told = {"rms_radius": radius * grown, "H0.total": total * grown, "H0.total.noise": 0.5}
            told |= {"top_eigenvalue": radius * grown**2, "H1.betti@0.5": 3.0, "H1.betti@0.5.noise": 1.0}
            rows += [(step, layer, role, DECLARED[3].label(), k, v) for k, v in told.items()]
        rows += [
            (step, "network", "network", "distances:of=hidden_states", "H0.wasserstein_2", grown),
            (step, "network", "network", "language_modelling", "loss", 9.0 - step / 1000),
            (step, "network", "network", "language_modelling", "perplexity", np.exp(9.0 - step / 1000)),
            (step, "network", "network", "language_modelling:length=64", "loss", 1.0),
            (step, "embedding.input", "embedding", "embeddings", "H0.total", 4 * grown),
            (step, "embedding.input", "embedding", "embeddings", "rms_radius", 2 * grown),
        ]
    columns = ["step", "layer", "role", "label", "statistic", "value"]
    more = pl.DataFrame(rows, schema=columns, orient="row").with_columns(run=pl.lit("a"), flag=pl.lit(""))
    told_labels = pl.DataFrame([(p.name(), p.options(), p.label()) for p in DECLARED], labels.schema, orient="row")
    more = more.join(told_labels, on="label", maintain_order="left")
    kinds = [kind_of(*pair) for pair in more.select("probe", "statistic").iter_rows()]
    more = more.with_columns(kind=pl.Series(kinds)).select(features.columns)
    return pl.concat([features, more]), pl.concat([labels, told_labels]), log


@pytest.fixture
def mixed() -> Trajectory:
    """A run with weight probes and clouds."""
    (found,) = trajectories(*with_states(6))
    return found


def test_weights_and_clouds_keep_apart(mixed: Trajectory) -> None:
    grown = 1.0 + mixed.steps
    np.testing.assert_allclose(mixed.features[feature_named("rips H0.total")], 20 * grown)
    np.testing.assert_allclose(mixed.features[feature_named(f"{STATES} H0.total")], 10 * grown)
    (alone,) = trajectories(*frames(6))
    for group, features in alone.groups.items():
        assert mixed.groups[group].keys() == features.keys()
        assert mixed.twins[group].keys() == alone.twins[group].keys()
    assert set(mixed.groups) == {*alone.groups, "hidden", "embedding"}
    np.testing.assert_allclose(mixed.groups["hidden"][feature_named(f"{STATES} H0.total", "hidden")], 7 * grown)
    np.testing.assert_allclose(mixed.groups["embedding"][feature_named("embeddings H0.total", "embedding")], 4 * grown)
    assert not [name for name in mixed.groups["hidden"] if name.probe == "rips"]


def test_twins_beside_clouds(mixed: Trajectory) -> None:
    """Weights by layer with their norm, the last state by its own, layers of states each by its own."""
    twins = mixed.twins["network"]
    np.testing.assert_allclose(twins[feature_named("rips H0.total")], 8)
    np.testing.assert_allclose(twins[feature_named(f"{STATES} H0.total")], 2)
    np.testing.assert_allclose(twins[feature_named(f"{STATES} top_eigenvalue")], 1 / 5)
    np.testing.assert_allclose(mixed.twins["hidden"][feature_named(f"{STATES} H0.total", "hidden")], (2 + 4) / 2)
    np.testing.assert_allclose(mixed.twins["embedding"][feature_named("embeddings H0.total", "embedding")], 2)
    assert not [f for f in twins if f.label in ("distances:of=hidden_states", "embeddings")]


def test_entries_of_curves_and_matrices_are_no_features(mixed: Trajectory) -> None:
    everywhere = [
        mixed.features,
        mixed.noise,
        *(m for by in (mixed.groups, mixed.layers, mixed.twins) for m in by.values()),
    ]
    assert not [name for features in everywhere for name in features if "@" in name.statistic]
    assert list(mixed.noise) == [feature_named(f"{STATES} H0.total")]


def test_clock_of_hidden_states(mixed: Trajectory) -> None:
    scale = feature_named(f"{STATES} top_eigenvalue")
    names = (f"{STATES} H0.total", "distances:of=hidden_states H0.wasserstein_2", str(scale))
    assert [mixed.scale(feature_named(name)) for name in names] == [scale] * 3
    assert mixed.scale(feature_named(names[0], "hidden")) == feature_named(str(scale), "hidden")
    assert scale in mixed.features
    assert mixed.scale(feature_named("rips H0.total")) is None
    assert mixed.scale(feature_named("controls frobenius_norm")) is None


def test_the_loss_on_a_fixed_text_is_a_target_and_no_feature(mixed: Trajectory) -> None:
    assert list(mixed.targets) == ["text_loss", "smoothed_loss", "batch_loss"]
    np.testing.assert_allclose(mixed.targets["text_loss"], 9 - mixed.steps / 1000)  # of the first declared
    assert not [f for f in mixed.features if f.probe == "language_modelling"]


@pytest.mark.parametrize(
    ("validated", "batch_first", "expected"),
    [
        (6, False, ["validation_loss", "text_loss", "batch_loss"]),
        (3, False, ["text_loss", "smoothed_loss", "batch_loss"]),
        (6, True, ["batch_loss", "validation_loss", "text_loss"]),
        (3, True, ["batch_loss", "text_loss", "smoothed_loss"]),
    ],
)
def test_a_validation_loss_comes_before_that_on_a_text(validated: int, batch_first: bool, expected: list[str]) -> None:
    features, labels, log = with_states(6)
    log = log.with_columns(
        validation_loss=pl.when((pl.col("step") % 100 == 0) & (pl.col("step") < 100 * validated)).then(4.0)
    )
    (found,) = trajectories(features, labels, log, batch_first=batch_first)
    assert list(found.targets) == expected


def test_without_a_log_the_text_is_the_target() -> None:
    features, labels, log = with_states(6)
    (found,) = trajectories(features, labels, log.clear())
    assert list(found.targets) == ["text_loss"]


def test_tokens() -> None:
    features, labels, log = frames(4)
    assert np.isnan(trajectories(features, labels, log)[0].tokens).all()
    logged = log.with_columns(tokens=pl.when(pl.col("step") != 200).then(pl.col("step") * 64.0))
    np.testing.assert_array_equal(trajectories(features, labels, logged)[0].tokens, [0, 6400, np.nan, 19200])
    (found,) = trajectories(features, labels, logged, tokens_per_step={"a": 32.0, "b": 1.0})
    np.testing.assert_array_equal(found.tokens, [0, 6400, 6400, 19200])
    (unlogged,) = trajectories(features, labels, log.clear(), tokens_per_step={"a": 32.0})
    np.testing.assert_array_equal(unlogged.tokens, [0, 3200, 6400, 9600])


def test_what_is_no_topology() -> None:
    controls = [
        *("controls alpha", "log grad_norm_mean", "gradient_rips gradient_norm"),
        *("random_matrices:draws=3 gaussian.np_mean", "clustering coefficient", "language_modelling perplexity"),
        *("hidden_states n_points", "hidden_states:points=texts two_nn", "published eigenvalue_ratio_1_10"),
        *("hidden_states pca_variance", "published pca_variance_explained", "embeddings rankme"),
    ]
    topology = [
        *("rips H0.total", "published np_mean", "hidden_states H1.entropy", "published wasserstein_h1_from_prev"),
        *("distances:of=hidden_states H1.bottleneck", "neural_persistence np_norm"),
    ]
    assert TOPOLOGY not in {feature_named(text).kind for text in controls}
    assert {feature_named(text).kind for text in topology} == {TOPOLOGY}


def test_what_compares_states_is_of_those_it_compares() -> None:
    declared = make_probes(
        [
            {"name": "hidden_states"},
            {"name": "hidden_states", "points": "texts", "keep": 10},
            {"name": "distances", "of": "hidden_states"},
        ]
    )
    labels = pl.DataFrame(
        [(p.name(), p.options(), p.label()) for p in declared], with_states(6)[1].schema, orient="row"
    )
    rows = [
        (s, "network", "network", p.name(), p.options(), SCALE, p.kind(SCALE), 1.0) for s in range(6) for p in declared
    ]
    columns = ["step", "layer", "role", "probe", "options", "statistic", "kind", "value"]
    features = pl.DataFrame(rows, schema=columns, orient="row").with_columns(run=pl.lit("a"), flag=pl.lit(""))
    (found,) = trajectories(features, labels, frames(6)[2].clear())
    assert found.scale(feature_named("distances:of=hidden_states H1.wasserstein_2")) == feature_named(
        "hidden_states top_eigenvalue"
    )


def test_the_rate_of_the_moment_is_the_last_one_logged() -> None:
    rates = [0.1, None, 0.3, 0.2]
    log = pl.DataFrame({"step": [10, 20, 30, 40], "loss": [3.0] * 4, "learning_rate": rates})
    covariates = Logged(log).covariates(np.array([0, 10, 20, 35, 40]))
    assert covariates["learning_rate"].tolist() == [0.1, 0.1, 0.1, 0.3, 0.2]  # before the first one logged, that
    np.testing.assert_allclose(covariates["cumulative_learning_rate"], [0, 0.1, 0.1, 0.4, 0.6])


def test_without_rates_there_is_no_such_clock() -> None:
    log = pl.DataFrame(
        {"step": [10, 20], "loss": [3.0, 2.0], "learning_rate": pl.Series([None, None], dtype=pl.Float64)}
    )
    assert Logged(log).covariates(np.array([10, 20])) == {}
