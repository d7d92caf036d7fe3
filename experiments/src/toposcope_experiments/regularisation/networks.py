"""Multi-layer perceptrons; the parameters of many runs have a leading run dimension, and all runs compute at once."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from toposcope_experiments.regularisation.design import N_CLASSES, N_PIXELS, Condition, DigitRun

Parameters = dict[str, Tensor]
MOMENTUM, EPSILON = 0.1, 1e-5  # of batch normalisation: torch's defaults


def initial_weights(runs: Sequence[DigitRun], width: int) -> Parameters:
    """Draw the weights of runs of one condition; each run's depend on its own name alone.

    Entries are uniform within sqrt(6 / (inputs + outputs)) of 0 (Glorot & Bengio 2010); biases and shifts are 0, scales
    1.
    """
    condition = runs[0].condition
    widths = [N_PIXELS, *[width] * condition.n_layers, N_CLASSES]
    weights: Parameters = {}
    for i, (n_inputs, n_outputs) in enumerate(pairwise(widths)):
        limit = math.sqrt(6 / (n_inputs + n_outputs))
        drawn = [torch.rand((n_inputs, n_outputs), generator=run.generator("weight", i)) for run in runs]
        weights[f"weight{i}"] = (2 * torch.stack(drawn) - 1) * limit
        weights[f"bias{i}"] = torch.zeros(len(runs), 1, n_outputs)
        if i < condition.n_layers and (condition.batch_norm or condition.learned_scale):
            weights[f"scale{i}"] = torch.ones(len(runs), 1, n_outputs)
            weights[f"shift{i}"] = torch.zeros(len(runs), 1, n_outputs)
    return weights


def initial_statistics(runs: Sequence[DigitRun], width: int) -> Parameters:
    """Return the running means and variances of batch normalisation; empty without it."""
    condition, shape = runs[0].condition, (len(runs), 1, width)
    if not condition.batch_norm:
        return {}
    places = range(condition.n_layers)
    return {f"mean{i}": torch.zeros(shape) for i in places} | {f"variance{i}": torch.ones(shape) for i in places}


def dropout_masks(runs: Sequence[DigitRun], step: int, batch: int, width: int) -> Tensor | None:
    """Return the factors of hidden units at one update, shape (runs, layers, batch, width); None without dropout."""
    condition = runs[0].condition
    if not condition.dropout:
        return None
    shape = condition.n_layers, batch, width
    drawn = torch.stack([torch.rand(shape, generator=run.generator("dropout", step)) for run in runs])
    return (drawn >= condition.dropout) / (1 - condition.dropout)


def logits(
    condition: Condition,
    weights: Parameters,
    statistics: Parameters,
    images: Tensor,
    masks: Tensor | None = None,
    *,
    training: bool = False,
) -> Tensor:
    """Return the logits of the digits of each run, shape (runs, n, 10)."""
    x = images
    for i in range(condition.n_layers):
        x = torch.baddbmm(weights[f"bias{i}"], x, weights[f"weight{i}"])
        if condition.batch_norm:
            x = _normalised(x, statistics[f"mean{i}"], statistics[f"variance{i}"], training=training)
            x = x * weights[f"scale{i}"] + weights[f"shift{i}"]
        x = functional.relu(x)
        if condition.learned_scale:
            x = x * weights[f"scale{i}"] + weights[f"shift{i}"]
        if masks is not None:
            x = x * masks[:, i]
    last = condition.n_layers
    return torch.baddbmm(weights[f"bias{last}"], x, weights[f"weight{last}"])


def _normalised(x: Tensor, mean: Tensor, variance: Tensor, *, training: bool) -> Tensor:
    """Normalise each unit of each run over the batch, and update the running statistics in place."""
    if not training:
        return (x - mean) / (variance + EPSILON).sqrt()
    own_mean, own_variance = x.mean(dim=1, keepdim=True), x.var(dim=1, keepdim=True, unbiased=False)
    n = x.shape[1]
    mean.lerp_(own_mean.detach(), MOMENTUM)
    variance.lerp_(own_variance.detach() * (n / (n - 1)), MOMENTUM)
    return (x - own_mean) / (own_variance + EPSILON).sqrt()


def layer_matrices(condition: Condition, weights: Parameters) -> list[Tensor]:
    """Return the weight matrices of all layers, shape (runs, inputs, outputs) each; biases belong to none."""
    return [weights[f"weight{i}"].detach() for i in range(condition.n_layers + 1)]
