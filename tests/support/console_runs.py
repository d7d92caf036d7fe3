"""A made-up run, and a console that keeps what is printed on it: what logs of training tools are written from."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import FunctionType


@dataclass(frozen=True)
class Row:
    """What a run knows at one step."""

    index: int
    step: int
    loss: float
    rate: float
    norm: float
    validation: float | None

    @property
    def time(self) -> datetime:
        return datetime(2024, 5, 1, 9, 12, 7, 123000) + timedelta(seconds=37.61 * self.index)


@dataclass(frozen=True)
class Run:
    """A run before any tool has printed it; ``skipped`` rows lie before its first (it was resumed)."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]
    rates: tuple[float, ...]
    norms: tuple[float, ...]
    validations: dict[int, float]
    last_step: int
    seed: int
    skipped: int = 0

    def rows(self) -> Iterator[Row]:
        columns = zip(self.steps, self.losses, self.rates, self.norms, strict=True)
        for index, (step, loss, rate, norm) in enumerate(columns, self.skipped):
            yield Row(index, step, loss, rate, norm, self.validations.get(step))

    def trained(self) -> Iterator[Row]:
        """Rows after at least one step: most tools print nothing before it."""
        return (row for row in self.rows() if row.step)

    def part(self, first: int, end: int | None = None) -> "Run":
        """The rows from ``first`` to ``end``, under the same plan."""
        cut = slice(first, end)
        columns = self.steps[cut], self.losses[cut], self.rates[cut], self.norms[cut]
        return Run(*columns, self.validations, self.last_step, self.seed, self.skipped + first)

    @property
    def every(self) -> int:
        return self.steps[1] - self.steps[0]

    @property
    def planned_rows(self) -> int:
        return self.last_step // self.every + 1

    def random(self) -> random.Random:
        return random.Random(self.seed)


def made_up_run(seed: int, n: int = 60, every: int = 10, *, seen: float = 1.0, validate_every: int = 5) -> Run:
    """``n`` rows, one every ``every`` steps from step 0: a power law with noise under a cosine rate.

    The run is planned to ``n / seen`` rows; each ``validate_every``-th row has a validation loss.
    """
    rng = random.Random(seed)
    steps = tuple(every * i for i in range(n))
    last = every * (math.ceil(n / seen) if seen < 1 else n - 1)
    floor, height, power = rng.uniform(1.5, 2.5), rng.uniform(4, 8), rng.uniform(0.2, 0.5)
    peak = 10 ** rng.uniform(-4.5, -2.5)

    def fall(step: int, offset: float, noise: float) -> float:
        return float(floor + offset + height * (1 + step / every) ** -power + rng.gauss(0, noise))

    warmup = max(1, last // 20)
    rates = tuple(peak * min(s / warmup, 0.05 + 0.95 * (1 + math.cos(math.pi * s / last)) / 2) for s in steps)
    norms = tuple(0.3 + 3 * (1 + i) ** -0.5 + abs(rng.gauss(0, 0.05)) for i in range(n))
    losses = tuple(fall(s, 0, 0.04) for s in steps)
    validations = {s: fall(s, 0.08, 0.01) for i, s in enumerate(steps) if i % validate_every == 0}
    return Run(steps, losses, rates, norms, validations, last, seed)


def diverged(run: Run, index: int) -> Run:
    """The run with NaN from a row on."""
    rows = len(run.steps) - index
    losses, norms = (values[:index] + (math.nan,) * rows for values in (run.losses, run.norms))
    validations = {s: math.nan if s >= run.steps[index] else value for s, value in run.validations.items()}
    return replace(run, losses=losses, norms=norms, validations=validations)


@dataclass(frozen=True)
class ConsoleLog:
    """A console log, and what it says; values are rounded as the text has them."""

    tool: str
    text: str
    loss: dict[int, float]
    validation: dict[int, float]
    rates: dict[int, float]
    grad_norms: dict[int, float]
    last_step: int | None
    counted: bool = False
    """True if the text states no step: steps are then 1, 2, 3, ... by rows with a loss."""
    step_name: str = ""
    """What a step is, where it is not simply the step that a row states."""
    table: bool = False
    """True if the text is one table or one animated line, before whose lines nothing can be put."""


Writer = Callable[[Run], ConsoleLog]


class Printed(float):
    """A value of a run; wherever it is formatted, the console keeps what was printed."""

    kept: dict[int, float]
    step: int

    def __format__(self, spec: str) -> str:
        text = float.__format__(float(self), spec)
        self.kept[self.step] = float(text)
        return text


@dataclass
class Console:
    """The console of one tool; each value is kept as it is put into a line."""

    tool: str
    parts: list[str] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)
    validations: dict[int, float] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)

    def rows(self, run: Run, step_of: Callable[[Row], int] = lambda row: row.step) -> Iterator[Row]:
        """Rows whose values are kept when they are formatted, each at the step that the tool gives it."""

        def printed(value: float, kept: dict[int, float], row: Row) -> Printed:
            number = Printed(value)
            number.kept, number.step = kept, step_of(row)
            return number

        for row in run.rows():
            yield replace(
                row,
                loss=printed(row.loss, self.losses, row),
                rate=printed(row.rate, self.rates, row),
                norm=printed(row.norm, self.norms, row),
                validation=None if row.validation is None else printed(row.validation, self.validations, row),
            )

    def trained(self, run: Run, step_of: Callable[[Row], int] = lambda row: row.step) -> Iterator[Row]:
        """As `rows`, after at least one step."""
        return (row for row in self.rows(run, step_of) if row.step)

    def line(self, text: str = "") -> None:
        self.parts.append(text + "\n")

    def raw(self, text: str) -> None:
        """Print text without the end of a line."""
        self.parts.append(text)

    def loss(self, step: int, text: str) -> str:
        return _keep(self.losses, step, text)

    def validation(self, step: int, text: str) -> str:
        return _keep(self.validations, step, text)

    def rate(self, step: int, text: str) -> str:
        return _keep(self.rates, step, text)

    def norm(self, step: int, text: str) -> str:
        return _keep(self.norms, step, text)

    def log(
        self, last_step: int | None = None, *, counted: bool = False, step_name: str = "", table: bool = False
    ) -> ConsoleLog:
        kept = self.losses, self.validations, self.rates, self.norms
        return ConsoleLog(self.tool, "".join(self.parts), *kept, last_step, counted, step_name, table)


def _keep(values: dict[int, float], step: int, text: str) -> str:
    values[step] = float(text)
    return text


def writers(module: dict[str, object]) -> tuple[Writer, ...]:
    """The writers of a module: its functions of a run alone, in their order."""
    own = (f for name, f in module.items() if isinstance(f, FunctionType) and not name.startswith("_"))
    return tuple(f for f in own if f.__module__ == module["__name__"] and list(f.__annotations__) == ["run", "return"])


def bar(done: int, total: int, seconds_per_step: float = 0.43, *, width: int = 10, ascii_only: bool = False) -> str:
    """A bar as tqdm draws it, without what may stand before or after it."""
    symbols = " 123456789#" if ascii_only else " ▏▎▍▌▋▊▉█"
    share = done / total
    full, eighths = divmod(int(share * width * (len(symbols) - 1)), len(symbols) - 1)
    drawn = symbols[-1] * full + (symbols[eighths] + " " * (width - full - 1) if full < width else "")
    speed = f"{seconds_per_step:5.2f}s/it" if seconds_per_step > 1 else f"{1 / seconds_per_step:5.2f}it/s"
    elapsed, left = duration(done * seconds_per_step), duration((total - done) * seconds_per_step)
    return f"{share:4.0%}|{drawn}| {done}/{total} [{elapsed}<{left}, {speed}]"


def duration(seconds: float) -> str:
    """A time as tqdm prints it."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours:d}:{m:02d}:{s:02d}" if hours else f"{m:02d}:{s:02d}"
