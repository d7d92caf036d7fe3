"""The population: which runs, of which shapes and options, with what planted in them, by seed; declared, not drawn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from toposcope.extend import ToposcopeError, derive_seed
from toposcope.family import ModelSize
from toposcope_experiments.early_warnings.faults import Fault
from toposcope_experiments.early_warnings.model import Shape
from toposcope_experiments.early_warnings.traces import QUIET

POPULATION = 1  # strengths of faults were chosen on population 0
CONTEXT, BATCH = 32, 8  # characters of a sequence, sequences of a batch
WARMUP_STEPS = 100
CHUNK = 200  # steps of a block of the log; a multiple of every cadence
BETAS2 = (0.95, 0.99, 0.999)
EPSILONS = (1e-8, 1e-6, 1e-12)
CLIPS = (1.0, math.inf)
DECAYS = (0.01, 0.1)
SCHEDULES = ("constant", "cosine", "wsd")
QUIET_RATES = (0.3, 1.0)  # times the base rate of the width
SIZES = {
    "9k": ModelSize(hidden=16, layers=2, heads=2, context=CONTEXT),
    "18k": ModelSize(hidden=24, layers=2, heads=2, context=CONTEXT),
    "43k": ModelSize(hidden=32, layers=3, heads=4, context=CONTEXT),
    "93k": ModelSize(hidden=48, layers=3, heads=4, context=CONTEXT),
}
BASE_RATE, WIDE_RATE = 1e-2, 5e-3  # of widths below and from 32
SMALL = (
    Shape(SIZES["9k"]),
    Shape(SIZES["9k"], post_norm=True),
    Shape(SIZES["9k"], qk_norm=True),
    Shape(SIZES["9k"], bf16=True),
)
LARGE = (
    Shape(SIZES["18k"], qk_norm=True, bf16=True),
    Shape(SIZES["18k"], post_norm=True, bf16=True),
    Shape(SIZES["43k"]),
    Shape(SIZES["93k"], qk_norm=True),
)
SHAPES = SMALL + LARGE


@dataclass(frozen=True)
class Planting:
    """How a kind of trouble is planted: ranges from which the strength (in logarithms) and the length are drawn."""

    strength: tuple[float, float]
    length: tuple[int, int]  # steps


TO_THE_END = (100_000, 100_000)
ARISING = {
    "long warm-up": Planting((40.0, 150.0), TO_THE_END),  # times the rate, reached at the last step
    "creeping rate": Planting((1.002, 1.006), TO_THE_END),  # growth of the rate a step, from a third of the run on
}
"""Nothing is planted: the rate brings the run to the edge of stability, and past it."""
PLANTED = {
    "rate kick": Planting((10.0, 40.0), (5, 30)),  # times the rate
    "bad data": Planting((0.4, 1.0), (15, 60)),  # share of random tokens
    "data repeat": Planting((1.0, 4.0), (60, 200)),  # batches that are read again and again
    "optimizer reset": Planting((1.0, 1.0), (1, 1)),
    "schedule restart": Planting((4.0, 12.0), TO_THE_END),  # times the peak rate, when it starts anew
    "weight corruption": Planting((256.0, 4096.0), (1, 1)),  # the weight's new magnitude
    "gradient corruption": Planting((1.0, 30.0), (50, 400)),  # times the norm of the gradient
    "attention collapse": Planting((1.0, 10.0), (100, 200)),  # added a step to the queries
    "dead blocks": Planting((0.1, 1.0), (100, 300)),  # taken a step from each hidden bias
    "frozen layers": Planting((1.0, 1.0), (150, 400)),
    "wrong decay": Planting((0.002, 0.006), TO_THE_END),  # growth a step
}
KINDS = (*ARISING, *PLANTED)


@dataclass(frozen=True)
class RunPlan:
    """One run."""

    name: str
    kind: str
    seed: int
    shape: Shape
    steps: int
    rate: float  # peak
    schedule: str
    decay: float
    beta2: float
    epsilon: float
    clip: float
    fault: Fault | None

    @property
    def planted(self) -> int | None:
        """The first step that is tampered with; None where trouble arises by itself, or there is none."""
        return self.fault.begin if self.fault is not None and self.kind in PLANTED else None

    @property
    def variant(self) -> str:
        """The model and the options of its optimizer."""
        return f"{self.shape.name} beta2={self.beta2:g} eps={self.epsilon:g} clip={self.clip:g} {self.schedule}"

    def rate_at(self, step: int) -> float:
        """Return the learning rate of the update of a step, counted from 0."""
        factor = 1.0
        if self.fault is not None and self.fault.acts(step):
            if self.kind == "rate kick":
                factor = self.fault.strength
            elif self.kind == "long warm-up":
                factor = 1 + (self.fault.strength - 1) * (step / self.steps) ** 2
            elif self.kind == "creeping rate":
                factor = self.fault.strength ** (step - self.fault.begin)
            elif self.kind == "schedule restart":
                step, factor = step - self.fault.begin + WARMUP_STEPS, self.fault.strength
        return self.rate * factor * self._schedule(step)

    def _schedule(self, step: int) -> float:
        if step < WARMUP_STEPS:
            return (step + 1) / WARMUP_STEPS
        done = (step - WARMUP_STEPS) / max(1, self.steps - WARMUP_STEPS)
        if self.schedule == "cosine":
            return 0.1 + 0.45 * (1 + math.cos(math.pi * done))
        return min(1.0, 5 * (1 - done) + 0.1) if self.schedule == "wsd" else 1.0


@dataclass(frozen=True)
class Pack:
    """Runs of one shape and length, trained as one model."""

    name: str
    plans: tuple[RunPlan, ...]

    @property
    def shape(self) -> Shape:
        """The shape of all of them."""
        return self.plans[0].shape

    @property
    def steps(self) -> int:
        """The steps of all of them."""
        return self.plans[0].steps


@dataclass(frozen=True)
class Design:
    """The size of the population; `quick` is for a trial of a minute."""

    runs_per_kind: int = 20
    troubled_steps: int = 3200
    small_quiet: tuple[int, int] = (32, 8000)  # runs of each small shape, steps
    large_quiet: tuple[int, int] = (8, 3200)
    pack: int = 20  # most runs of a pack: does not depend on the workers, and neither do results
    shapes: tuple[Shape, ...] = SHAPES
    corpus: str = "python-docs"

    def __post_init__(self) -> None:
        for steps in (self.troubled_steps, self.small_quiet[1], self.large_quiet[1]):
            if steps < 1 or steps % CHUNK:
                raise ToposcopeError(f"steps: {steps} is no multiple of {CHUNK}, in which runs are logged")

    def packs(self) -> list[Pack]:
        """Return all packs, the longest first."""
        quiet = [
            self._plan(QUIET, shape, i, steps)
            for shape in self.shapes
            for runs, steps in [self.small_quiet if shape in SMALL else self.large_quiet]
            for i in range(runs)
        ]
        troubled = [
            self._plan(kind, self.shapes[(i + 3 * place) % len(self.shapes)], i, self.troubled_steps)
            for place, kind in enumerate(KINDS)
            for i in range(self.runs_per_kind)
        ]
        packs = [pack for plans in (quiet, troubled) for shape in self.shapes for pack in self._packed(plans, shape)]
        return sorted(packs, key=lambda pack: -pack.steps * len(pack.plans) * pack.shape.size.n_parameters)

    def _packed(self, plans: Sequence[RunPlan], shape: Shape) -> list[Pack]:
        alike = [plan for plan in plans if plan.shape == shape]
        kind = QUIET if alike and alike[0].kind == QUIET else "troubled"
        n_packs = math.ceil(len(alike) / self.pack)
        ends = [round(len(alike) * i / max(1, n_packs)) for i in range(n_packs + 1)]
        return [Pack(f"{kind}-{shape.name}-{i}", tuple(alike[a:b])) for i, (a, b) in enumerate(pairwise(ends))]

    def _plan(self, kind: str, shape: Shape, i: int, steps: int) -> RunPlan:
        """Draw the options of one run from its name alone."""
        name = f"{kind.replace(' ', '-')}-{shape.name}-{i}"
        seed = derive_seed(POPULATION, "early warnings", name)
        draw = np.random.default_rng(seed)
        low, high = np.log(QUIET_RATES)
        plan = RunPlan(
            name,
            kind,
            seed,
            shape,
            steps,
            rate=(BASE_RATE if shape.size.hidden < 32 else WIDE_RATE) * float(np.exp(draw.uniform(low, high))),
            schedule=str(draw.choice(SCHEDULES)),
            decay=float(draw.choice(DECAYS)),
            beta2=float(draw.choice(BETAS2)),
            epsilon=float(draw.choice(EPSILONS)),
            clip=float(draw.choice(CLIPS)),
            fault=None,
        )
        if kind == QUIET:
            return plan
        planting = (ARISING | PLANTED)[kind]
        low, high = np.log(planting.strength)
        begin = int(draw.integers(round(0.55 * steps), round(0.7 * steps)))
        fault = Fault(
            kind,
            begin={"long warm-up": 0, "creeping rate": steps // 3}.get(kind, begin),
            length=int(draw.integers(planting.length[0], planting.length[1] + 1)),
            strength=float(np.exp(draw.uniform(low, high))),
            block=int(draw.integers(shape.size.layers)),
            seed=seed,
        )
        schedule = {"long warm-up": "constant", "creeping rate": "constant", "schedule restart": "cosine"}.get(kind)
        return replace(plan, fault=fault, schedule=schedule or plan.schedule)


def quick_design() -> Design:
    """Return a population for a trial of a minute: every kind, little of each."""
    return Design(1, 1000, (4, 1200), (0, 200), shapes=SMALL[:2])
