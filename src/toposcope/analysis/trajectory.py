"""The series that the analyses compare, checkpoint by checkpoint: features, targets, covariates."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis.groups import combined, feature_names, layer_groups, probe_of, scale_free
from toposcope.analysis.logged import MIN_VALIDATED_SHARE, Logged
from toposcope.errors import ToposcopeError
from toposcope.probes import Feature, Kind, Probe, make_probes, probe_types
from toposcope.probes.feature import NETWORK, split_label
from toposcope.probes.point_clouds import kind_of_cloud
from toposcope.probes.probe import EMBEDDING, HIDDEN, NOISE, POOLED
from toposcope.study.kinds import kind_of
from toposcope.typing import Vector

Features = dict[Feature, Vector]
SeriesByName = dict[str, Vector]

PSEUDO_LAYERS = (NETWORK, POOLED)
WEIGHT_NORM = Feature("controls", "", "frobenius_norm", "norm")
ENTRY = "@"  # marks a statistic that is one value of a curve or a matrix, which is shown but is not a feature
SCALE = "top_eigenvalue"  # the statistic of a cloud of hidden states that is the covariate of its other statistics
STATES, TEXT = "hidden_states", "language_modelling"
"""The probe of clouds, and that of the loss on a fixed text."""
TEXT_LOSS = "text_loss"
"""The target that a model's loss on the fixed text is."""
CLOUD_ROLES = (HIDDEN, EMBEDDING)
"""Roles of pseudo-layers that are clouds of their own: no weights, and no parts of the network."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One run, on its measured checkpoints.

    Attributes
    ----------
    steps : ndarray, shape (n,)
    features : dict of Feature to ndarray, shape (n,)
        Of the whole network or the pooled cloud; NaN where not measured. The log adds ``log grad_norm_mean`` and
        ``log grad_norm_std``, over the steps since the last checkpoint.
    targets : dict of ndarray, shape (n,)
        The first is the most reliable: ``validation_loss`` if it is known at nearly all checkpoints, else ``text_loss``
        (nats per token of a fixed text, by the first ``language_modelling`` probe declared), else ``smoothed_loss``
        (the mean training loss of the last 100 steps, or of the steps since the last checkpoint if those are fewer).
        ``batch_loss`` is the loss of one batch, as published; it comes first under the published protocol.
    covariates : dict of ndarray, shape (n,)
        ``step``, ``learning_rate``, ``cumulative_learning_rate``, ``weight_norm``; those that are known.
    groups : dict of dict of ndarray, shape (n,)
        Features of groups of layers (`toposcope.analysis.groups.layer_groups`), by group.
    layers : dict of dict of ndarray, shape (n,)
        Features of each layer.
    roles : dict of str
        Of the layers, in the order of the checkpoint.
    twins : dict of dict of ndarray, shape (n,)
        Scale-free twins of features (docs/methods/association.md, item 7), by group; ``network`` for those of the
        whole network.
    noise : dict of ndarray, shape (n,)
        Standard deviation of features over draws or batches, of the network or the pooled cloud.
    clouds : dict of str
        By label, the label that describes the cloud its features are of: a label of hidden states, published or not,
        its own; what compares hidden states that of those it compares. Weight features have none.
    tokens : ndarray, shape (n,)
        Seen until each checkpoint; NaN where unknown.
    """

    run: str
    steps: NDArray[np.int64]
    features: Features
    targets: SeriesByName
    covariates: SeriesByName
    groups: dict[str, Features] = field(default_factory=dict)
    layers: dict[str, Features] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    twins: dict[str, Features] = field(default_factory=dict)
    noise: Features = field(default_factory=dict)
    clouds: dict[str, str] = field(default_factory=dict)
    tokens: Vector = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        if not len(self.tokens):
            object.__setattr__(self, "tokens", np.full(len(self.steps), np.nan))

    def named_values(self) -> SeriesByName:
        """Return targets and features of the network by their written names."""
        return {**self.targets, **{str(feature): values for feature, values in self.features.items()}}

    def scale(self, feature: Feature) -> Feature | None:
        """Return the feature that is the scale of the cloud which a feature describes; None without a cloud."""
        cloud = self.clouds.get(feature.label)
        return cloud_feature(cloud, SCALE, feature.group) if cloud else None


def cloud_feature(cloud: str, statistic: str, group: str = NETWORK) -> Feature:
    """Return a statistic of the cloud of hidden states that a label describes."""
    return Feature.of_label(cloud, statistic, kind_of_cloud(statistic), group)


def trajectories(
    features: pl.DataFrame | Iterable[pl.DataFrame],
    labels: pl.DataFrame,
    log: pl.DataFrame,
    *,
    batch_first: bool = False,
    tokens_per_step: Mapping[str, float] | None = None,
) -> list[Trajectory]:
    """Arrange a study's frames by run.

    Parameters
    ----------
    features, labels, log : polars.DataFrame
        `Study.frame`, or its parts, `Study.labels` and `Study.log`.
    batch_first : bool
        Whether the loss of one batch is the first target.
    tokens_per_step : mapping of str to float, optional
        By run; used for checkpoints whose tokens are not in the log.
    """
    declared = {label: probe_of(name, options) for name, options, label in labels.iter_rows()}
    names = feature_names(declared)
    labels = labels.with_columns(pl.col("label").replace_strict(names, return_dtype=pl.String))
    kinds = _Kinds(labels)
    probes = {names[label]: probe for label, probe in declared.items()}
    whole = pl.col("layer").is_in(PSEUDO_LAYERS) | pl.col("role").is_in(CLOUD_ROLES)
    collected: dict[str, _Rows] = {}
    measured: dict[str, None] = {}  # a run whose every checkpoint failed has nothing to compare
    for part in [features] if isinstance(features, pl.DataFrame) else features:
        rows = part.filter(~pl.col("statistic").str.contains(ENTRY, literal=True))
        rows = rows.join(labels, on=["probe", "options"], maintain_order="left")
        measured |= dict.fromkeys(rows.filter(whole).get_column("run").unique(maintain_order=True))
        for (run,), of_run in rows.group_by("run", maintain_order=True):
            collected.setdefault(run, _Rows(probes, kinds)).add(of_run)
    per_step = tokens_per_step or {}
    return [
        collected.pop(run).trajectory(run, log.filter(run=run), batch_first, per_step.get(run, np.nan))
        for run in measured
    ]


class _Kinds:
    """The labels by kind, in the order declared: losses on a text, clouds of hidden states, comparisons of these."""

    def __init__(self, labels: pl.DataFrame) -> None:
        rows = labels.select("probe", "options", "label").rows()
        self.texts = [label for probe, _, label in rows if probe == TEXT]
        self.states = [label for probe, _, label in rows if probe == STATES]
        label_of = {(probe, options): label for probe, options, label in rows}
        declared = [{"name": probe, **json.loads(options)} for probe, options, _ in rows if probe in probe_types()]
        self.comparing = {
            label_of[probe.name(), probe.options()]: label_of[source.name(), source.options()]
            for probe, source in _compared(declared)
            if source.name() == STATES and {(p.name(), p.options()) for p in (probe, source)} <= label_of.keys()
        }

    def clouds(self, scaled: Iterable[str]) -> dict[str, str]:
        """Return the cloud that each label describes; other labels describe their own cloud if they have its scale."""
        clouds = {label: label for label in self.states} | self.comparing
        return clouds | {label: label for label in scaled if label not in clouds}


def _compared(declared: list[dict[str, Any]]) -> Iterator[tuple[Probe, Probe]]:
    """Yield the probes that compare another probe's results, with that other probe; none if one of them is unknown."""
    try:
        probes = make_probes(declared)
    except ToposcopeError:
        return
    for probe in probes:
        source = probe.source(probes)
        if source is not None:
            yield probe, source


class _Rows:
    """The rows of one run, and what they become: vectors over its checkpoints, label -> layer -> statistic."""

    def __init__(self, probes: Mapping[str, Probe | None], kinds: _Kinds) -> None:
        self.kinds = kinds
        self.probes = {label: probe for label, probe in probes.items() if probe is not None}
        self.kinds_stored: dict[tuple[str, str], Kind] = {}
        self.series: dict[tuple[str, str, str, str], list[tuple[NDArray[np.int64], Vector]]] = {}

    def add(self, rows: pl.DataFrame) -> None:
        """Add rows of later checkpoints, or of the last one."""
        kinds = rows.select("probe", "statistic", "kind").unique()
        self.kinds_stored |= {(probe, statistic): kind for probe, statistic, kind in kinds.iter_rows()}
        keys = ("label", "layer", "role", "statistic")
        for *key, steps, values in rows.group_by(*keys, maintain_order=True).agg("step", "value").iter_rows():
            self.series.setdefault((*key,), []).append((np.array(steps, np.int64), np.array(values, np.float64)))

    def _arrange(self) -> None:
        self.steps = np.unique(np.concatenate([steps for parts in self.series.values() for steps, _ in parts]))
        self.found: dict[str, dict[str, SeriesByName]] = {}
        self.roles: dict[str, str] = {}
        for (label, layer, role, statistic), parts in self.series.items():
            vector = np.full(len(self.steps), np.nan)
            for steps, values in parts:
                vector[np.searchsorted(self.steps, steps)] = values
            self.found.setdefault(label, {}).setdefault(layer, {})[statistic] = vector
            if layer not in PSEUDO_LAYERS:
                self.roles[layer] = role
        self.groups = layer_groups(self.roles)
        texts = [self.found.pop(label, {}) for label in self.kinds.texts]
        self.text_loss = texts[0].get(NETWORK, {}).get("loss") if texts else None

    def trajectory(self, run: str, log: pl.DataFrame, batch_first: bool, tokens_per_step: float) -> Trajectory:
        """Arrange the rows, and return the run."""
        self._arrange()
        everything = self._features(PSEUDO_LAYERS, NETWORK)
        features = {f: values for f, values in everything.items() if not f.statistic.endswith(NOISE)}
        covariates = {"step": self.steps.astype(np.float64)}
        targets: SeriesByName = {}
        tokens = tokens_per_step * self.steps
        if len(log):
            logged = Logged(log)
            targets = logged.targets(self.steps, batch_first=batch_first)
            tokens = np.where(np.isfinite(seen := logged.tokens(self.steps)), seen, tokens)
            features |= logged.gradient_norms(self.steps)
            covariates |= logged.covariates(self.steps)
        if WEIGHT_NORM in features:
            covariates["weight_norm"] = features[WEIGHT_NORM]
        return Trajectory(
            run=run,
            steps=self.steps,
            features=features,
            targets=self._with_text_loss(targets, batch_first),
            covariates=covariates,
            groups={group: self._group_features(group) for group in self.groups},
            layers={layer: self._features([layer], layer) for layer in self.roles},
            roles=self.roles,
            twins=self._twins(covariates.get("weight_norm")),
            noise={
                f.with_statistic(f.statistic.removesuffix(NOISE)): values
                for f, values in everything.items()
                if f.statistic.endswith(NOISE)
            },
            clouds=self.kinds.clouds(
                label for label, by_layer in self.found.items() if any(SCALE in found for found in by_layer.values())
            ),
            tokens=tokens,
        )

    def _with_text_loss(self, targets: SeriesByName, batch_first: bool) -> SeriesByName:
        """Put the loss on a fixed text behind a validation loss that is known at nearly as many checkpoints."""
        if self.text_loss is None:
            return targets
        n_text, n_validated = (np.isfinite(v).sum() for v in (self.text_loss, targets.get("validation_loss", np.nan)))
        before = ["batch_loss"] if batch_first else []
        before += ["validation_loss"] if n_validated >= MIN_VALIDATED_SHARE * n_text else []
        first = {name: targets[name] for name in before if name in targets}
        return first | {TEXT_LOSS: self.text_loss} | {n: v for n, v in targets.items() if n not in first}

    def _feature(self, label: str, statistic: str, group: str) -> Feature:
        probe, _ = split_label(label)
        kind = self.kinds_stored.get((probe, statistic)) or kind_of(probe, statistic)
        return _feature_of(label, statistic, kind, group)

    def _features(self, layers: list[str] | tuple[str, ...], group: str) -> Features:
        return {
            self._feature(label, statistic, group): values
            for label, by_layer in self.found.items()
            for layer in layers
            for statistic, values in by_layer.get(layer, {}).items()
        }

    def _group_features(self, group: str) -> Features:
        features: Features = {}
        for label, probe in self.probes.items():
            by_layer = self.found.get(label, {})
            if layers := self._members(group, by_layer):
                statistics = combined(probe, [by_layer[layer] for layer in layers])
                features |= {
                    self._feature(label, name, group): values
                    for name, values in statistics.items()
                    if not name.endswith(NOISE)
                }
        return features

    def _members(self, group: str, by_layer: Mapping[str, SeriesByName]) -> list[str]:
        """Return the layers of a group if all were measured; in groups of clouds, the layers that were measured."""
        measured = [layer for layer in self.groups[group] if layer in by_layer]
        return measured if group in CLOUD_ROLES or len(measured) == len(self.groups[group]) else []

    def _twins(self, weight_norm: Vector | None) -> dict[str, Features]:
        """Divide layer by layer, then combine as the features were; a network that is one cloud by its own norm."""
        twins: dict[str, Features] = {group: {} for group in (*self.groups, NETWORK)}
        for label, probe in self.probes.items():
            by_layer = self.found.get(label, {})
            free = {
                layer: scale_free(probe, by_layer[layer], norm) for layer, norm in self._norms(by_layer, probe).items()
            }
            scaled: list[tuple[str, SeriesByName]] = []
            parts = [layer for layer in self.roles if layer in by_layer and self.roles[layer] not in CLOUD_ROLES]
            for group, layers in (*((g, self._members(g, by_layer)) for g in self.groups), (NETWORK, parts)):
                if layers and all(free.get(layer) for layer in layers):
                    statistics = combined(probe, [free[layer] for layer in layers])
                    scaled.append((group, statistics))
            if NETWORK in free and not parts:
                scaled.append((NETWORK, free[NETWORK]))
            if POOLED in by_layer and weight_norm is not None:
                scaled.append((NETWORK, scale_free(probe, by_layer[POOLED], weight_norm)))
            for group, statistics in scaled:  # without those that are the features themselves
                kept = {name: values for name, values in statistics.items() if probe.degree(name)}
                twins[group] |= {self._feature(label, name, group): values for name, values in kept.items()}
        return twins

    def _norms(self, by_layer: Mapping[str, SeriesByName], probe: Probe) -> SeriesByName:
        """Return the norm of what a probe measured, by layer: its own where it has one, or that of the weights."""
        if probe.NORM == Probe.NORM:
            weights = self.found.get(WEIGHT_NORM.label, {})
            measured = {layer: weights.get(layer, {}) for layer in by_layer if layer not in PSEUDO_LAYERS}
        else:
            measured = {layer: found for layer, found in by_layer.items() if layer != POOLED}
        return {layer: found[probe.NORM] for layer, found in measured.items() if probe.NORM in found}


@cache
def _feature_of(label: str, statistic: str, kind: Kind, group: str) -> Feature:
    """Return the same object for equal features, so that looking them up needs no comparison of texts."""
    return Feature.of_label(label, statistic, kind, group)
