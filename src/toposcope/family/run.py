"""The declaration of a run: the size of its model, its corpus, its training and the learning rate of each update."""

import math
from collections.abc import Iterable
from typing import Literal

import msgspec

from toposcope.checkpoints.steps import Selection
from toposcope.errors import ToposcopeError, choices
from toposcope.family.corpus import Corpus

ScheduleName = Literal["cosine", "constant", "linear", "wsd"]
MIN_HEAD_WIDTH = 16  # width of an attention head below which the CPU kernel is slow, on ``benchmarks/training.py``
MIN_LOG_SPACED = 3  # step 0, step 1 and the last


class ModelSize(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One member of the family.

    Attributes
    ----------
    hidden : int
        Width of the residual stream.
    layers : int
        Number of blocks.
    heads : int
        Attention heads a block; must divide `hidden`.
    vocabulary : int
        Number of tokens.
    context : int
        Longest sequence.
    """

    hidden: int
    layers: int
    heads: int
    vocabulary: int = 128
    context: int = 128

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.hidden % self.heads:
            raise ValueError(f"hidden = {self.hidden} is not a multiple of heads = {self.heads}")

    @property
    def n_parameters(self) -> int:
        """Trainable parameters, the tied head counted once."""
        d = self.hidden
        block = 12 * d * d + 13 * d
        return (self.vocabulary + self.context) * d + self.layers * block + 2 * d


SIZES: dict[str, ModelSize] = {
    "tiny-3k": ModelSize(hidden=8, layers=1, heads=1),
    "small-7k": ModelSize(hidden=16, layers=1, heads=2),
    "med-21k": ModelSize(hidden=24, layers=2, heads=2),
    "large-46k": ModelSize(hidden=32, layers=3, heads=4),
    "xl-97k": ModelSize(hidden=48, layers=3, heads=4),
}
"""The published family; parameters 2,936 / 7,408 / 20,640 / 46,368 / 97,200."""


def find_size(size: str | ModelSize) -> ModelSize:
    """Return the declaration of a named size, or a declaration as it is."""
    if isinstance(size, ModelSize):
        return size
    if size not in SIZES:
        raise ToposcopeError(f"size {size!r} is not known; {choices(size, SIZES)}, or give hidden, layers and heads")
    return SIZES[size]


def learning_rate(
    step: int,
    *,
    schedule: ScheduleName,
    peak: float,
    final: float,
    warmup_steps: int,
    decay_steps: int,
    total_steps: int,
) -> float:
    """Return the learning rate of one update; step 1 is the first."""
    if step < warmup_steps:
        return peak * step / warmup_steps
    if schedule == "constant":
        return peak
    begin = total_steps - decay_steps if schedule == "wsd" else warmup_steps
    progress = min(1.0, max(0.0, (step - begin) / max(1, total_steps - begin)))
    shape = 0.5 * (1 + math.cos(math.pi * progress)) if schedule == "cosine" else 1 - progress
    return final + (peak - final) * shape


class TrainingOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a run is trained; the defaults are the published study's.

    Attributes
    ----------
    steps, batch_size : int
        Updates, and sequences an update.
    stop_at : int
        If not 0, training ends after so many of the steps, as that of a run which is stopped; the schedule stays that
        of all steps.
    learning_rate, final_learning_rate : float
        Peak, and the rate at the last step of a decaying schedule.
    schedule : "cosine", "constant", "linear" or "wsd"
    warmup_steps : int
    decay_steps : int
        Length of the last phase of ``wsd``.
    weight_decay, gradient_clip : float
    checkpoint_every : int
        A checkpoint at step 0, at every multiple of this, and at the last step.
    log_spaced : int
        If not 0, so many checkpoints instead, evenly spaced in the logarithm of the step (see `Selection`) from step 0
        and step 1 to the last. The state to resume from is still saved every `checkpoint_every` steps.
    checkpoint_fractions : tuple of float
        If not empty, checkpoints at step 0, at these fractions of the steps, and at the last step instead. The state is
        saved as with `log_spaced`.
    validation_sequences : int
        Size of the fixed set on which the validation loss is measured, at least 64.
    seed : int
    initial_scale : float
        Factor of the standard deviation of the initial weights.
    dropout : float
        Probability with which an entry is set to zero: of the embedded sequence, and of what attention and MLP add to
        the residual stream. The rest is divided by 1 - dropout.
    label_noise : float
        Share of the tokens of the training part that are replaced, as targets only, by tokens drawn evenly from the
        vocabulary. The same tokens have the same wrong target throughout a run. The logged training loss is of these
        targets; the validation loss is of the true ones.
    data_share : float
        Share of the training part that is trained on, from its start.
    """

    steps: int = 5000
    stop_at: int = 0
    batch_size: int = 64
    learning_rate: float = 3e-3
    final_learning_rate: float = 1e-5
    schedule: ScheduleName = "cosine"
    warmup_steps: int = 200
    decay_steps: int = 1000
    weight_decay: float = 0.01
    gradient_clip: float = 1.0
    checkpoint_every: int = 100
    log_spaced: int = 0
    checkpoint_fractions: tuple[float, ...] = ()
    validation_sequences: int = 64
    seed: int = 42
    initial_scale: float = 1.0
    dropout: float = 0.0
    label_noise: float = 0.0
    data_share: float = 1.0

    def __post_init__(self) -> None:
        minimum = {"steps": 1, "batch_size": 1, "checkpoint_every": 1, "validation_sequences": 64}
        for name in ("learning_rate", "gradient_clip", "initial_scale", "data_share"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in (*minimum, "final_learning_rate", "warmup_steps", "decay_steps", "weight_decay", "seed"):
            if not getattr(self, name) >= minimum.get(name, 0):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {minimum.get(name, 0)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it must be at least 0 and below 1")
        if not 0 <= self.label_noise <= 1:
            raise ValueError(f"label_noise is {self.label_noise}; it must lie between 0 and 1")
        if self.data_share > 1:
            raise ValueError(f"data_share is {self.data_share}; it must be at most 1")
        if not self.initial_scale < math.inf:
            raise ValueError("initial_scale is infinite; it must be a finite number")
        if self.log_spaced and self.log_spaced < MIN_LOG_SPACED:
            raise ValueError(f"log_spaced is {self.log_spaced}; it must be at least {MIN_LOG_SPACED}, or 0 for none")
        if self.log_spaced and self.checkpoint_fractions:
            raise ValueError(
                "log_spaced and checkpoint_fractions both say which checkpoints are saved; give one of them"
            )
        for fraction in self.checkpoint_fractions:
            if not 0 <= fraction <= 1:
                raise ValueError(f"checkpoint_fractions holds {fraction}; it must lie between 0 and 1")
        if not 0 <= self.stop_at <= self.steps:
            raise ValueError(f"stop_at is {self.stop_at}; it must lie between 1 and steps = {self.steps}, or be 0")
        ramps = self.warmup_steps + (self.decay_steps if self.schedule == "wsd" else 0)
        if ramps > self.steps:
            raise ValueError(f"warmup_steps and decay_steps need {ramps} steps, more than steps = {self.steps}")

    def rate(self, step: int) -> float:
        """Return the learning rate of one update."""
        return learning_rate(
            step,
            schedule=self.schedule,
            peak=self.learning_rate,
            final=self.final_learning_rate,
            warmup_steps=self.warmup_steps,
            decay_steps=self.decay_steps,
            total_steps=self.steps,
        )

    @property
    def last_step(self) -> int:
        """The last update that is made."""
        return self.stop_at or self.steps

    def status_at(self, step: int) -> Literal["running", "stopped", "complete"]:
        """Return what a run that reached a step with a finite loss is."""
        return "running" if step < self.last_step else "stopped" if step < self.steps else "complete"

    @property
    def checkpoint_steps(self) -> list[int]:
        """Steps at which weights are saved."""
        if self.log_spaced:
            planned: Iterable[int] = Selection(log_spaced=self.log_spaced).choose(range(self.steps + 1), "training")
        elif self.checkpoint_fractions:
            planned = (0, *(round(fraction * self.steps) for fraction in self.checkpoint_fractions))
        else:
            planned = range(0, self.steps, self.checkpoint_every)
        return sorted({*(step for step in planned if step < self.last_step), self.last_step})


class FamilyRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The declaration of one run."""

    name: str
    size: ModelSize
    corpus: Corpus
    training: TrainingOptions
