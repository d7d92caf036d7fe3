"""The runs of the experiment: networks that learn to add modulo p, under four conditions, several seeds each."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from toposcope.extend import ToposcopeError, derive_seed

TASKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "addition": torch.add,
    "subtraction": torch.sub,
    "multiplication": torch.mul,
}
"""What is computed modulo p, by name."""
MIN_MODULUS = 13  # with fewer residues, five Fourier modes are all there are
MIN_SEEDS = 2


@dataclass(frozen=True)
class Condition:
    """What is done to a run."""

    name: str
    random_labels: bool = False  # labels are drawn uniformly, one for each pair, so that there is nothing to generalise
    has_weight_decay: bool = True
    share: float = 0.5  # of all pairs, those that are trained on


TREATED = Condition("true labels")
CONTROLS = (
    Condition("random labels", random_labels=True),
    Condition("no weight decay", has_weight_decay=False),
    Condition("too few pairs", share=0.15),
)
CONDITIONS = (TREATED, *CONTROLS)


@dataclass(frozen=True)
class Architecture:
    """A network and how it is trained."""

    name: str
    learning_rate: float  # of AdamW
    weight_decay: float  # of AdamW
    width: int = 32  # dimensions of the embedding
    hidden: int = 128  # units of the hidden layer


MLP = Architecture("mlp", learning_rate=0.01, weight_decay=1.0)
TRANSFORMER = Architecture("transformer", learning_rate=0.003, weight_decay=2.0)
ARCHITECTURES = (MLP, TRANSFORMER)


@dataclass(frozen=True)
class Design:
    """The size of the experiment."""

    modulus: int = 59  # number of tokens p; a pair (a, b) has the label a + b modulo p
    seeds: int = 8  # runs of each condition and architecture. All have their own initial weights and pairs
    steps: int = 1200  # updates, each on all pairs that are trained on
    every: int = 20  # steps between two measurements

    def __post_init__(self) -> None:
        if self.modulus < MIN_MODULUS:
            raise ToposcopeError(f"modulus {self.modulus}: choose at least {MIN_MODULUS}")
        if self.seeds < MIN_SEEDS:
            raise ToposcopeError(f"seeds {self.seeds}: choose at least {MIN_SEEDS}, since the test is one over seeds")
        if self.steps < 1 or self.steps % self.every:
            between = f"{self.every}, the steps between measurements"
            raise ToposcopeError(f"steps {self.steps}: choose a multiple of {between}")

    @property
    def measured_steps(self) -> list[int]:
        """Steps at which runs are measured; the first is that of the initial weights."""
        return list(range(0, self.steps + 1, self.every))

    def runs(self, architecture: Architecture, task: str = "addition") -> "list[GrokkingRun]":
        """Return the runs of an architecture on a task, condition by condition."""
        return [GrokkingRun(architecture, each, number, task) for each in CONDITIONS for number in range(self.seeds)]


@dataclass(frozen=True)
class GrokkingRun:
    """One run of the experiment."""

    architecture: Architecture
    condition: Condition
    number: int  # of the seed, from 0
    task: str = "addition"

    @property
    def name(self) -> str:
        """Name of the run, from which its seeds are derived."""
        task = "" if self.task == "addition" else f"{self.task} "
        return f"{self.architecture.name} {task}{self.condition.name} {self.number}"

    @property
    def weight_decay(self) -> float:
        """Weight decay of the run."""
        return self.architecture.weight_decay if self.condition.has_weight_decay else 0.0

    def generator(self, purpose: str) -> torch.Generator:
        """Return the random numbers for one purpose, the same on every machine."""
        return torch.Generator().manual_seed(derive_seed(0, "grokking", self.name, purpose))

    def labels(self, modulus: int) -> Tensor:
        """Return the label of each pair (a, b), at a * modulus + b."""
        first, second = pairs(modulus)
        if self.condition.random_labels:
            return torch.randint(modulus, first.shape, generator=self.generator("labels"))
        return TASKS[self.task](first, second) % modulus

    def trained_pairs(self, modulus: int) -> Tensor:
        """Return which pairs are trained on, drawn uniformly."""
        order = torch.randperm(modulus**2, generator=self.generator("pairs"))
        return order[: round(self.condition.share * modulus**2)]


def pairs(modulus: int) -> tuple[Tensor, Tensor]:
    """Return the first and the second number of every pair."""
    numbers = torch.arange(modulus)
    return numbers.repeat_interleave(modulus), numbers.repeat(modulus)
