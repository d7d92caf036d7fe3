"""What people do with a training on purpose, of which the doctor should blame nothing: for `benchmarks/doctor.py`.

Each practice is carried out on three families of small models. `PRACTICES` are innocent; each of `CHANGES` is one event
at one step, and deserves one finding that names this step.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from doctor_models import VOCABULARY, Batch, Convolutions, Task, Transformer, draw_digits, draw_text, mlp
from doctor_trainings import (
    Lion,
    Schedule,
    Series,
    Weights,
    cosine,
    restarts,
    resumed,
    stable_then_decay,
    steady,
    to_zero,
)

STEPS, EVERY, EVENT = 300, 12, 156
"""Steps of a training, of which each `EVERY`-th is saved, and the step of its event: saved after it."""
FAMILIES: dict[str, Task] = {
    "GPT": Task(partial(Transformer, layers=3), draw_text),
    "MLP": Task(partial(mlp, norms=True), draw_digits),
    "CNN": Task(Convolutions, draw_digits),
}
HEADS = {"GPT": "head.weight", "MLP": "7.weight", "CNN": "head.weight"}


@dataclass
class Trainer:
    """A training under way, which events change.

    Attributes
    ----------
    task : Task
    schedule : callable
        From the share of the training that is done to the learning rate in units of its peak.
    frozen : tuple of str
        Beginnings of the names of tensors that have no gradient.
    masks : dict of str to Tensor
        By which weights are multiplied after each step.
    prepare : callable
        Changes each batch.
    """

    family: str
    task: Task
    seed: int = 0
    schedule: Schedule = cosine
    learning_rate: float = 2e-3
    events: dict[int, "Event"] = field(default_factory=dict)
    saved: tuple[int, ...] = tuple(range(0, STEPS + 1, EVERY))
    frozen: tuple[str, ...] = ()
    batch: int = 32
    average: float = 0.0
    masks: dict[str, Tensor] = field(default_factory=dict)
    shifted: bool = False
    prepare: "Prepare" = lambda batch, generator: batch

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.model = self.task.build()
        self.reset_optimizer()

    def reset_optimizer(self, make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW) -> None:
        """Begin with a new optimizer."""
        self.optimizer = make(self.model.parameters(), lr=self.learning_rate)
        self.peak = self.optimizer.param_groups[0]["lr"]

    def train(self) -> Series:
        """Train to the end; events happen before the step of their number, and step 0 is saved before all."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        series: Series = {0: self.stored(self.model)} if 0 in self.saved else {}
        averaged = copy.deepcopy(self.model)
        for step in range(1, STEPS + 1):
            if step in self.events:
                self.events[step](self)
            for group in self.optimizer.param_groups:
                group["lr"] = self.peak * self.schedule(step / STEPS)
            inputs, targets = self.prepare(self.task.draw(generator, self.batch, self.shifted), generator)
            self.optimizer.zero_grad()
            self.task.loss(self.model, (inputs, targets)).backward()  # type: ignore[no-untyped-call]
            for name, weight in self.model.named_parameters():
                if self.frozen and name.startswith(self.frozen):
                    weight.grad = None
            self.optimizer.step()
            with torch.no_grad():
                for name, weight in self.model.named_parameters():
                    if name in self.masks:
                        weight.mul_(self.masks[name])
                if self.average:
                    for mean, weight in zip(averaged.parameters(), self.model.parameters(), strict=True):
                        mean.lerp_(weight, 1 - self.average)
            if step in self.saved:
                series[step] = self.stored(averaged if self.average else self.model)
        return series

    @staticmethod
    def stored(model: nn.Module) -> Weights:
        """Return the weights as they are saved."""
        return {n: t.detach().clone() for n, t in model.state_dict().items() if t.is_floating_point()}


Event = Callable[[Trainer], None]
Prepare = Callable[[Batch, torch.Generator], Batch]
"""Changes a batch before it is trained on."""


@dataclass(frozen=True)
class Practice:
    """A series in which something was done on purpose.

    Attributes
    ----------
    options : callable
        From a family to the options of its `Trainer`.
    after : callable, optional
        From the series, and the family, to the series that is published.
    steps : tuple of int
        Of its events.
    families : tuple of str
    """

    options: Callable[[str], dict[str, object]] = lambda _: {}
    after: Callable[[Series, str], Series] = lambda series, _: series
    steps: tuple[int, ...] = ()
    families: tuple[str, ...] = tuple(FAMILIES)

    def series(self, family: str, seed: int = 0) -> Series:
        """Train."""
        trainer = Trainer(family, FAMILIES[family], seed, **self.options(family))  # type: ignore[arg-type]
        return self.after(trainer.train(), family)


def _event(event: Event, *, at: int = EVENT, **options: object) -> Practice:
    return Practice(lambda _: {"events": {at - EVERY + 1: event}, **options}, steps=(at,))


def _matrices(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, weight) for name, weight in model.named_parameters() if weight.dim() > 1)


def _freeze(*share: float) -> Event:
    """Freeze the first part of the model's modules with weights."""

    def event(trainer: Trainer) -> None:
        names = [n.rpartition(".")[0] for n, _ in trainer.model.named_parameters()]
        modules = list(dict.fromkeys(names))
        count = round(share[0] * len(modules)) if share else 0
        trainer.frozen = tuple(f"{name}." for name in modules[:count])

    return event


def _prune(share: float) -> Event:
    def event(trainer: Trainer) -> None:
        for name, weight in _matrices(trainer.model):
            trainer.masks[name] = (weight.abs() >= weight.abs().flatten().quantile(share)).to(weight.dtype)
            weight.data.mul_(trainer.masks[name])

    return event


@torch.no_grad()
def _prune_block(trainer: Trainer) -> None:
    """Prune the first quarter of the rows of the second matrix, as the first of four heads."""
    name, weight = list(_matrices(trainer.model))[1]
    trainer.masks[name] = torch.ones_like(weight)
    trainer.masks[name][: len(weight) // 4] = 0
    weight.mul_(trainer.masks[name])


@torch.no_grad()
def _freeze_rounded(trainer: Trainer) -> None:
    _freeze(0.5)(trainer)
    for name, weight in trainer.model.named_parameters():
        if name.startswith(trainer.frozen):
            weight.copy_(weight.bfloat16())


@torch.no_grad()
def _reset_head(trainer: Trainer) -> None:
    weight = dict(trainer.model.named_parameters())[HEADS[trainer.family]]
    nn.init.normal_(weight, std=float(weight.std()))


@torch.no_grad()
def _reset_half(trainer: Trainer) -> None:
    matrices = list(_matrices(trainer.model))
    for _, weight in matrices[len(matrices) // 2 :]:
        nn.init.normal_(weight, std=float(weight.std()))


@torch.no_grad()
def _shrink_and_perturb(trainer: Trainer) -> None:
    for _, weight in _matrices(trainer.model):
        weight.mul_(0.5).add_(torch.randn_like(weight), alpha=0.1 * float(weight.std()))
    trainer.reset_optimizer()


@torch.no_grad()
def _merge_lora(trainer: Trainer) -> None:
    for _, weight in _matrices(trainer.model):
        flat = weight.flatten(1)
        low = torch.randn(len(flat), 2) @ torch.randn(2, flat.shape[1])
        weight.add_(low.view_as(weight), alpha=0.1 * float(weight.std()) / math.sqrt(2))


def _enlarged(old: Tensor, shape: tuple[int, ...], scale: float = 0.02) -> Tensor:
    new = scale * torch.randn(shape) if len(shape) > 1 else torch.ones(shape) * float(old.mean())
    new[tuple(slice(0, n) for n in old.shape)] = old
    return new


@torch.no_grad()
def _extend_vocabulary(trainer: Trainer) -> None:
    model = trainer.model
    if isinstance(model, Transformer):
        for module in (model.wte, model.head):
            module.weight = nn.Parameter(_enlarged(module.weight, (VOCABULARY + 16, module.weight.shape[1])))
    else:
        head = model[-1] if isinstance(model, nn.Sequential) else model.head
        assert isinstance(head, nn.Linear)
        head.weight = nn.Parameter(_enlarged(head.weight, (12, head.in_features)))
        head.bias = nn.Parameter(_enlarged(head.bias, (12,)))
    trainer.reset_optimizer()


def _deepen(at: int) -> Event:
    """Insert a copy of a block, which renumbers those behind it."""

    def event(trainer: Trainer) -> None:
        model = trainer.model
        if isinstance(model, Transformer):
            blocks = list(model.blocks)
            model.blocks = nn.ModuleList([*blocks[: at + 1], copy.deepcopy(blocks[at]), *blocks[at + 1 :]])
        elif isinstance(model, nn.Sequential):
            # Linear, norm, ReLU, of equal width, before the head.
            place = len(model) - 1 if at > 1 else 4
            parts = [*list(model)[:place], *(copy.deepcopy(part) for part in list(model)[4:7]), *list(model)[place:]]
            trainer.model = nn.Sequential(*parts)
        trainer.reset_optimizer()

    return event


@torch.no_grad()
def _widen(trainer: Trainer) -> None:
    torch.manual_seed(5)
    if isinstance(trainer.model, nn.Sequential):
        wide: nn.Module = mlp(96, norms=True)
    elif isinstance(trainer.model, Convolutions):
        wide = Convolutions(36)
    else:
        wide = Transformer(width=48, layers=3)
    old = trainer.model.state_dict()
    wide.load_state_dict(
        {n: _enlarged(old[n], tuple(t.shape)) if t.is_floating_point() else t for n, t in wide.state_dict().items()}
    )
    trainer.model = wide
    trainer.reset_optimizer()


def _untied(series: Series, _: str) -> Series:
    """Do not save the head before the event, as of a tied model."""
    return {s: {n: t for n, t in w.items() if s >= EVENT or n != "head.weight"} for s, w in series.items()}


def _in_dtype(dtype: torch.dtype, begin: int) -> Callable[[Series, str], Series]:
    return lambda series, _: {s: {n: t.to(dtype) for n, t in w.items()} if s >= begin else w for s, w in series.items()}


def _mean(of: list[Weights]) -> Weights:
    return {name: torch.stack([w[name] for w in of]).mean(0) for name in of[0]}


def _averaged_last(series: Series, _: str) -> Series:
    return {**series, STEPS: _mean([series[s] for s in list(series)[-8:]])}


def _exponential_last(series: Series, _: str) -> Series:
    """Publish an exponential moving average at the end."""
    mean = series[0]
    for weights in series.values():
        mean = {name: 0.8 * mean[name] + 0.2 * tensor for name, tensor in weights.items()}
    return {**series, STEPS: mean}


def _averaged_from(begin: int, window: int) -> Callable[[Series, str], Series]:
    """From a step on, save the mean of all checkpoints since, or of the last few."""

    def after(series: Series, _: str) -> Series:
        late = [step for step in series if step >= begin]
        return {
            step: _mean([series[s] for s in late[: late.index(step) + 1][-window:]]) if step in late else weights
            for step, weights in series.items()
        }

    return after


def _shorter(batch: Batch, _: torch.Generator) -> Batch:
    return batch[0][:, :6], batch[1][:, :6]


def _noisy_labels(batch: Batch, generator: torch.Generator) -> Batch:
    """Give a third of a batch the labels of others."""
    inputs, labels = batch
    count = len(labels) // 3
    mixed = labels[:count][torch.randperm(count, generator=generator)]
    return inputs, torch.cat([mixed, labels[count:]])


def _hidden(batch: Batch, generator: torch.Generator) -> Batch:
    """Hide a fifth of the inputs, as dropout does."""
    kept = torch.rand(batch[0].shape, generator=generator) > 0.2
    return (batch[0] * kept).to(batch[0].dtype), batch[1]


def _decay_more(trainer: Trainer) -> None:
    for group in trainer.optimizer.param_groups:
        group["weight_decay"] = 5.0


def _statistics_again(trainer: Trainer) -> None:
    """Estimate the statistics of batch norms anew, as after an average of weights."""
    for module in trainer.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None


def _average_and_go_on(trainer: Trainer) -> None:
    """Go on from the average with weights of before, as after a merge of checkpoints."""
    torch.manual_seed(trainer.seed)
    before = trainer.kept  # type: ignore[attr-defined]
    trainer.model.load_state_dict(
        {n: (t + before[n]) / 2 if t.is_floating_point() else t for n, t in trainer.model.state_dict().items()}
    )


def _keep(trainer: Trainer) -> None:
    trainer.kept = copy.deepcopy(trainer.model.state_dict())  # type: ignore[attr-defined]


def _other(**changes: object) -> Event:
    def event(trainer: Trainer) -> None:
        for name, value in changes.items():
            setattr(trainer, name, value)

    return event


def _optimizer(make: Callable[..., torch.optim.Optimizer]) -> Event:
    return lambda trainer: trainer.reset_optimizer(make)


def _new_stage(trainer: Trainer) -> None:
    trainer.shifted = True
    trainer.reset_optimizer()


def _tables(count: int) -> dict[str, object]:
    return {"saved": tuple(range(count * EVERY, STEPS + 1, EVERY))}


def _log_spaced(_: str) -> dict[str, object]:
    return {"saved": tuple(sorted({0, *(round(1.25**k) for k in range(26) if round(1.25**k) <= STEPS), STEPS}))}


def _scheduled(schedule: Schedule) -> Practice:
    return Practice(lambda _: {"schedule": schedule})


PRACTICES: dict[str, Practice] = {
    "warm-up and cosine": Practice(),
    "linear decay to zero": _scheduled(to_zero),
    "stable, then decay": _scheduled(stable_then_decay),
    "restarts": _scheduled(restarts),
    "constant": _scheduled(steady),
    "resumed with a warm-up": Practice(
        lambda _: {"schedule": resumed, "events": {181: lambda trainer: trainer.reset_optimizer()}}
    ),
    "optimizer state lost": _event(lambda trainer: trainer.reset_optimizer(), schedule=steady),
    "SGD instead of AdamW": _event(_optimizer(lambda parameters, lr: torch.optim.SGD(parameters, lr=20 * lr))),
    "rate 10 times lower": _scheduled(lambda t: 1.0 if t < 0.5 else 0.1),
    "other data": _event(_other(shifted=True)),
    "batch 8 times larger": _event(_other(batch=256)),
    "other data, new optimizer": _event(_new_stage),
    "first half frozen": _event(_freeze(0.5)),
    "first half frozen in bfloat16": _event(_freeze_rounded),
    "heads pruned in one matrix": _event(_prune_block),
    "all but the head frozen": _event(_freeze(0.8)),
    "first half thawed": Practice(
        lambda _: {"events": {1: _freeze(0.5), EVENT - EVERY + 1: _freeze()}, "schedule": steady}
    ),
    "thawed bit by bit": Practice(
        lambda _: {"events": {1: _freeze(0.8), 100: _freeze(0.5), 200: _freeze()}, "schedule": steady}
    ),
    "moving average": Practice(lambda _: {"average": 0.95}),
    "average of the last ones at the end": Practice(after=_averaged_last),
    "bfloat16 throughout": Practice(after=_in_dtype(torch.bfloat16, 0)),
    "last one in bfloat16": Practice(after=_in_dtype(torch.bfloat16, STEPS)),
    "last one in float16": Practice(after=_in_dtype(torch.float16, STEPS)),
    "pruned bit by bit": Practice(
        lambda _: {"events": {84 + 24 * k: _prune(0.8 * (1 - (1 - (k + 1) / 6) ** 3)) for k in range(6)}}
    ),
    "early steps not kept": Practice(lambda _: _tables(4)),
    "logarithmic steps": Practice(_log_spaced),
    "last step off the grid": Practice(lambda _: {"saved": (*range(0, 289, EVERY), 297)}),
    "two stages of saving": Practice(lambda _: {"saved": (*range(0, 72, 6), *range(72, STEPS + 1, EVERY))}),
    "fewer checkpoints": Practice(lambda _: {"saved": tuple(range(0, STEPS + 1, 60))}),
    "large steps": Practice(lambda _: {"learning_rate": 1e-2}),
    "bfloat16 from the middle on": Practice(after=_in_dtype(torch.bfloat16, EVENT), steps=(EVENT,)),
    "vocabulary extended": _event(_extend_vocabulary),
    "rate range test": _scheduled(lambda t: 10 ** (4 * t - 3)),
    "one cycle": _scheduled(lambda t: 0.1 + 5 * (1 - abs(2 * t - 1))),
    "rate ten times higher": _scheduled(lambda t: 0.3 if t < 0.5 else 3.0),
    "batch doubled three times": Practice(
        lambda _: {"events": {60 * k: _other(batch=16 * 2**k) for k in range(1, 4)}, "batch": 16}
    ),
    "momentum reset again and again": Practice(
        lambda _: {"events": {60 * k: lambda trainer: trainer.reset_optimizer() for k in range(1, 5)}}
    ),
    "Lion instead of AdamW": _event(_optimizer(lambda parameters, lr: Lion(parameters, lr=lr / 5))),
    "stronger decay": _event(_decay_more),
    "dropout off": Practice(lambda _: {"prepare": _hidden, "events": {145: _other(prepare=lambda b, _: b)}}),
    "labels cleaned": Practice(lambda _: {"prepare": _noisy_labels, "events": {145: _other(prepare=lambda b, _: b)}}),
    "longer texts": Practice(
        lambda _: {"prepare": _shorter, "events": {145: _other(prepare=lambda b, _: b)}}, families=("GPT",)
    ),
    "statistics estimated again": Practice(lambda _: {"events": {290: _statistics_again}}, families=("CNN",)),
    "moving average at the end": Practice(after=_exponential_last),
    "averaged from a step on": Practice(after=_averaged_from(204, STEPS)),
    "each the mean of the last three": Practice(after=_averaged_from(0, 3)),
    "each the mean of all before": Practice(after=_averaged_from(0, STEPS)),
    "bfloat16 in float32 throughout": Practice(
        after=lambda series, _: {s: {n: t.to(torch.bfloat16).float() for n, t in w.items()} for s, w in series.items()}
    ),
}
"""Of which no fault may be found."""

CHANGES: dict[str, Practice] = {
    "vocabulary extended": _event(_extend_vocabulary),
    "vocabulary extended late": _event(_extend_vocabulary, at=264),
    "vocabulary extended early": _event(_extend_vocabulary, at=48),
    "head untied": Practice(after=_untied, steps=(EVENT,), families=("GPT",)),
    "a layer more at the end": Practice(
        lambda _: {"events": {EVENT - EVERY + 1: _deepen(2)}}, steps=(EVENT,), families=("GPT", "MLP")
    ),
    "a layer more in the middle": Practice(
        lambda _: {"events": {EVENT - EVERY + 1: _deepen(0)}}, steps=(EVENT,), families=("GPT", "MLP")
    ),
    "wider": _event(_widen),
    "wider early": _event(_widen, at=60),
    "bfloat16 from the middle on": Practice(after=_in_dtype(torch.bfloat16, EVENT), steps=(EVENT,)),
    "bfloat16 for the last three": Practice(after=_in_dtype(torch.bfloat16, STEPS - 2 * EVERY), steps=(276,)),
    "head reset": _event(_reset_head),
    "half of the matrices reset": _event(_reset_half),
    "shrunk and perturbed": _event(_shrink_and_perturb),
    "pruned by half": _event(_prune(0.5)),
    "pruned by nine tenths": _event(_prune(0.9)),
    "averaged with an earlier one": Practice(
        lambda _: {"events": {73: _keep, EVENT - EVERY + 1: _average_and_go_on}}, steps=(EVENT,)
    ),
    "LoRA merged": _event(_merge_lora),
    "wider, then bfloat16": Practice(
        lambda _: {"events": {97: _widen}}, _in_dtype(torch.bfloat16, 204), steps=(108, 204)
    ),
    "vocabulary extended, then pruned": Practice(
        lambda _: {"events": {97: _extend_vocabulary, 193: _prune(0.9)}}, steps=(108, 204)
    ),
    "vocabulary extended, then head reset": Practice(
        lambda _: {"events": {97: _extend_vocabulary, 193: _reset_head}}, steps=(108, 204)
    ),
}
"""Of which one finding for each of their steps is wanted, and none for any other."""
