"""What can be wrong with one series of checkpoints: for `benchmarks/doctor.py`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from doctor_trainings import Series, Weights

MIN_EXCESS = 3.0
"""How many times larger than every other value of its tensor an absurd value is; a smaller one is an ordinary value."""


@dataclass(frozen=True)
class Runs:
    """A training, another seed's, and one that continues the first with other data from 30 % of the steps on."""

    main: Series
    other: Series
    fork: Series


@dataclass(frozen=True)
class Damaged:
    """A damaged series, with the steps and the tensors that are wrong."""

    series: Series
    steps: tuple[int, ...]
    tensors: tuple[str, ...]


Damage = Callable[[Runs, np.random.Generator], Damaged | None]
"""Damages a series at random places; None where it cannot, such as a permutation of a single row."""


def _at(runs: Runs, steps: list[int], changed: Callable[[int], Weights]) -> Damaged:
    """Change tensors at some steps."""
    series = dict(runs.main)
    names: set[str] = set()
    for step in steps:
        new = changed(step)
        names.update(name for name, tensor in new.items() if not torch.equal(tensor, series[step][name]))
        series[step] = series[step] | {name: tensor.to(series[step][name].dtype) for name, tensor in new.items()}
    return Damaged(series, tuple(steps), tuple(sorted(names)))


def _middle(runs: Runs, rng: np.random.Generator) -> list[int]:
    """Return the steps from a random one on, between the second and the last but two."""
    steps = list(runs.main)
    return steps[int(rng.integers(2, len(steps) - 2)) :]


def _name(runs: Runs, rng: np.random.Generator, *, matrix: bool) -> str:
    weights = runs.main[max(runs.main)]
    moving = [n for n, t in weights.items() if not torch.equal(t, runs.main[0][n])]
    return str(rng.choice([n for n in moving if (weights[n].dim() > 1) == matrix and weights[n].numel() > 3]))


def absurd_value(size: float) -> Damage:
    """Set one value of any tensor of any checkpoint."""

    def damage(runs: Runs, rng: np.random.Generator) -> Damaged | None:
        step = int(rng.choice(list(runs.main)))
        name = str(rng.choice(list(runs.main[step])))
        tensor = runs.main[step][name].clone()
        if float(tensor.abs().max()) * MIN_EXCESS > size or size > torch.finfo(tensor.dtype).max:
            return None
        tensor.view(-1)[int(rng.integers(tensor.numel()))] = size * float(rng.choice([-1, 1]))
        return _at(runs, [step], lambda _: {name: tensor})

    return damage


def zero_norm(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Set the weight of a norm to zero at one step, but the first: one that is added to 1 begins so."""
    step = int(rng.choice(list(runs.main)[1:]))
    weights = runs.main[step]
    norms = [n for n, t in weights.items() if t.dim() == 1 and n.endswith("weight") and bool(t.any())]
    if not norms:
        return None
    name = str(rng.choice(norms))
    return _at(runs, [step], lambda _: {name: torch.zeros_like(weights[name])})


def zero_bias(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Set a bias that is not zero to zero at one step."""
    step = int(rng.choice(list(runs.main)))
    weights = runs.main[step]
    biases = [n for n, t in weights.items() if t.dim() == 1 and "bias" in n and bool(t.any())]
    if not biases or step == 0:
        return None
    name = str(rng.choice(biases))
    return _at(runs, [step], lambda _: {name: torch.zeros_like(weights[name])})


def zero_vectors(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Set all biases and norms to zero at one step."""
    step = int(rng.choice(list(runs.main)))
    vectors = {n: torch.zeros_like(t) for n, t in runs.main[step].items() if t.dim() == 1 and bool(t.any())}
    return _at(runs, [step], lambda _: vectors) if vectors and step > 0 else None  # vectors may begin at zero


def zero_norm_for_good(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Set the weight of a norm to zero from a step on."""
    norms = [n for n, t in runs.main[0].items() if t.dim() == 1 and n.endswith("weight")]
    if not norms:
        return None
    name = str(rng.choice(norms))
    return _at(runs, _middle(runs, rng), lambda step: {name: torch.zeros_like(runs.main[step][name])})


def _change(kind: str, tensor: torch.Tensor, rng: np.random.Generator) -> torch.Tensor | None:
    if kind == "sign":
        return -tensor
    if kind == "rows":
        return tensor[torch.from_numpy(np.random.default_rng(1).permutation(len(tensor)))] if len(tensor) > 3 else None
    if kind == "columns":
        order = torch.from_numpy(np.random.default_rng(1).permutation(tensor.shape[1]))
        return tensor[:, order] if tensor.shape[1] > 3 else None
    if kind == "transposed":
        return tensor.transpose(0, 1).contiguous() if tensor.shape[0] == tensor.shape[1] else None
    raise ValueError(kind)


def changed(kind: str, *, for_good: bool) -> Damage:
    """Change one matrix at one step, or from one on."""

    def damage(runs: Runs, rng: np.random.Generator) -> Damaged | None:
        steps = _middle(runs, rng)[: None if for_good else 1]
        for _ in range(20):
            name = _name(runs, rng, matrix=True)
            if kind in ("fresh", "other"):
                source = runs.other[0] if kind == "fresh" else None
                kick = float((runs.main[steps[0]][name].float() - runs.other[steps[0]][name].float()).abs().max())
                if kick > 0 and (source is None or bool(source[name].any())):
                    # Fresh values are trained from there on: they drift as the right ones do.
                    def fresh(step: int, name: str = name) -> Weights:
                        if kind == "other":
                            return {name: runs.other[step][name]}
                        drift = runs.main[step][name].float() - runs.main[steps[0]][name].float()
                        return {name: runs.other[0][name].float() + drift}

                    return _at(runs, steps, fresh)
                continue
            if _change(kind, runs.main[steps[0]][name], rng) is not None:

                def other(step: int, name: str = name) -> Weights:
                    new = _change(kind, runs.main[step][name], rng)
                    assert new is not None
                    return {name: new}

                return _at(runs, steps, other)
        return None

    return damage


def stale(*, matrix: bool, for_good: bool) -> Damage:
    """Keep a tensor at the value of an earlier checkpoint, not the one before, at one step or from one on."""

    def damage(runs: Runs, rng: np.random.Generator) -> Damaged | None:
        steps = list(runs.main)
        k = int(rng.integers(3, len(steps) - 2))
        old = steps[int(rng.integers(1, k - 1))]
        name = _name(runs, rng, matrix=matrix)
        if torch.equal(runs.main[old][name], runs.main[steps[k]][name]):
            return None
        return _at(runs, steps[k:] if for_good else [steps[k]], lambda _: {name: runs.main[old][name]})

    return damage


def rounded_beginning(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Round the values of the first checkpoint to float16 or bfloat16."""
    if runs.main[0][min(runs.main[0])].dtype != torch.float32:
        return None
    narrow = torch.float16 if rng.integers(2) else torch.bfloat16
    return _at(runs, [0], lambda step: {n: t.to(narrow).float() for n, t in runs.main[step].items()})


def scaled(factor: float, *, for_good: bool) -> Damage:
    """Multiply one matrix, at one step or from one on."""

    def damage(runs: Runs, rng: np.random.Generator) -> Damaged | None:
        steps, name = _middle(runs, rng), _name(runs, rng, matrix=True)
        if runs.main[0][name].dtype != torch.float32:
            return None
        return _at(runs, steps if for_good else steps[:1], lambda step: {name: runs.main[step][name] * factor})

    return damage


def branch(*, other_seed: bool, for_good: bool) -> Damage:
    """Continue with another training, or hold one checkpoint of it."""

    def damage(runs: Runs, rng: np.random.Generator) -> Damaged | None:
        steps = list(runs.main)
        late = [s for s in steps if s > 0.5 * steps[-1]][:-2]
        if not late:
            return None
        begin = int(rng.choice(late))
        source = runs.other if other_seed else runs.fork
        wrong = [s for s in steps if s >= begin] if for_good else [begin]
        return Damaged({s: source[s] if s in wrong else w for s, w in runs.main.items()}, tuple(wrong), ())

    return damage


def _matrices(weights: Weights) -> Weights:
    return {name: tensor for name, tensor in weights.items() if tensor.dim() > 1 and tensor.is_floating_point()}


def _to_bytes_and_back(tensor: torch.Tensor) -> torch.Tensor:
    scale = tensor.float().abs().amax(dim=tuple(range(1, tensor.dim())), keepdim=True).clamp_min(1e-12) / 127
    return (tensor.float() / scale).round() * scale


def round_trip(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Round all matrices to int8 by rows and back, from a step on."""
    return _at(
        runs,
        _middle(runs, rng),
        lambda step: {n: _to_bytes_and_back(t) for n, t in _matrices(runs.main[step]).items()},
    )


def merged(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Add a product of rank 2, a tenth as large as the matrix, to all matrices from a step on: an adapter merged."""
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 31)))
    added = {}
    for name, tensor in _matrices(runs.main[max(runs.main)]).items():
        flat = tensor.float().flatten(1)
        product = torch.randn(len(flat), 2, generator=generator) @ torch.randn(2, flat.shape[1], generator=generator)
        added[name] = (0.1 * flat.norm() / product.norm() * product).reshape(tensor.shape)
    return _at(runs, _middle(runs, rng), lambda step: {n: runs.main[step][n].float() + a for n, a in added.items()})


def drifting(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Let the last matrix drift from its values by up to a tenth of its norm, a little more at each step."""
    name, steps = list(_matrices(runs.main[0]))[-1], list(runs.main)
    away = torch.randn(runs.main[0][name].shape, generator=torch.Generator().manual_seed(int(rng.integers(1 << 31))))
    away = 0.1 * runs.main[steps[-1]][name].float().norm() / away.norm() * away
    shares = {step: k / (len(steps) - 1) for k, step in enumerate(steps)}
    return _at(runs, steps[1:], lambda step: {name: runs.main[step][name].float() + shares[step] * away})


def interpolated(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Put the mean of its neighbours in the place of one checkpoint."""
    steps = list(runs.main)
    k = int(rng.integers(2, len(steps) - 2))
    before, after = runs.main[steps[k - 1]], runs.main[steps[k + 1]]
    mean = {n: (t.float() + after[n].float()) / 2 for n, t in before.items() if t.is_floating_point()}
    return _at(runs, [steps[k]], lambda _: mean)


def off_by_one(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Shift the rows of the last matrix by one in every checkpoint: a vocabulary off by one."""
    name = list(_matrices(runs.main[0]))[-1]
    return _at(runs, list(runs.main), lambda step: {name: runs.main[step][name].roll(1, 0)})


def _of_step(name: str, new: dict[int, torch.Tensor], step: int) -> Weights:
    return {name: new[step]}


def _one(change: Callable[[torch.Tensor], torch.Tensor | None], *, for_good: bool = False) -> Damage:
    """Change one matrix, where it can be, at one step, or from one on."""

    def damage(runs: Runs, rng: np.random.Generator) -> Damaged | None:
        steps = _middle(runs, rng)[: None if for_good else 1]
        for _ in range(20):
            name = _name(runs, rng, matrix=True)
            made = {step: change(runs.main[step][name]) for step in steps}
            new = {step: tensor for step, tensor in made.items() if tensor is not None}
            if len(new) == len(steps):
                return _at(runs, steps, partial(_of_step, name, new))
        return None

    return damage


def _whole(change: Callable[[torch.Tensor], torch.Tensor], *, for_good: bool = False) -> Damage:
    """Change all tensors, at one step, or from one on."""
    return lambda runs, rng: _at(
        runs,
        _middle(runs, rng)[: None if for_good else 1],
        lambda step: {name: change(tensor) for name, tensor in runs.main[step].items()},
    )


def _blocks_exchanged(parts: int) -> Callable[[torch.Tensor], torch.Tensor | None]:
    """Exchange the first two of some equal blocks of rows, as heads, or query and key, lie in one matrix."""

    def change(tensor: torch.Tensor) -> torch.Tensor | None:
        if len(tensor) % parts or len(tensor) < 2 * parts:
            return None
        first, second, *rest = tensor.chunk(parts)
        return torch.cat([second, first, *rest])

    return change


def _layers(runs: Runs, rng: np.random.Generator) -> tuple[str, str] | None:
    """Return two matrices of one shape that have moved."""
    weights = runs.main[max(runs.main)]
    names = [n for n, t in _matrices(weights).items() if not torch.equal(t, runs.main[0][n])]
    pairs = [
        (a, b)
        for k, a in enumerate(names)
        for b in names[k + 1 :]
        if weights[a].shape == weights[b].shape and not torch.equal(weights[a], weights[b])
    ]
    return pairs[int(rng.integers(len(pairs)))] if pairs else None


def layers(*, exchanged: bool, for_good: bool) -> Damage:
    """Exchange two layers, or copy one over the other."""

    def damage(runs: Runs, rng: np.random.Generator) -> Damaged | None:
        pair = _layers(runs, rng)
        if pair is None:
            return None
        a, b = pair
        return _at(
            runs,
            _middle(runs, rng)[: None if for_good else 1],
            lambda step: {b: runs.main[step][a]} | ({a: runs.main[step][b]} if exchanged else {}),
        )

    return damage


def half_of(lag: int) -> Damage:
    """Take the second half of the tensors of one checkpoint from another: a shard, or a file written too early."""

    def damage(runs: Runs, rng: np.random.Generator) -> Damaged | None:
        steps = list(runs.main)
        k = int(rng.integers(max(2, 1 - lag), len(steps) - max(2, lag + 1)))
        names = list(runs.main[0])[len(runs.main[0]) // 2 :]
        return _at(runs, [steps[k]], lambda _: {name: runs.main[steps[k + lag]][name] for name in names})

    return damage


def exchanged_checkpoints(lag: int) -> Damage:
    """Exchange two checkpoints."""

    def damage(runs: Runs, rng: np.random.Generator) -> Damaged | None:
        steps = list(runs.main)
        k = int(rng.integers(2, len(steps) - 2 - lag))
        series = runs.main | {steps[k]: runs.main[steps[k + lag]], steps[k + lag]: runs.main[steps[k]]}
        return Damaged(series, (steps[k], steps[k + lag]), ())

    return damage


def late_labels(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Store each checkpoint from a step on under the next step."""
    steps, wrong = list(runs.main), _middle(runs, rng)
    before = dict(zip(steps[1:], steps, strict=False))
    return Damaged(
        {s: runs.main[before[s]] if s in wrong else w for s, w in runs.main.items()}, (before[wrong[0]], *wrong), ()
    )


def best_for_last(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Store an earlier checkpoint, the best, as the last."""
    steps = list(runs.main)
    best = steps[int(rng.integers(len(steps) // 2, len(steps) - 2))]
    return Damaged(runs.main | {steps[-1]: runs.main[best]}, (best, steps[-1]), ())


def bias_of_other_sign(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Change the sign of a bias at one step."""
    (step,), weights = _middle(runs, rng)[:1], runs.main[max(runs.main)]
    names = [n for n, t in weights.items() if t.dim() == 1 and "bias" in n and not torch.equal(t, runs.main[0][n])]
    if not names:
        return None
    name = str(rng.choice(names))
    return _at(runs, [step], lambda _: {name: -runs.main[step][name]})


def torn(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Take the second half of a matrix from two checkpoints before."""
    steps, name = list(runs.main), _name(runs, rng, matrix=True)
    k = int(rng.integers(3, len(steps) - 2))
    new, old = runs.main[steps[k]][name], runs.main[steps[k - 2]][name]
    half = len(new) // 2
    return _at(runs, [steps[k]], lambda _: {name: torch.cat([new[:half], old[half:]])}) if half else None


def update_stored(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Store what a matrix moved since the checkpoint before, in its place: as a gradient."""
    steps, name = list(runs.main), _name(runs, rng, matrix=True)
    k = int(rng.integers(2, len(steps) - 2))
    new, old = (runs.main[steps[j]][name].float() for j in (k, k - 1))
    return _at(runs, [steps[k]], lambda _: {name: new - old}) if not torch.equal(new, old) else None


def decaying(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Let a matrix shrink by a tenth from one checkpoint to the next, from a step on."""
    steps, name = _middle(runs, rng), _name(runs, rng, matrix=True)
    return _at(runs, steps, lambda step: {name: runs.main[step][name].float() * 0.9 ** (1 + steps.index(step))})


def absent(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Leave out a tensor at one step."""
    (step,), name = _middle(runs, rng)[:1], _name(runs, rng, matrix=True)
    left = {n: t for n, t in runs.main[step].items() if n != name}
    return Damaged(runs.main | {step: left}, (step,), (name,))


def stray(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Add a tensor at one step."""
    (step,) = _middle(runs, rng)[:1]
    return Damaged(runs.main | {step: runs.main[step] | {"extra.weight": torch.ones(4, 4)}}, (step,), ("extra.weight",))


def other_dtype(runs: Runs, rng: np.random.Generator) -> Damaged | None:
    """Store one matrix in float64 at one step."""
    (step,), name = _middle(runs, rng)[:1], _name(runs, rng, matrix=True)
    return Damaged(runs.main | {step: runs.main[step] | {name: runs.main[step][name].double()}}, (step,), (name,))


def _with(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        new = tensor.clone()
        new.view(-1)[new.numel() // 3] = value
        return new

    return change


def _rows_exchanged(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor[[1, 0, *range(2, len(tensor))]] if len(tensor) > 3 else None


def _levels(count: int) -> Callable[[torch.Tensor], torch.Tensor | None]:
    """Round to some levels on either side of zero, at even distances, and back."""

    def change(tensor: torch.Tensor) -> torch.Tensor | None:
        scale = tensor.abs().max() / count
        return (tensor / scale).round() * scale if tensor.dtype == torch.float32 and tensor.numel() > 255 else None

    return change


def _without_tail(tensor: torch.Tensor) -> torch.Tensor:
    new = tensor.clone()
    new.view(-1)[-(new.numel() // 4) :] = 0
    return new


def _other_end_first(tensor: torch.Tensor) -> torch.Tensor:
    array = tensor.contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.int16).numpy()
    return torch.from_numpy(array.byteswap()).view(tensor.dtype)


def _row_copied(tensor: torch.Tensor) -> torch.Tensor | None:
    if len(tensor) < 4 or tensor[0].numel() < 4:
        return None
    new = tensor.clone()
    new[2] = new[1]
    return new


def _row_zero(tensor: torch.Tensor) -> torch.Tensor | None:
    if len(tensor) < 4 or tensor[0].numel() < 4 or not bool(tensor[1].any()):
        return None
    new = tensor.clone()
    new[1] = 0
    return new


def _noisy(tensor: torch.Tensor) -> torch.Tensor:
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))
    return tensor.float() + 0.5 * float(tensor.float().std()) * noise


def _clipped(tensor: torch.Tensor) -> torch.Tensor:
    bound = float(tensor.float().std())
    return tensor.clamp(-bound, bound)


def _read_as_float16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16).view(torch.float16).to(tensor.dtype)


ONE_MATRIX: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "query and key exchanged": _blocks_exchanged(3),
    "two heads exchanged": _blocks_exchanged(4),
    "rows shifted by one": lambda tensor: tensor.roll(1, 0) if len(tensor) > 3 else None,
    "two rows exchanged": _rows_exchanged,
    "int8 and back": _levels(127),
    "4 bits and back": _levels(7),
    "without signs": torch.abs,
    "squared": torch.square,
    "flattened by columns": lambda tensor: tensor.flatten(1).t().reshape(tensor.shape),
    "constant": lambda tensor: torch.full_like(tensor, float(tensor.float().std())),
    "a quarter of it zero": _without_tail,
    "a row zero": _row_zero,
    "a row copied": _row_copied,
    "noise of half its size": _noisy,
    "clipped at its standard deviation": _clipped,
    "twice": lambda tensor: 2 * tensor,
    "half": lambda tensor: tensor / 2,
}
"""What becomes of one matrix."""

DAMAGES: dict[str, tuple[str, Damage]] = {
    **{f"one value of {size:g}": ("values", absurd_value(size)) for size in (10.0, 1e3, 1e6, 1e20, 3e37)},
    "a norm's weight zero": ("zeros", zero_norm),
    "a bias zero": ("zeros", zero_bias),
    "all biases and norms zero": ("zeros", zero_vectors),
    "a norm's weight zero from a step on": ("zeros", zero_norm_for_good),
    **{
        f"a matrix: {what}, from a step on": ("from a step on", changed(kind, for_good=True))
        for kind, what in {
            "sign": "other sign",
            "rows": "rows permuted",
            "columns": "columns permuted",
            "transposed": "transposed",
            "fresh": "fresh values",
            "other": "another run's",
        }.items()
    },
    **{
        f"a matrix: {what}, at one step": ("one step", changed(kind, for_good=False))
        for kind, what in {"sign": "other sign", "rows": "rows permuted", "transposed": "transposed"}.items()
    },
    "a stale vector at one step": ("other", stale(matrix=False, for_good=False)),
    "a stale vector from a step on": ("other", stale(matrix=False, for_good=True)),
    "a stale matrix at one step": ("other", stale(matrix=True, for_good=False)),
    "a stale matrix from a step on": ("other", stale(matrix=True, for_good=True)),
    "step 0 rounded to 16 bits": ("other", rounded_beginning),
    "a matrix x 1.05 at one step": ("other", scaled(1.05, for_good=False)),
    "a matrix x 1.05 from a step on": ("other", scaled(1.05, for_good=True)),
    "a branch of the run from a step on": ("other", branch(other_seed=False, for_good=True)),
    "a branch of the run at one step": ("other", branch(other_seed=False, for_good=False)),
    "another seed's run from a step on": ("other", branch(other_seed=True, for_good=True)),
    "another seed's run at one step": ("other", branch(other_seed=True, for_good=False)),
    **{
        f"a matrix: {what}, {when}": ("a matrix", _one(change, for_good=when != "at one step"))
        for what, change in ONE_MATRIX.items()
        for when in ("at one step", "from a step on")
    },
    "a NaN": ("values", _one(_with(float("nan")))),
    "an infinite value": ("values", _one(_with(float("inf")))),
    "a matrix: other end first": ("values", _one(_other_end_first)),
    "a matrix: almost zero": ("values", _one(lambda tensor: tensor * 1e-38)),
    "a matrix: fades from a step on": ("a matrix", decaying),
    "a matrix: its update in its place": ("a matrix", update_stored),
    "a matrix: half of it two checkpoints old": ("a matrix", torn),
    "a bias: other sign": ("a matrix", bias_of_other_sign),
    "bfloat16 read as float16": ("whole", _whole(_read_as_float16)),
    "all twice, at one step": ("whole", _whole(lambda tensor: 2 * tensor)),
    "all half, from a step on": ("whole", _whole(lambda tensor: tensor / 2, for_good=True)),
    "two layers exchanged, at one step": ("layers", layers(exchanged=True, for_good=False)),
    "two layers exchanged, from a step on": ("layers", layers(exchanged=True, for_good=True)),
    "a layer copied over another, at one step": ("layers", layers(exchanged=False, for_good=False)),
    "a layer copied over another, from a step on": ("layers", layers(exchanged=False, for_good=True)),
    "half of the tensors of the checkpoint before": ("whole", half_of(-1)),
    "half of the tensors of the next checkpoint": ("whole", half_of(1)),
    "half of the tensors five checkpoints old": ("whole", half_of(-5)),
    "two neighbours exchanged": ("whole", exchanged_checkpoints(1)),
    "two checkpoints exchanged": ("whole", exchanged_checkpoints(4)),
    "stored one step late, from a step on": ("whole", late_labels),
    "the best one as the last": ("whole", best_for_last),
    "a tensor absent": ("headers", absent),
    "a tensor more": ("headers", stray),
    "a tensor in float64": ("headers", other_dtype),
    "int8 and back, from a step on": ("not to be told", round_trip),
    "an adapter of rank 2 merged, from a step on": ("not to be told", merged),
    "the last matrix drifts slowly": ("not to be told", drifting),
    "the mean of its neighbours, at one step": ("not to be told", interpolated),
    "rows shifted by one, in all checkpoints": ("not to be told", off_by_one),
}
