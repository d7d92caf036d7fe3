"""Simulated training of a small GPT-NeoX, and what can be done to a series of its checkpoints.

Weights begin as a model's do and then move as under AdamW: a drift, noise and decay, each in step with a learning rate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.integrity import CheckpointSummary, Finding, diagnose, summarise

Weights = dict[str, Tensor]
Schedule = Callable[[NDArray[np.float64]], NDArray[np.floating]]
"""Learning rate by the share of training that is done, in units of its peak."""

PYTHIA = [0, *(2**k for k in range(10)), *range(1000, 144_000, 1000)]
LAST = PYTHIA[-1]


def shapes(layers: int = 2, width: int = 32, vocabulary: int = 96) -> dict[str, tuple[int, ...]]:
    """Names and shapes of GPT-NeoX."""
    found: dict[str, tuple[int, ...]] = {"gpt_neox.embed_in.weight": (vocabulary, width)}
    for k in range(layers):
        at = f"gpt_neox.layers.{k}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found |= {f"{at}.{norm}.weight": (width,), f"{at}.{norm}.bias": (width,)}
        for name, rows, columns in (
            ("attention.query_key_value", 3 * width, width),
            ("attention.dense", width, width),
            ("mlp.dense_h_to_4h", 4 * width, width),
            ("mlp.dense_4h_to_h", width, 4 * width),
        ):
            found |= {f"{at}.{name}.weight": (rows, columns), f"{at}.{name}.bias": (rows,)}
    found |= {"gpt_neox.final_layer_norm.weight": (width,), "gpt_neox.final_layer_norm.bias": (width,)}
    return found | {"embed_out.weight": (vocabulary, width)}


def warm_up(share: float = 0.01) -> Schedule:
    return lambda t: np.minimum(1, t / share)


def _cosine(t: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(0.5 * (1 + np.cos(np.pi * t)))


SCHEDULES: dict[str, Schedule] = {
    "warm-up, cosine to a tenth": lambda t: warm_up()(t) * (0.1 + 0.9 * _cosine(t)),
    "cosine to zero": lambda t: warm_up()(t) * _cosine(t),
    "linear to zero": lambda t: warm_up(0.02)(t) * (1 - t),
    "constant": lambda t: np.ones_like(t),
    "warm-up, stable, decay": lambda t: warm_up()(t) * np.clip((1 - t) / 0.1, 0, 1),
    "four restarts": lambda t: warm_up()(t) * (0.02 + 0.98 * _cosine(4 * t % 1)),
    "restarts ten times higher": lambda t: 0.1 + 0.9 * (((t * 5) % 1) < 0.02),
    "restart of a finished run": lambda t: np.where(t < 0.6, _cosine(t / 0.6), _cosine((t - 0.6) / 0.4)),
    "late warm restart with warm-up": lambda t: np.where(t < 0.8, _cosine(t / 0.8), np.minimum(1, (t - 0.8) / 0.05)),
}


@dataclass(frozen=True)
class Training:
    """What a simulated run does.

    Attributes
    ----------
    seed : int
    schedule : Schedule
    steps : sequence of int
    dtype : torch.dtype
    drift, noise, decay : float
        How far these take the weights over the whole run, in units of their first norm (decay: of their own).
    returning : float
        How strongly weights are pulled back to where the drift has them.
    initial : callable, optional
        From generator and shape to the first matrix, in place of a normal one.
    zero_projections, idle_first_step : bool
        Output projections that begin at zero; a learning rate of 0 in the first update.
    layers : int
    """

    seed: int = 0
    schedule: Schedule = SCHEDULES["warm-up, cosine to a tenth"]
    steps: Sequence[int] = tuple(PYTHIA)
    dtype: torch.dtype = torch.float32
    drift: float = 1.5
    noise: float = 1.0
    decay: float = 0.5
    returning: float = 0.0
    initial: Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]] | None = None
    zero_projections: bool = False
    idle_first_step: bool = False
    layers: int = 2

    def weights(self) -> dict[int, Weights]:
        """Simulate; by step."""
        rng = np.random.default_rng(self.seed)
        done = np.arange(1, self.steps[-1] + 1) / self.steps[-1]
        rates = self.schedule(done)
        if self.idle_first_step:
            rates[0] = 0
        sums, squares = (np.concatenate([[0], np.cumsum(r)]) for r in (rates, rates**2))
        out: dict[int, Weights] = {step: {} for step in self.steps}
        for name, shape in shapes(self.layers).items():
            first, scale = self._first(name, shape, rng)
            goal = self._goal(shape, scale, rng)
            spread = scale * np.exp(0.5 * rng.standard_normal((shape[0], *[1] * (len(shape) - 1))))
            weight, wander = first, np.zeros(shape)
            out[self.steps[0]][name] = torch.from_numpy(first).to(self.dtype)
            for before, step in zip(self.steps, self.steps[1:], strict=False):
                share = (sums[step] - sums[before]) / sums[-1]
                random = np.sqrt((squares[step] - squares[before]) / squares[-1])
                kick = self.noise * random * spread * rng.standard_normal(shape)
                wander = wander * np.exp(-self.returning * share) + kick
                come = sums[step] / sums[-1]
                weight = first * np.exp(-self.decay * come) + self.drift * goal * np.sqrt(come) * come + wander
                out[step][name] = torch.from_numpy(weight).to(self.dtype)
        return out

    def _first(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[NDArray[np.float64], float]:
        if name.endswith("norm.weight"):
            return np.ones(shape), 0.1
        if name.endswith("bias"):
            return np.zeros(shape), 0.02
        scale = 0.02 if "4h_to_h" not in name and "dense.weight" not in name else 0.01
        first = self.initial(rng, shape) if self.initial else scale * rng.standard_normal(shape)
        if self.zero_projections and ("4h_to_h" in name or "dense.weight" in name):
            return np.zeros(shape), scale
        return first, float(first.std())

    def _goal(self, shape: tuple[int, ...], scale: float, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return what training leads to: of low rank, with heavy tails."""
        if len(shape) == 1:
            return scale * rng.standard_normal(shape)
        low = rng.standard_t(4, (shape[0], 4)) @ rng.standard_normal((4, shape[1])) / 2
        return scale * low


def checkpoint(step: int, weights: Mapping[str, Tensor]) -> Checkpoint:
    """A checkpoint that lies in memory."""
    made = Checkpoint(Path("memory") / f"step{step}", step)
    made.__dict__["files"] = {}
    made.__dict__["_listing"] = [in_memory(name, tensor) for name, tensor in weights.items()]
    return made


def seen(weights: Mapping[int, Mapping[str, Tensor]]) -> list[CheckpointSummary]:
    """What a deep look at a series records."""
    return [summarise(checkpoint(step, tensors), deep=True) for step, tensors in weights.items()]


def faults(evidence: Sequence[CheckpointSummary]) -> list[Finding]:
    return [finding for finding in diagnose(evidence) if finding.severity == "fault"]


def faults_of(weights: Mapping[int, Mapping[str, Tensor]]) -> list[tuple[str, tuple[int, ...], str]]:
    """Check, steps and layer of the faults of a series."""
    return [(finding.check, finding.steps, finding.layer) for finding in faults(seen(weights))]


def checks(findings: Sequence[Finding]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(finding.check, finding.severity, finding.steps) for finding in findings]


@dataclass(frozen=True)
class Harm:
    """What was done to a series: the checks that may say so, and of which steps."""

    checks: tuple[str, ...]
    steps: tuple[int, ...]
    layers: tuple[str, ...] = ()


Series = dict[int, Weights]
Sabotage = Callable[[Series, Series, np.random.Generator], Harm]
"""Does something to a series, given that of another run, at random places; says what should be found."""


def _some_steps(series: Series, rng: np.random.Generator, count: int = 1) -> list[int]:
    """Steps within the series, its first and last left alone."""
    return sorted(int(s) for s in rng.choice(list(series)[1:-1], count, replace=False))


def _matrices(series: Series) -> list[str]:
    return [name for name, tensor in next(iter(series.values())).items() if tensor.dim() == 2]


def other_run(series: Series, other: Series, rng: np.random.Generator) -> Harm:
    (step,) = _some_steps(series, rng)
    series[step] = other[step]
    return Harm(("off path",), (step,))


def last_of_another_run(series: Series, other: Series, rng: np.random.Generator) -> Harm:
    last = max(series)
    series[last] = other[last]
    return Harm(("off path",), (last,))


def scaled(series: Series, other: Series, rng: np.random.Generator) -> Harm:
    (step,) = _some_steps(series, rng)
    factor = float(rng.choice([0.1, 0.5, 1.5, 2.0, 10.0]))
    series[step] = {name: (tensor * factor).to(tensor.dtype) for name, tensor in series[step].items()}
    return Harm(("off path", "scaled"), (step,))


def exchanged_far(series: Series, other: Series, rng: np.random.Generator) -> Harm:
    steps = list(series)
    first = int(rng.integers(10, len(steps) // 2))
    a, b = steps[first], steps[first + int(rng.integers(20, len(steps) // 2))]
    series[a], series[b] = series[b], series[a]
    return Harm(("off path", "order"), (a, b))


def exchanged_neighbours(series: Series, other: Series, rng: np.random.Generator) -> Harm:
    steps = list(series)
    k = int(rng.integers(14, len(steps) - 20))
    a, b = steps[k], steps[k + 1]
    series[a], series[b] = series[b], series[a]
    return Harm(("off path", "order"), (a, b))


def exchanged_first_shards(series: Series, other: Series, rng: np.random.Generator) -> Harm:
    steps = list(series)
    k = int(rng.integers(14, len(steps) - 40))
    a, b = steps[k], steps[k + int(rng.integers(1, 20))]
    shard = list(series[a])[: len(series[a]) // 2]
    of_a, of_b = ({name: series[step][name] for name in shard} for step in (a, b))
    series[a], series[b] = series[a] | of_b, series[b] | of_a
    return Harm(("off path", "order"), (a, b), tuple(shard))


def broken(series: Series, other: Series, rng: np.random.Generator) -> Harm:
    steps = list(series)
    k = int(rng.integers(3, len(steps) - 3))
    for step in steps[k:]:
        series[step] = other[step]
    return Harm(("break",), (steps[k],))


def scaled_from_some_step_on(series: Series, other: Series, rng: np.random.Generator) -> Harm:
    steps = list(series)
    k = int(rng.integers(3, len(steps) - 3))
    factor = float(rng.choice([0.3, 2.0, 5.0]))
    for step in steps[k:]:
        series[step] = {name: (tensor * factor).to(tensor.dtype) for name, tensor in series[step].items()}
    return Harm(("break",), (steps[k],))


def final_weights_early(series: Series, other: Series, rng: np.random.Generator) -> Harm:
    count = int(rng.integers(1, 87))
    early = sorted(int(s) for s in rng.choice(list(series)[:-2], count, replace=False))
    for step in early:
        series[step] = series[max(series)]
    return Harm(("final weights",), tuple(early))


def nearly_final_weights_early(series: Series, other: Series, rng: np.random.Generator) -> Harm:
    early = _some_steps(dict(list(series.items())[:-20]), rng, 5)
    for step in early:
        series[step] = {n: (t.to(torch.float32) * 1.0001).to(t.dtype) for n, t in series[max(series)].items()}
    return Harm(("duplicate", "final weights"), tuple(early))


def repeated(series: Series, other: Series, rng: np.random.Generator) -> Harm:
    (step,) = _some_steps(dict(list(series.items())[2:-1]), rng)
    following = min(s for s in series if s > step)
    series[following] = series[step]
    return Harm(("duplicate",), (step, following))


def one_that_stood_still(series: Series, other: Series, rng: np.random.Generator) -> Harm:
    (step,) = _some_steps(dict(list(series.items())[12:-1]), rng)
    following = min(s for s in series if s > step)
    name = str(rng.choice(_matrices(series)))
    series[following] = series[following] | {name: series[step][name]}
    return Harm(("still",), (step, following), (name,))


def of_another_dtype(series: Series, other: Series, rng: np.random.Generator) -> Harm:
    (step,) = _some_steps(series, rng)
    series[step] = {name: tensor.to(torch.float64) for name, tensor in series[step].items()}
    return Harm(("dtype",), (step,))


def _of_one_tensor(
    name: str,
    checks: tuple[str, ...],
    change: Callable[[Tensor, np.random.Generator], Tensor | None],
    choose: Callable[[Series], list[str]] = _matrices,
    after: int = 0,
) -> Sabotage:
    """What is done to one tensor of one step; None takes it away."""

    def sabotage(series: Series, other: Series, rng: np.random.Generator) -> Harm:
        (step,) = _some_steps(dict(list(series.items())[after:]), rng)
        tensor = str(rng.choice(choose(series)))
        changed = change(series[step][tensor], rng)
        rest = {n: t for n, t in series[step].items() if n != tensor}
        series[step] = rest if changed is None else series[step] | {tensor: changed}
        return Harm(checks, (step,), (tensor,))

    sabotage.__name__ = name
    return sabotage


def _with_a_value_not_finite(tensor: Tensor, rng: np.random.Generator) -> Tensor:
    bad = tensor.clone()
    bad.view(-1)[int(rng.integers(bad.numel()))] = float(rng.choice([np.nan, np.inf, -np.inf]))
    return bad


def _every(series: Series) -> list[str]:
    return list(next(iter(series.values())))


OF_ONE_TENSOR = [
    _of_one_tensor("scaled_matrix", ("off path", "scaled"), lambda tensor, _: (tensor * 3).to(tensor.dtype)),
    _of_one_tensor("not_finite", ("non-finite",), _with_a_value_not_finite, _every),
    _of_one_tensor("dead", ("dead layer",), lambda tensor, _: torch.zeros_like(tensor), after=3),
    _of_one_tensor("of_another_shape", ("shape",), lambda tensor, _: tensor[:-1]),
    _of_one_tensor("without_a_tensor", ("tensors",), lambda *_: None, _every),
]


def trained_step_0(series: Series, other: Series, rng: np.random.Generator) -> Harm:
    series[0] = other[max(series)]
    return Harm(("initialisation", "off path"), (0,))


def missing_steps(series: Series, other: Series, rng: np.random.Generator) -> Harm:
    missing = _some_steps(dict(list(series.items())[2:]), rng, int(rng.integers(1, 6)))
    for step in missing:
        del series[step]
    return Harm(("missing steps",), tuple(missing))


SABOTAGES: list[Sabotage] = [
    *(other_run, last_of_another_run, scaled, exchanged_far, exchanged_neighbours, exchanged_first_shards, broken),
    *(scaled_from_some_step_on, final_weights_early, nearly_final_weights_early, repeated, one_that_stood_still),
    *(of_another_dtype, trained_step_0, missing_steps, *OF_ONE_TENSOR),
]
