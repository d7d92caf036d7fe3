"""Frames arranged by run, group and layer, and their scale-free twins."""

import numpy as np
import polars as pl
import pytest

from toposcope.analysis.groups import layer_groups
from toposcope.analysis.trajectories import trajectories
from toposcope.probes import make_probes

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
                rows += [(step, layer, role, probe.name(), probe.options(), k, v) for k, v in statistics.items()]
            rows += [
                (step, "network", "network", probe.name(), probe.options(), k, v)
                for k, v in probe.combine(told).items()
            ]
    columns = ["step", "layer", "role", "probe", "options", "statistic", "value"]
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
    np.testing.assert_allclose(found.features["rips H0.total"], 20 * (1 + found.steps))
    np.testing.assert_allclose(found.groups["mlp"]["rips H0.total"], 2 * (1 + found.steps))
    np.testing.assert_allclose(found.groups["head"]["rips H0.total"], 18 * (1 + found.steps))
    np.testing.assert_allclose(found.groups["head"]["controls frobenius_norm"], 3 * (1 + found.steps))
    np.testing.assert_allclose(found.layers["head.weight"]["rips H0.total"], 18 * (1 + found.steps))
    assert list(found.roles) == ["layers.0.mlp.w1.weight", "head.weight"]


def test_twins_are_divided_layer_by_layer() -> None:
    (found,) = trajectories(*frames(6))
    np.testing.assert_allclose(found.twins["network"]["rips H0.total"], 2 + 6)
    np.testing.assert_allclose(found.twins["head"]["rips H0.total"], 6)
    np.testing.assert_allclose(found.twins["network"]["rips H0.mean"], 8 / 14)
    assert "rips H0.count" not in found.twins["network"]
    assert "controls frobenius_norm" not in found.twins["network"]


def test_a_layer_that_was_not_measured_leaves_a_gap_in_its_groups() -> None:
    features, labels, log = frames(6)
    gone = (pl.col("step") == 200) & (pl.col("layer") == "head.weight") & (pl.col("probe") == "rips")
    (found,) = trajectories(features.filter(~gone), labels, log)
    assert np.isnan(found.groups["head"]["rips H0.total"][2])
    assert np.isfinite(found.groups["mlp"]["rips H0.total"]).all()
    assert np.isnan(found.twins["network"]["rips H0.total"][2])


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
        trajectories(only_rips, labels, logged)[0].clocks["weight_norm"], np.arange(6) ** 2 * 1e4
    )
    # Measured on the analysed layers, it is preferred.
    assert trajectories(features, labels, logged)[0].clocks["weight_norm"][0] == pytest.approx(np.sqrt(10))
