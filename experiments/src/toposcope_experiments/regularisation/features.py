"""What is measured of a network: neural persistence, the same of permuted weights, norms and the spectrum."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.extend import TOPOLOGY
from toposcope.homology import NeuralPersistence, neural_persistence
from toposcope.probes import Kind

NP, NP_ONE_SCALE, BEYOND = "NP", "NP, one scale", "NP beyond the placebo"
PLACEBO, PLACEBO_ONE_SCALE = "NP of the placebo", "NP of the placebo, one scale"
NORM, LARGEST, SPECTRAL_NORM, STABLE_RANK = "weight norm", "largest weight", "spectral norm", "stable rank"
KINDS: dict[str, Kind] = {
    **dict.fromkeys((NP, NP_ONE_SCALE, BEYOND), TOPOLOGY),
    **dict.fromkeys((PLACEBO, PLACEBO_ONE_SCALE), "control"),
    **dict.fromkeys((NORM, LARGEST), "norm"),
    **dict.fromkeys((SPECTRAL_NORM, STABLE_RANK), "spectrum"),
}
FEATURES = tuple(KINDS)
TESTED = tuple(feature for feature, kind in KINDS.items() if kind == TOPOLOGY)
PLAIN_CONTROLS = (NORM, LARGEST, SPECTRAL_NORM, STABLE_RANK)


@dataclass(frozen=True)
class ControlsOf:
    """What could explain a topological feature."""

    same_sign: tuple[str, ...]  # features of the same quantity; they explain a difference in the same direction
    # other quantities, whose difference in either direction may explain it
    either_sign: tuple[str, ...] = PLAIN_CONTROLS


CONTROLS_OF = {NP: ControlsOf((PLACEBO,)), NP_ONE_SCALE: ControlsOf((PLACEBO_ONE_SCALE,)), BEYOND: ControlsOf(())}


def network_features(layers: Sequence[NDArray[np.floating]], seed: int) -> dict[str, float]:
    """Measure the weight matrices of a network."""
    weights = [np.asarray(layer, dtype=np.float64) for layer in layers]
    if not all(np.isfinite(layer).all() for layer in weights):
        return dict.fromkeys(FEATURES, np.nan)
    rng = np.random.default_rng(seed)
    permuted = [rng.permutation(layer.ravel()).reshape(layer.shape) for layer in weights]
    np_own, np_one = _persistence(weights)
    placebo_own, placebo_one = _persistence(permuted)
    sigma = [np.linalg.svd(layer, compute_uv=False) for layer in weights]
    values = {
        NP: np_own,
        NP_ONE_SCALE: np_one,
        BEYOND: np_own - placebo_own,
        PLACEBO: placebo_own,
        PLACEBO_ONE_SCALE: placebo_one,
        NORM: np.mean([np.linalg.norm(layer) for layer in weights]),
        LARGEST: np.mean([np.abs(layer).max() for layer in weights]),
        SPECTRAL_NORM: np.mean([s[0] for s in sigma]),
        STABLE_RANK: np.mean([(s**2).sum() / s[0] ** 2 if s[0] > 0 else np.nan for s in sigma]),
    }
    return {name: float(values[name]) for name in FEATURES}


def _persistence(layers: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Return mean normalised neural persistence, of layers divided by their own largest weight and by that of all.

    The maximum spanning tree does not depend on the scale, so that one tree a layer gives both.
    """
    found = [neural_persistence(layer) for layer in layers]
    scale = max(each.scale for each in found)
    own = [each.normalized for each in found]
    one = [_norm(each, scale) for each in found]
    return float(np.mean(own)), float(np.mean(one))


def _norm(found: NeuralPersistence, scale: float) -> float:
    """Return normalised neural persistence at a larger scale; 0 of an all-zero matrix."""
    if found.degenerate:
        return 0.0
    return float(np.sqrt(np.mean((1 - found.deaths * (found.scale / scale)) ** 2)))
