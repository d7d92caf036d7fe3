"""What the analyses compare, checkpoint by checkpoint: features, targets, clocks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis.groups import combined, feature_names, layer_groups, probe_of, scale_free
from toposcope.analysis.logged import Logged
from toposcope.probes import Probe
from toposcope.probes.probe import NETWORK, POOLED

Vector = NDArray[np.float64]
Features = dict[str, Vector]

PSEUDO_LAYERS = (NETWORK, POOLED)
WEIGHT_NORM = "controls frobenius_norm"
CONTROLS = r"^(controls|log|clustering|random_matrices) | gradient_norm$"
"""Names of features that are not topology."""
NOISE = ".noise"
"""Ending of a statistic that is the standard deviation of another over draws or batches."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One run, on its measured checkpoints.

    Attributes
    ----------
    steps : ndarray, shape (n,)
    features : dict of ndarray, shape (n,)
        By name, ``probe statistic``; of the whole network or the pooled cloud. NaN where not measured. The log adds
        ``log grad_norm_mean`` and ``log grad_norm_std``, over the steps since the last checkpoint (METHODS 5).
    targets : dict of ndarray, shape (n,)
        The first is the one to trust: ``validation_loss`` if it is known at nearly all checkpoints, else
        ``smoothed_loss`` (the mean training loss of the last 100 steps, or of the steps since the last checkpoint if
        those are fewer). ``batch_loss`` is the loss of one batch, as published; it comes first under the published
        protocol.
    clocks : dict of ndarray, shape (n,)
        ``step``, ``cumulative_learning_rate``, ``weight_norm``; those that are known.
    groups : dict of dict of ndarray, shape (n,)
        Features of groups of layers (`toposcope.analysis.groups.layer_groups`), by group.
    layers : dict of dict of ndarray, shape (n,)
        Features of each layer.
    roles : dict of str
        Of the layers, in the order of the checkpoint.
    twins : dict of dict of ndarray, shape (n,)
        Scale-free twins of features (METHODS 6, item 7), by group; ``network`` for those of the whole network.
    noise : dict of ndarray, shape (n,)
        Standard deviation of features over draws or batches, of the network or the pooled cloud.
    """

    run: str
    steps: NDArray[np.int64]
    features: Features
    targets: Features
    clocks: Features
    groups: dict[str, Features] = field(default_factory=dict)
    layers: dict[str, Features] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    twins: dict[str, Features] = field(default_factory=dict)
    noise: Features = field(default_factory=dict)


def trajectories(
    features: pl.DataFrame, labels: pl.DataFrame, log: pl.DataFrame, *, batch_first: bool = False
) -> list[Trajectory]:
    """Arrange a study's frames by run.

    Parameters
    ----------
    features, labels, log : polars.DataFrame
        `Study.frame`, `Study.labels` and `Study.log`.
    batch_first : bool
        Whether the loss of one batch is the first target.
    """
    declared = {label: probe_of(name, options) for name, options, label in labels.iter_rows()}
    names = feature_names(declared)
    labels = labels.with_columns(pl.col("label").replace_strict(names, return_dtype=pl.String))
    rows = features.join(labels, on=["probe", "options"], maintain_order="left")
    probes = {names[label]: probe for label, probe in declared.items()}
    # A run whose every checkpoint failed has nothing to compare.
    told = rows.filter(pl.col("layer").is_in(PSEUDO_LAYERS)).get_column("run").unique(maintain_order=True)
    return [_Arranged(rows.filter(run=run), probes).trajectory(run, log.filter(run=run), batch_first) for run in told]


class _Arranged:
    """The rows of one run as vectors over its checkpoints: label -> layer -> statistic."""

    def __init__(self, rows: pl.DataFrame, probes: Mapping[str, Probe | None]) -> None:
        self.probes = {label: probe for label, probe in probes.items() if probe is not None}
        self.steps = rows.get_column("step").unique().sort().to_numpy()
        place = {step: i for i, step in enumerate(self.steps.tolist())}
        table = rows.select(
            *("label", "layer", "statistic", "value", "role"), column=pl.col("step").replace_strict(place)
        )
        grouped = table.group_by("label", "layer", "role", "statistic", maintain_order=True).agg("column", "value")
        self.found: dict[str, dict[str, Features]] = {}
        self.roles: dict[str, str] = {}
        for label, layer, role, statistic, columns, values in grouped.iter_rows():
            vector = np.full(len(self.steps), np.nan)
            vector[columns] = values
            self.found.setdefault(label, {}).setdefault(layer, {})[statistic] = vector
            if layer not in PSEUDO_LAYERS:
                self.roles[layer] = role
        self.groups = layer_groups(self.roles)

    def trajectory(self, run: str, log: pl.DataFrame, batch_first: bool) -> Trajectory:
        """Return the run."""
        everything = self._named(PSEUDO_LAYERS)
        features = {name: values for name, values in everything.items() if not name.endswith(NOISE)}
        clocks = {"step": self.steps.astype(np.float64)}
        targets: Features = {}
        if len(log):
            logged = Logged(log)
            targets = logged.targets(self.steps, batch_first=batch_first)
            features |= logged.gradient_norms(self.steps)
            clocks |= logged.clocks(self.steps)
        if WEIGHT_NORM in features:
            clocks["weight_norm"] = features[WEIGHT_NORM]
        return Trajectory(
            run=run,
            steps=self.steps,
            features=features,
            targets=targets,
            clocks=clocks,
            groups={group: self._of_group(layers) for group, layers in self.groups.items()},
            layers={layer: self._named([layer]) for layer in self.roles},
            roles=self.roles,
            twins=self._twins(clocks.get("weight_norm")),
            noise={name.removesuffix(NOISE): v for name, v in everything.items() if name.endswith(NOISE)},
        )

    def _named(self, layers: list[str] | tuple[str, ...]) -> Features:
        return {
            f"{label} {statistic}": values
            for label, by_layer in self.found.items()
            for layer in layers
            for statistic, values in by_layer.get(layer, {}).items()
        }

    def _of_group(self, layers: list[str]) -> Features:
        found: Features = {}
        for label, probe in self.probes.items():
            by_layer = self.found.get(label, {})
            if all(layer in by_layer for layer in layers):
                told = combined(probe, [by_layer[layer] for layer in layers])
                found |= {f"{label} {name}": values for name, values in told.items() if not name.endswith(NOISE)}
        return found

    def _twins(self, weight_norm: Vector | None) -> dict[str, Features]:
        """Divide layer by layer, then combine as the features were; a pooled cloud has the norm of the network."""
        twins: dict[str, Features] = {group: {} for group in (*self.groups, NETWORK)}
        for label, probe in self.probes.items():
            by_layer = self.found.get(label, {})
            free = {layer: scale_free(probe, by_layer[layer], norm) for layer, norm in self._norms(label).items()}
            for group, layers in (*self.groups.items(), (NETWORK, list(self.roles))):
                if layers and all(free.get(layer) for layer in layers):
                    told = combined(probe, [free[layer] for layer in layers])
                    twins[group] |= {f"{label} {name}": v for name, v in told.items() if probe.degree(name)}
            if POOLED in by_layer and weight_norm is not None:
                told = scale_free(probe, by_layer[POOLED], weight_norm)
                twins[NETWORK] |= {f"{label} {name}": v for name, v in told.items() if probe.degree(name)}
        return twins

    def _norms(self, label: str) -> Features:
        """Return the norm of what a probe measured, by layer: of the gradient where it tells it, or of the weights."""
        by_layer = self.found.get(label, {})
        weights = self.found.get(WEIGHT_NORM.split()[0], {})
        own = {layer: by_layer[layer]["gradient_norm"] for layer in by_layer if "gradient_norm" in by_layer[layer]}
        norms = own or {layer: found["frobenius_norm"] for layer, found in weights.items() if "frobenius_norm" in found}
        return {layer: norm for layer, norm in norms.items() if layer in by_layer and layer not in PSEUDO_LAYERS}
