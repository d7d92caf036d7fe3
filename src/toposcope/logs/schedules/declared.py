"""A learning-rate schedule as it is declared: ``cosine:steps=20000,final=0.1``, or ``0:0,500:3e-4,20000:3e-5``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.logs.raw import size_of
from toposcope.logs.schedules.logged import LoggedRates
from toposcope.logs.schedules.recognised import Plan, falling, recognise, warm_up_end
from toposcope.typing import Steps, Vector

OPTIONS = {
    "constant": (),
    "cosine": ("final", "cycles"),
    "linear": ("final",),
    "wsd": ("decay", "shape", "final"),
    "inverse_sqrt": (),
    "step": ("at", "factor"),
}
"""Options of each kind, besides ``steps``, ``warmup`` and ``peak``."""

DECAY_SHAPES = ("linear", "sqrt", "cosine")
DEFAULT_DECAY = 0.2
DEFAULT_FACTOR = 0.1
MAX_DIFFERENCE = 0.01  # share of the peak by which a plan may differ from the log without a remark


@dataclass(frozen=True)
class Declared:
    """A schedule as it was declared."""

    text: str
    kind: str  # a key of `OPTIONS`, or ``list``
    numbers: Mapping[str, float] = field(default_factory=dict)  # options by name
    shape: str = "linear"  # of the cool-down of ``wsd``
    at: tuple[float, ...] = ()  # where a ``step`` schedule decays: shares of its steps up to 1, steps above
    knots: tuple[tuple[int, float], ...] = ()  # steps and rates of a ``list``, linear in between

    @property
    def steps(self) -> int | None:
        """The declared number of steps; None if none was declared."""
        if self.knots:
            return self.knots[-1][0]
        return int(self.numbers["steps"]) if "steps" in self.numbers else None


def read_declared(text: str) -> Declared:
    """Read a declared schedule."""
    kind, _, rest = text.strip().partition(":")
    kind = kind.strip().replace("-", "_")
    if kind not in OPTIONS:
        if _number(kind) is not None:
            return Declared(text, "list", knots=_knots(text))
        raise ToposcopeError(f"schedule {text!r}: begin with one of {', '.join(OPTIONS)}, or list step:rate,step:rate")
    options: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        allowed = ("steps", "warmup", "peak", *OPTIONS[kind])
        if not equals or name not in allowed:
            raise ToposcopeError(f"schedule {text!r}: {part!r} is no option of {kind}; it takes {', '.join(allowed)}")
        options[name] = value
    shape = options.pop("shape", "linear")
    if shape not in DECAY_SHAPES:
        raise ToposcopeError(f"schedule {text!r}: the shape is one of {', '.join(DECAY_SHAPES)}")
    at = tuple(_checked(text, "at", value) for value in options.pop("at").split(";")) if "at" in options else ()
    if kind == "step" and not at:
        raise ToposcopeError(f"schedule {text!r}: declare where it decays, as in step:at=0.5;0.75")
    return Declared(text, kind, {name: _checked(text, name, value) for name, value in options.items()}, shape, at)


def multiples(declared: Declared, steps: Steps, last_step: int, warm_up: int, final: float) -> Vector:
    """Return a declared schedule as multiples of its peak."""
    t = np.minimum(steps, last_step).astype(np.float64)
    if declared.kind == "constant":
        rates = np.ones(len(t))
    elif declared.kind == "inverse_sqrt":
        rates = np.sqrt(max(warm_up, 1) / np.maximum(t, max(warm_up, 1)))
    elif declared.kind == "step":
        places = sorted(_in_steps(place, last_step) for place in declared.at)
        factor = declared.numbers.get("factor", DEFAULT_FACTOR)
        rates = factor ** np.searchsorted(places, t, side="right").astype(np.float64)
    elif declared.kind == "wsd":
        begin = max(warm_up, last_step - _in_steps(declared.numbers.get("decay", DEFAULT_DECAY), last_step))
        share = np.clip((t - begin) / max(1.0, last_step - begin), 0, 1)
        rates = final + (1 - final) * falling(declared.shape, share)
    else:
        cycles = declared.numbers.get("cycles", 1)
        share = np.clip((t - warm_up) / max(1, last_step - warm_up), 0, 1) * cycles
        # The last cycle ends at its final rate, not at the beginning of another one.
        share = np.where(share >= cycles, 1.0, share % 1.0)
        rates = final + (1 - final) * falling(declared.kind, share)
    return np.where(t < warm_up, t / max(warm_up, 1), rates)


def plan_of(declared: Declared, logged: LoggedRates | None, length: int, remarks: list[str]) -> Plan:
    """Return the declared rate at any steps, what is left out taken from the log; remarks are added of assumptions."""
    if declared.knots:
        steps, rates = (np.array(column, dtype=np.float64) for column in zip(*declared.knots, strict=True))
        return lambda t: np.interp(t.astype(np.float64), steps, rates)
    return _logged_cool_down(logged, declared, length, remarks) or _shape(logged, declared, length, remarks)


def _logged_cool_down(logged: LoggedRates | None, declared: Declared, length: int, remarks: list[str]) -> Plan | None:
    """Return the cool-down that is logged already, of one of which nothing more is declared."""
    if logged is None or declared.kind != "wsd" or set(declared.numbers) > {"steps"}:
        return None
    shape = recognise(logged.steps, logged.rates, length)
    if shape is None or shape.kind != "wsd":
        return None
    remarks.append(shape.words)
    return shape.rates


def _shape(logged: LoggedRates | None, declared: Declared, length: int, remarks: list[str]) -> Plan:
    """Return a declared shape with what it leaves out taken from the log; remarks are added of what was assumed."""
    numbers = declared.numbers
    peak = numbers.get("peak", logged.peak if logged is not None else 1.0)
    warm_up = numbers.get("warmup")
    if warm_up is None:
        warm_up = warm_up_end(logged.steps, logged.rates) if logged is not None else 0
        if logged is not None and len(logged.rates) > 1 and np.argmax(logged.rates) == len(logged.rates) - 1:
            remarks.append("learning rate still rises: its peak is taken to be reached; declare peak and warmup")
    elif warm_up < 1:
        warm_up *= length
    final = numbers.get("final")
    if final is None:
        final = _final(logged, declared, length, peak, warm_up, remarks)
    if declared.kind == "wsd" and "decay" not in numbers:
        remarks.append(f"the cool-down is taken to be the last {DEFAULT_DECAY:.0%} of {length:,} steps")
    return lambda t: peak * multiples(declared, np.asarray(t), length, round(warm_up), final)


def _final(
    logged: LoggedRates | None, declared: Declared, length: int, peak: float, warm_up: float, remarks: list[str]
) -> float:
    """Return the final rate as a share of the peak, from the logged decay; 0 if the log does not determine it."""
    if declared.kind not in ("cosine", "linear", "wsd"):
        return 0.0
    if logged is not None:
        fallen = 1 - multiples(declared, logged.steps.astype(np.int64), length, round(warm_up), 0.0)
        after = logged.steps > warm_up
        fallen, seen = fallen[after], 1 - logged.rates[after] / peak
        if len(fallen) and fallen.max() > MAX_DIFFERENCE:
            share = float(fallen @ seen / (fallen @ fallen))
            if (
                -MAX_DIFFERENCE < 1 - share < 1
                and np.abs(fallen * share - seen).max() <= MAX_DIFFERENCE * share * fallen.max()
            ):
                return float(np.clip(1 - share, 0, 1))
    remarks.append("the learning rate is taken to end at 0; declare final")
    return 0.0


def _in_steps(value: float, last_step: int) -> float:
    """Return a number of steps: values up to 1 are shares of the run."""
    return value * last_step if value <= 1 else value


def _knots(text: str) -> tuple[tuple[int, float], ...]:
    knots = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        step, _, rate = part.partition(":")
        numbers = _number(step), _number(rate)
        if numbers[0] is None or numbers[1] is None or min(numbers[0], numbers[1]) < 0 or numbers[0] % 1:
            raise ToposcopeError(f"schedule {text!r}: {part!r} is no step:rate, neither of them negative")
        knots.append((int(numbers[0]), numbers[1]))
    if len(knots) < 2 or any(a[0] > b[0] for a, b in pairwise(knots)):
        raise ToposcopeError(f"schedule {text!r}: list two or more steps in ascending order")
    return tuple(knots)


def _checked(text: str, name: str, written: str) -> float:
    """Return the value of an option; raise `ToposcopeError` if it is out of range."""
    value = _number(written)
    whole = name in ("steps", "cycles")
    if value is None or value < 0 or (whole and (value % 1 or value < 1)):
        raise ToposcopeError(
            f"schedule {text!r}: {name} is {'a whole' if whole else 'a positive'} number, not {written}"
        )
    if name in ("final", "factor") and value > 1:
        raise ToposcopeError(f"schedule {text!r}: {name} is a share of the peak, from 0 to 1, not {written}")
    if name == "peak" and value == 0:
        raise ToposcopeError(f"schedule {text!r}: the peak is above 0")
    return value


def _number(written: str) -> float | None:
    try:
        value = float(written)
    except ValueError:
        value = size_of(written)  # 12k
    return value if np.isfinite(value) else None
