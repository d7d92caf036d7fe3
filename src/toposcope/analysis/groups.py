"""Groups of layers within a run: roles, attention and MLP, early and late blocks; and their features."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from toposcope.checkpoints.roles import block_of
from toposcope.errors import ToposcopeError
from toposcope.probes import Probe, make_probes
from toposcope.typing import Vector

Statistics = Mapping[str, Vector]


def layer_groups(roles: Mapping[str, str]) -> dict[str, list[str]]:
    """Return groups of layers, none empty: every role, ``attention``, ``mlp``, and halves of the blocks."""
    groups: dict[str, list[str]] = {}
    for layer, role in roles.items():
        groups.setdefault(role, []).append(layer)
    for name, prefix in (("attention", "attn."), ("mlp", "mlp.")):
        groups[name] = [layer for layer, role in roles.items() if role.startswith(prefix)]
    blocks = {layer: block for layer in roles if (block := block_of(layer)) is not None}
    order = sorted(set(blocks.values()))
    half = len(order) // 2
    for name, chosen in (("early", order[:half]), ("late", order[len(order) - half :])):
        groups[name] = [layer for layer, block in blocks.items() if block in chosen]
    return {name: layers for name, layers in groups.items() if layers}


def probe_of(name: str, options: str) -> Probe | None:
    """Return the probe of a row; None if this version has no such probe, as for published features."""
    try:
        return make_probes([{"name": name, **json.loads(options)}])[0]
    except ToposcopeError:
        return None


def feature_names(declared: Mapping[str, Probe | None]) -> dict[str, str]:
    """Return the name of each probe's features, by its label, without repetitions unless names would be equal."""
    short = {label: probe.unrepeated().label() if probe else label for label, probe in declared.items()}
    taken = Counter(short.values())
    return {label: name if taken[name] == 1 else label for label, name in short.items()}


def combined(probe: Probe, layers: Sequence[Statistics]) -> dict[str, Vector]:
    """Combine the statistics of layers as the probe does over the network, checkpoint by checkpoint."""
    shared = [name for name in layers[0] if all(name in layer for layer in layers)]
    try:
        statistics = probe.combine([{name: layer[name] for name in shared} for layer in layers]) if shared else {}
    except KeyError:  # the study holds fewer statistics than the probe combines; another run adds them
        return {}
    return {name: np.asarray(values, dtype=np.float64) for name, values in statistics.items()}


def scale_free(probe: Probe, statistics: Statistics, norm: Vector) -> dict[str, Vector]:
    """Divide each statistic by the norm to the power it grows with.

    Parameters
    ----------
    probe : Probe
    statistics : mapping of ndarray, shape (n,)
    norm : ndarray, shape (n,)
        Frobenius norm of the weights, or of the gradient, the statistics are of.
    """
    divisor = np.where(np.isfinite(norm) & (norm > 0), norm, np.nan)
    return {name: values / divisor ** probe.degree(name) for name, values in statistics.items()}
