"""The sweeps that are trained: three networks, nine kinds of sweep, and the settings of their runs."""

from typing import NamedTuple

import msgspec
import numpy as np

from toposcope.extend import Matrix, Steps, Vector, derive_seed

LSTM, MIXER, VISION = "lstm", "mixer", "vision"
PLAIN, LENGTHS, DIVERGENCE, RESTARTS, ONE_CYCLE = "plain", "lengths", "divergence", "restarts", "one-cycle"
SCHEDULE_FREE, SIZES, TAKE_OFF, LONGER, LATE = "schedule-free", "sizes", "take-off", "longer", "late bloomers"
KINDS = (PLAIN, LENGTHS, DIVERGENCE, RESTARTS, ONE_CYCLE, SCHEDULE_FREE, SIZES, TAKE_OFF)
EVERY = 15  # steps between two evaluations
FINAL, COOL_DOWN = 0.1, 0.2  # where a cosine ends, over its peak; the share of a wsd schedule that is its cool-down


class Design(msgspec.Struct, frozen=True):
    """How many sweeps there are, and how many runs each has."""

    repeats: int = 3  # of each network and kind
    runs: int = 32
    steps: int = 600
    longer: int = 2400
    first: int = 0  # number of the first repeat: other numbers are other sweeps


class Sweep(NamedTuple):
    """A sweep that is trained."""

    network: str
    kind: str
    repeat: int
    design: Design

    @property
    def name(self) -> str:
        """As in tables and files."""
        return f"{self.network}-{self.kind.replace(' ', '-')}-{self.repeat}"

    @property
    def steps(self) -> int:
        """Planned steps of its longest runs."""
        return self.design.longer if self.kind == LONGER else self.design.steps


class Settings(NamedTuple):
    """What the runs of a sweep differ in; each has shape (runs,), but for the rates."""

    last_step: Steps
    rates: Matrix  # shape (runs, steps): of each step, the first one first; 0 after the end
    warm_up: Steps  # steps until the peak
    weight_decay: Vector
    beta2: Vector
    schedule_free: Vector  # 1 or 0
    width: Vector  # share of the hidden units
    initial_scale: Vector
    schedule: tuple[str, ...]


def sweeps(design: Design) -> list[Sweep]:
    """Return every sweep of the design."""
    repeats, networks = range(design.first, design.first + design.repeats), (LSTM, MIXER, VISION)
    return [
        *(Sweep(net, kind, i, design) for i in repeats for kind in KINDS for net in networks),
        *(Sweep(net, LATE, i, design) for i in repeats for net in (LSTM, MIXER)),
        *(Sweep(net, LONGER, design.first, design) for net in networks),
    ]


def settings(sweep: Sweep) -> Settings:
    """Draw the settings of a sweep's runs."""
    n, steps, kind = sweep.design.runs, sweep.steps, sweep.kind
    rng = np.random.default_rng(derive_seed(sweep.repeat, sweep.network, kind))
    low, high = (0.01, 30.0) if kind == DIVERGENCE else (3e-4, 0.1)
    peak = np.exp(rng.uniform(np.log(low), np.log(high), n))
    lengths = rng.choice([steps // 4, steps // 2, steps], n) if kind in (LENGTHS, LONGER) else np.full(n, steps)
    shares = {ONE_CYCLE: [0.3, 0.4, 0.5]}.get(kind, [0.0, 0.02, 0.1, 0.3])
    warm_up = np.round(rng.choice(shares, n) * lengths).astype(np.int64)
    names = {RESTARTS: ["cosine", "cosine x2", "cosine x4"], ONE_CYCLE: ["linear", "cosine"]}
    schedule = tuple(rng.choice(names.get(kind, ["cosine", "linear", "wsd", "constant"]), n).tolist())
    free = rng.random(n) < 0.5 if kind == SCHEDULE_FREE else np.zeros(n, bool)
    schedule = tuple("constant" if f else name for f, name in zip(free, schedule, strict=True))
    rates = np.zeros((n, steps))
    for i in range(n):
        rates[i, : lengths[i]] = peak[i] * shape(schedule[i], int(lengths[i]), int(warm_up[i]))
    return Settings(
        lengths.astype(np.int64),
        rates,
        warm_up,
        rng.choice([0.0, 0.01, 0.1], n),
        rng.choice([0.95, 0.99, 0.999], n),
        free.astype(np.float64),
        rng.choice([0.25, 0.5, 1.0], n) if kind == SIZES else np.ones(n),
        np.exp(rng.uniform(np.log(0.03), 0, n)) if kind == TAKE_OFF else np.ones(n),
        schedule,
    )


def shape(schedule: str, length: int, warm_up: int) -> Vector:
    """Return a schedule over its peak at steps 1 to its last."""
    t = np.arange(1, length + 1)
    share = np.clip((t - warm_up) / max(length - warm_up, 1), 0, 1)
    if schedule.startswith("cosine"):
        cycles = int(schedule.partition("x")[2] or 1)
        cycle = np.where(share < 1, share * cycles % 1.0, 1.0)
        values = FINAL + (1 - FINAL) * (1 + np.cos(np.pi * cycle)) / 2
    elif schedule == "constant":
        values = np.ones(length)
    else:
        values = np.minimum(1.0, (1 - share) / (COOL_DOWN if schedule == "wsd" else 1.0))
    return np.where(t <= warm_up, t / max(warm_up, 1), values)
