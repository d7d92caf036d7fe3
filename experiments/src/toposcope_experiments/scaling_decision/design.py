"""Which models are trained, under which conditions, and between which computes one decides.

Four sizes of one depth, each next to a larger one it may be given up for. Compute is that of the matrix products of
training: 6 FLOP for each parameter in a matrix and each token, 12 for each entry of the residual stream and each
position it is compared with.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from toposcope.extend import derive_seed
from toposcope.family import Corpus, FamilyRun, ModelSize, TrainingOptions

CONTEXT = 128  # characters of a sequence
MIN_HEAD_WIDTH = 16
STRIDE = math.sqrt(2)  # between two computes of the grid
FURTHER = (STRIDE - 1, 1.0, 2 * STRIDE - 1)
"""Further compute, times the compute so far: going on then ends one, two or three points of the grid later."""
COOLED_SHARE = 0.1  # of the steps, over which the rate falls to nothing
WARMUP_STEPS = 20
FIRST_LOOK = 10  # steps; what is said of a decision looks back to a quarter of its compute
VALIDATION_SEQUENCES = 128
CORPORA = {"docs": "python-docs", "source": "python-source"}


@dataclass(frozen=True)
class Condition:
    """What a run is trained with, all but its size and its seed."""

    rate: float
    batch: int
    corpus: str  # of `CORPORA`
    data_share: float = 1.0
    initial_scale: float = 1.0

    @property
    def name(self) -> str:
        """What differs between conditions."""
        words = [f"rate {self.rate:g}", f"batch {self.batch}", self.corpus]
        if self.data_share != 1:
            words.append(f"share {self.data_share:g}")
        if self.initial_scale != 1:
            words.append(f"scale {self.initial_scale:g}")
        return ", ".join(words)


RATES, BATCHES = (0.0015, 0.003, 0.006), (2, 4, 8)
CONDITIONS = (
    *(Condition(rate, batch, corpus) for corpus in CORPORA for batch in BATCHES for rate in RATES),
    Condition(0.003, 4, "docs", data_share=0.03),
    Condition(0.003, 4, "source", data_share=0.03),
    Condition(0.006, 8, "docs", data_share=0.1),
    Condition(0.003, 4, "docs", initial_scale=4.0),
    Condition(0.003, 4, "source", initial_scale=4.0),
    Condition(0.006, 2, "docs", initial_scale=0.25),
    Condition(0.0015, 2, "source", initial_scale=2.0),
)


@dataclass(frozen=True)
class Pair:
    """A model and the next larger one, and where one decides between them."""

    small: int  # width
    large: int
    compute: float  # FLOP of the small model at the last decision
    n_points: int = 10

    @property
    def name(self) -> str:
        """The widths."""
        return f"{self.small} or {self.large}"

    @property
    def computes(self) -> list[float]:
        """FLOP so far at each decision, ascending."""
        return [self.compute * STRIDE ** (k + 1 - self.n_points) for k in range(self.n_points)]


@dataclass(frozen=True)
class Design:
    """All trainings of the experiment."""

    conditions: tuple[Condition, ...] = CONDITIONS
    pairs: tuple[Pair, ...] = (Pair(4, 8, 16e9), Pair(8, 16, 80e9), Pair(16, 32, 560e9))
    seeds: int = 2

    def packs(self, pair: Pair) -> list["Pack"]:
        """Return the runs of a pair that are trained together: those of one width, batch and corpus."""
        found = [
            Pack(self, pair, width, batch, corpus)
            for width in (pair.small, pair.large)
            for batch in BATCHES
            for corpus in CORPORA
        ]
        return [pack for pack in found if pack.conditions]


def quick_design() -> Design:
    """Return a trial of a few minutes, from which nothing can be told."""
    chosen = [c for c in CONDITIONS if c.batch == BATCHES[1] and c.data_share == 1 and c.initial_scale == 1]
    return Design(tuple(chosen), (Pair(4, 8, 8e9, 6), Pair(8, 16, 22.6e9, 6)))


def model_size(width: int) -> ModelSize:
    """Return the model of a width: one block."""
    return ModelSize(hidden=width, layers=1, heads=max(1, width // MIN_HEAD_WIDTH), context=CONTEXT)


def flops_of_step(width: int, batch: int) -> float:
    """Return the FLOP of the matrix products of one update."""
    size = model_size(width)
    matrices = 12 * width * width * size.layers + size.vocabulary * width
    return (6.0 * matrices + 12.0 * CONTEXT * width * size.layers) * batch * CONTEXT


def step_at(compute: float, width: int, batch: int) -> int:
    """Return the update that ends nearest to a compute, the first at least."""
    return max(1, round(compute / flops_of_step(width, batch)))


def cooling_from(end: int) -> int:
    """Return the last step before the rate falls, of a run that ends at a step."""
    return end - max(1, round(COOLED_SHARE * end))


@dataclass(frozen=True)
class Pack:
    """Runs of one shape that read one corpus, trained for one pair: each condition with each of its seeds."""

    design: Design
    pair: Pair
    width: int
    batch: int
    corpus: str

    @property
    def name(self) -> str:
        """Name of its files."""
        return f"{self.pair.small}-{self.pair.large}-width-{self.width}-batch-{self.batch}-{self.corpus}"

    @property
    def conditions(self) -> list[Condition]:
        """Those of its batch and corpus."""
        return [c for c in self.design.conditions if (c.batch, c.corpus) == (self.batch, self.corpus)]

    @property
    def members(self) -> list[tuple[Condition, int]]:
        """Condition and number of the seed of each run."""
        return [(condition, seed) for condition in self.conditions for seed in range(self.design.seeds)]

    @cached_property
    def ends(self) -> list[int]:
        """Return the steps at which its runs end, cooled down."""
        so_far = 1.0 if self.width == self.pair.small else 0.0
        computes = [c * (so_far + more) for c in self.pair.computes for more in FURTHER]
        return sorted({step_at(compute, self.width, self.batch) for compute in computes})

    @cached_property
    def looks(self) -> list[int]:
        """Return the steps at which a run that may be given up is looked at: the decisions, and before them."""
        if self.width != self.pair.small:
            return []
        steps = {step_at(compute, self.width, self.batch) for compute in self.pair.computes}
        compute = self.pair.computes[0]
        while (step := step_at(compute, self.width, self.batch)) >= FIRST_LOOK:
            steps.add(step)
            compute /= STRIDE
        return sorted(steps)

    @cached_property
    def branches(self) -> dict[int, list[int]]:
        """Where cool-downs leave the trunk, and where each ends."""
        found: dict[int, list[int]] = {}
        for end in self.ends:
            found.setdefault(cooling_from(end), []).append(end)
        return found

    @property
    def flops(self) -> float:
        """Of all its trainings."""
        last = max([*self.looks, *self.branches])
        cooled = sum(end - start for start, ends in self.branches.items() for end in ends)
        return (last + cooled) * flops_of_step(self.width, self.batch) * len(self.members)

    def runs(self) -> Sequence[FamilyRun]:
        """Return the declaration of each run; no seed is that of another condition."""
        return [
            FamilyRun(
                name=f"{condition.name}, seed {seed}",
                size=model_size(self.width),
                corpus=corpus_of(self.corpus),
                training=TrainingOptions(
                    steps=self.ends[-1],
                    batch_size=self.batch,
                    learning_rate=condition.rate,
                    schedule="constant",
                    warmup_steps=min(WARMUP_STEPS, self.ends[-1]),
                    validation_sequences=VALIDATION_SEQUENCES,
                    data_share=condition.data_share,
                    initial_scale=condition.initial_scale,
                    seed=derive_seed(seed, "scaling decision", condition.name) % 2**31,
                ),
            )
            for condition, seed in self.members
        ]


def corpus_of(name: str) -> Corpus:
    """Return the text of a condition."""
    return Corpus(source=CORPORA[name])
