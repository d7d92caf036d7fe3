"""The runs of the experiment: networks that learn digits, regularised and disturbed one way at a time."""

from dataclasses import dataclass

import torch

from toposcope.extend import ToposcopeError, derive_seed

N_PIXELS, N_CLASSES = 64, 10
N_TRAINING, N_VALIDATION = 1024, 273  # of the 1,797 digits; the other 500 are tested on
STEPS_PER_EPOCH = 32
"""Batches in all training digits; a run on fewer sees them more often, at as many steps between measurements."""
BATCH_SIZE = N_TRAINING // STEPS_PER_EPOCH
EARLY_STEPS = (0, 1, 2, 4, 8, 16)  # measured within the first epoch, where the loss falls fastest
MIN_SEEDS, MIN_EPOCHS, MIN_WIDTH = 2, 4, 2


@dataclass(frozen=True)
class Condition:
    """What is done to a run."""

    name: str
    factor: str  # what it varies
    n_layers: int = 2  # hidden layers
    dropout: float = 0.0  # probability with which a hidden unit is dropped at a training step
    batch_norm: bool = False  # batch normalisation before each ReLU
    # a learned scale and shift after each ReLU, as batch normalisation has that never normalises
    learned_scale: bool = False
    random_labels: float = 0.0  # share of the labels, of training and validation digits, that are drawn anew
    share: float = 1.0  # of the training digits


PLAIN = Condition("plain", "")
DROPOUT = Condition("dropout", "regularisation", dropout=0.5)
BATCH_NORM = Condition("batch norm", "regularisation", batch_norm=True)
LEARNED_SCALE = Condition("learned scale", "regularisation", learned_scale=True)
FACTORS = ("regularisation", "depth", "labels", "data")
CONDITIONS = (
    PLAIN,
    DROPOUT,
    BATCH_NORM,
    LEARNED_SCALE,
    Condition("1 hidden layer", "depth", n_layers=1),
    Condition("3 hidden layers", "depth", n_layers=3),
    Condition("half the labels random", "labels", random_labels=0.5),
    Condition("all labels random", "labels", random_labels=1.0),
    Condition("half the data", "data", share=1 / 2),
    Condition("a quarter of the data", "data", share=1 / 4),
    Condition("an eighth of the data", "data", share=1 / 8),
)


@dataclass(frozen=True)
class Contrast:
    """Two conditions that are compared."""

    condition: Condition
    beside: Condition
    # how the neural persistence of the first differs from that of the second, as published: ``higher``; empty if
    # nothing is published on it
    published: str = ""


HIGHER = "higher"
CONTRASTS = (
    Contrast(DROPOUT, PLAIN, HIGHER),
    Contrast(BATCH_NORM, PLAIN, HIGHER),
    Contrast(DROPOUT, BATCH_NORM, HIGHER),
    *(Contrast(condition, PLAIN) for condition in CONDITIONS if condition not in (PLAIN, DROPOUT, BATCH_NORM)),
)


@dataclass(frozen=True)
class Design:
    """The size of the experiment."""

    seeds: int = 12  # runs of each condition. All have their own initial weights, digits and batches
    epochs: int = 60  # of 32 updates each, whatever the share of the data
    width: int = 100  # units of each hidden layer
    learning_rate: float = 0.001  # of Adam

    def __post_init__(self) -> None:
        if self.seeds < MIN_SEEDS:
            raise ToposcopeError(f"seeds {self.seeds}: choose at least {MIN_SEEDS}, since the test is one over seeds")
        if self.epochs < MIN_EPOCHS:
            raise ToposcopeError(f"epochs {self.epochs}: choose at least {MIN_EPOCHS}")
        if self.width < MIN_WIDTH:
            raise ToposcopeError(f"width {self.width}: choose at least {MIN_WIDTH}")

    @property
    def measured_steps(self) -> list[int]:
        """Steps at which runs are measured: the first few, then every epoch."""
        return [*EARLY_STEPS, *(STEPS_PER_EPOCH * epoch for epoch in range(1, self.epochs + 1))]

    def runs(self, condition: Condition) -> "list[DigitRun]":
        """Return the runs of a condition."""
        return [DigitRun(condition, number) for number in range(self.seeds)]


@dataclass(frozen=True)
class DigitRun:
    """One run of the experiment."""

    condition: Condition
    number: int  # of the seed, from 0

    @property
    def name(self) -> str:
        """Name of the run, from which its seeds are derived."""
        return f"{self.condition.name} {self.number}"

    def seed(self, *purpose: str | int) -> int:
        """Return the seed for one purpose."""
        return derive_seed(0, "regularisation", self.name, *purpose)

    def generator(self, *purpose: str | int) -> torch.Generator:
        """Return the random numbers for one purpose, the same on every machine."""
        return torch.Generator().manual_seed(self.seed(*purpose))
