"""The arms and the size of an intervention, and the packs of runs that train as one model."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from toposcope.extend import ToposcopeError
from toposcope.family import SIZES, Corpus, FamilyRun, ModelSize, TrainingOptions
from toposcope_experiments.interventions.matrix_statistics import STATISTICS, find_statistic
from toposcope_experiments.interventions.results import (
    BASE,
    CHAOS,
    DOWN,
    PLAIN,
    RANDOM,
    STATISTIC,
    TWIN,
    UNDIRECTED,
    UP,
)

Optimizer = Literal["adamw", "sgd"]
RATES = {"adamw": 3e-3, "sgd": 0.3}  # peak learning rates, on the losses of small-7k after 800 steps
N_MEASUREMENTS = 40  # of the statistic in a run, at each of which placebos are steered
WARMUP_SHARE = 8  # the learning rate rises over a part of the steps: one in so many
MAX_SHARE = 1.0
LONGER = 6  # times as many steps, to where the loss of small-7k is nearly flat
MAX_CONDITION_SEEDS = 24
SEEDS_PER_PACK = 2
"""A pack holds all arms of so many seeds. It does not depend on the workers, and neither do results."""
STEERED = (TWIN, *PLAIN)  # placebos whose share follows the dose of the statistic
KINDS = (BASE, CHAOS, STATISTIC, *STEERED, RANDOM)
CHAOS_SHARE = 1e-4  # of noise, which is a rounding error for what a run learns, and yet sends it elsewhere


@dataclass(frozen=True)
class Arm:
    """What is done to the gradients of a run, paired with the other arms by seed."""

    kind: str
    direction: int  # UP or DOWN; UNDIRECTED if it has none

    @property
    def name(self) -> str:
        """Name of the arm and its direction."""
        return self.kind + {UP: "_up", DOWN: "_down", UNDIRECTED: ""}[self.direction]


def arms_of(kinds: tuple[str, ...]) -> list[Arm]:
    """Return the arms of some kinds; the two directions of a kind follow each other."""
    return [
        Arm(kind, direction)
        for kind in KINDS
        if kind in kinds
        for direction in ((UNDIRECTED,) if kind in (BASE, CHAOS) else (UP, DOWN))
    ]


@dataclass(frozen=True)
class Design:
    """What is trained; the defaults find an effect of 5 mnat four times in five, in one comparison."""

    statistics: tuple[str, ...] = ("scale_free_h0",)
    kinds: tuple[str, ...] = KINDS
    size: str = "small-7k"
    context: int = 64  # characters of a sequence
    optimizer: Optimizer = "adamw"
    steps: int = 800
    batch_size: int = 8
    seeds: int = 91
    share: float = 0.02  # norm of the push over that of the loss gradient
    refresh: int = 0  # steps for which pairings are kept; 0 for what each statistic allows
    push_until: float = 1.0  # share of the steps after which pushes end
    initial_scale: float = 1.0  # factor of the initial weights
    corpus: str = "python-docs"

    def __post_init__(self) -> None:
        topological = [name for name, statistic in STATISTICS.items() if statistic.is_topological]
        for name in self.statistics:
            if name not in topological:
                raise ToposcopeError(f"statistic {name!r} is none of topology; choose one of {', '.join(topological)}")
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise ToposcopeError(f"arm {unknown[0]!r} is not known; choose one of {', '.join(KINDS)}")
        if not {BASE, STATISTIC} <= set(self.kinds):
            raise ToposcopeError(f"arms: {BASE} and {STATISTIC} are needed, since all others are compared with them")
        if self.size not in SIZES:
            raise ToposcopeError(f"size {self.size!r} is not known; choose one of {', '.join(SIZES)}")
        if self.optimizer not in RATES:
            raise ToposcopeError(f"optimizer {self.optimizer!r} is not known; choose one of {', '.join(RATES)}")
        for name, least in {"steps": 4, "batch_size": 1, "seeds": 2, "context": 1, "refresh": 0}.items():
            if getattr(self, name) < least:
                raise ToposcopeError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        for name, most in {"share": MAX_SHARE, "push_until": 1.0, "initial_scale": math.inf}.items():
            if not 0 < getattr(self, name) <= most or not math.isfinite(getattr(self, name)):
                raise ToposcopeError(f"{name} is {getattr(self, name)}; it must be above 0 and at most {most:g}")

    @property
    def arms(self) -> list[Arm]:
        """The arms of every seed."""
        return arms_of(self.kinds)

    @property
    def model_size(self) -> ModelSize:
        """The size of the models."""
        whole = SIZES[self.size]
        return ModelSize(hidden=whole.hidden, layers=whole.layers, heads=whole.heads, context=self.context)

    @property
    def every(self) -> int:
        """Steps between two measurements."""
        return max(1, self.steps // N_MEASUREMENTS)

    @property
    def measured_steps(self) -> list[int]:
        """Steps at which the statistic is measured, half of training among them."""
        return sorted({*range(0, self.steps, self.every), self.steps // 2, self.steps})

    @property
    def last_pushed(self) -> int:
        """The last step with a push."""
        return round(self.push_until * self.steps)

    def training(self, seed: int) -> TrainingOptions:
        """Return how the runs of a seed are trained."""
        return TrainingOptions(
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=RATES[self.optimizer],
            warmup_steps=self.steps // WARMUP_SHARE,
            validation_sequences=256,
            initial_scale=self.initial_scale,
            seed=seed,
        )

    def packs(self) -> "list[Pack]":
        """Return the packs of all statistics."""
        firsts = range(0, self.seeds, SEEDS_PER_PACK)
        return [
            Pack(self, statistic, tuple(range(first, min(first + SEEDS_PER_PACK, self.seeds))))
            for statistic in self.statistics
            for first in firsts
        ]

    def conditions(self) -> "dict[str, Design]":
        """Return further conditions by folder, in which the verdict may be another; none that is this one."""
        longer = {"steps": LONGER * self.steps}
        changes: dict[str, dict[str, Any]] = {
            "tiny": {"size": "tiny-3k"},
            "med": {"size": "med-21k"},
            "large-initial-weights": {"initial_scale": 4.0},
            "pushed-for-half": {"push_until": 0.5},
            "sgd": {"optimizer": "sgd"},
            "long": longer,
            "long-sgd": {**longer, "optimizer": "sgd"},
        }
        designs = {name: replace(self, **change) for name, change in changes.items()}
        seeds = min(self.seeds, MAX_CONDITION_SEEDS)
        return {name: replace(design, seeds=seeds) for name, design in designs.items() if design != self}

    def refresh_of(self, statistic: str) -> int:
        """Return for how many steps pairings of a statistic are kept."""
        return self.refresh or find_statistic(statistic).max_refresh


@dataclass(frozen=True)
class Pack:
    """All arms of some seeds, trained as one model: run ``arm * len(seeds) + place of the seed``."""

    design: Design
    statistic: str
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of the pack and of its file."""
        return f"{self.statistic}-{self.seeds[0]}-{self.seeds[-1]}"

    @property
    def declaration(self) -> dict[str, Any]:
        """All that its runs depend on: not how many seeds there are besides."""
        design = replace(self.design, statistics=(self.statistic,), seeds=max(2, len(self.seeds)))
        return {"design": design, "seeds": self.seeds}

    def runs(self) -> list[FamilyRun]:
        """Return the runs, arm by arm."""
        corpus = Corpus(source=self.design.corpus)
        return [
            FamilyRun(name=arm.name, size=self.design.model_size, corpus=corpus, training=self.design.training(seed))
            for arm in self.design.arms
            for seed in self.seeds
        ]
