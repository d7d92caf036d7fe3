"""The training step of a checkpoint, from its name or from what is saved in it, and which steps to use."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal

import msgspec
import numpy as np

from toposcope.errors import ToposcopeError

MAX_STEP = 2**63 - 1  # largest integer that the database can hold
STEP_COUNTERS = (
    *("global_step", "global_steps", "iter_num", "iteration", "iterations", "iter", "iters", "step", "steps"),
    *("step_num", "train_step", "train_steps", "current_step", "num_updates"),
)
EPOCH_COUNTERS = ("epoch", "epochs", "current_epoch", "epoch_num")
TOKEN_COUNTERS = ("tokens", "tokens_seen", "num_tokens", "n_tokens", "consumed_tokens", "ntokens_seen")
COUNTERS = (*STEP_COUNTERS, *EPOCH_COUNTERS, *TOKEN_COUNTERS)
"""Names under which trainers save how far a run is, the most reliable first."""

# What may follow a step: no unit (10k), no decimal (1.5), no count of shards (00001-of-00002, 00-model_states). Before:
# no groups of thousands (1_000).
_STEP = r"(?![1-9]\d{0,2}(?:[_ ']\d{3})+(?!\d))(\d{1,18})(?![\da-z]|[.,]\d|-of-\d|-model_states)"
# After a word that need not mean a step, eight digits may be a date: 20240501, 2024-05-01, or with a time.
_NO_DATE = r"(?!(?:19|20)\d\d[-_.]?(?:0[1-9]|1[0-2])[-_.]?(?:0[1-9]|[12]\d|3[01])(?:[-_T]?\d{4,6})?(?!\d))"
# The most specific word wins: an epoch next to a step is not the step. Those from the third on may count epochs.
_WORDS = (
    "steps?[-_= ]?+",
    rf"(?<![a-z])(?:iter(?:ation)?s?[-_= ]?+|ba){_NO_DATE}",
    rf"(?<![a-z])(?:checkpoint|ckpt)[-_= ]?+{_NO_DATE}",
    # model2 is a version
    rf"(?<![a-z])model[-_= ]{_NO_DATE}",
    rf"(?<![a-z])ep(?:och)?s?[-_= ]?+{_NO_DATE}",
)
_PATTERNS = [
    *(re.compile(text + _STEP, re.IGNORECASE | re.ASCII) for text in _WORDS),
    re.compile(f"^{_NO_DATE}{_STEP}$", re.ASCII),
]
_COUNT_OF = ("step", "step", "step or epoch", "step or epoch", "epoch", "step or epoch")  # by each pattern
# What stands where a step does and is no plain number (1e9, 0x10, 1_000, -5, digits of other scripts). After words that
# need not mean a step, a size, a version, a hash or a date may stand as well.
_ODD = r"0x[\da-f]+|\d+(?:\.\d+)?e[-+]?\d+|\d+(?:[_ ']\d{3})+|[-+]\d+|[^\x00-\x7f]+"
_ODD_NUMBERS = [
    re.compile(text, re.IGNORECASE)
    for text in (
        *(rf"{_WORDS[place]}[-+=. ]*(\w)" for place in (0, 1)),
        rf"{_WORDS[2]}(?=(?:{_ODD}|[\d.]+k)(?![\da-z]))[-+]*(\w)",
        rf"{_WORDS[3]}(?=(?:{_ODD})(?![\da-z]))[-+]*(\w)",
        rf"{_WORDS[4]}[-+=. ]*(\w)",
        rf"^{_NO_DATE}(?=(?:{_ODD})$)[-+]*(\w)",
    )
]
_COMMIT = re.compile(r"[0-9a-f]{40}")  # its letters and digits say nothing
_TOKENS = re.compile(
    r"(?<![\da-z])tok(?:en)?s?[-_=]?(\d{1,18}(?:\.\d{1,18})?)([KMBT]?)(?![\da-z]|\.\d)", re.IGNORECASE | re.ASCII
)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def step_of(stem: str, pattern: re.Pattern[str] | None = None) -> int | None:
    """Return the step in a file or folder name without its ending, or None."""
    if pattern is not None:
        found = pattern.search(stem)
        digits = found.group(1) if found is not None else None
        if digits is not None and not (digits.isascii() and digits.isdigit() and len(digits) < len(str(MAX_STEP))):
            raise ToposcopeError(
                f"step pattern {pattern.pattern!r}: finds {digits[:40]!r} in {stem!r}, which is no step; its group "
                "must hold digits alone"
            )
        return None if digits is None else int(digits)
    for place, candidate in enumerate(() if _COMMIT.fullmatch(stem) else _PATTERNS):
        if match := candidate.search(stem):
            return int(match.group(1))
        if _is_odd(stem, place):
            return None
    return None


_COUNTED = re.compile(
    r"(?:ep(?:och)?s?|iter(?:ation)?s?|ba|tok(?:en)?s?|checkpoint|ckpt|stage|phase|ingredient)[-_= ]?\d+[KMBT]?"
    r"(?![a-z])|[a-z_]+=[-\d.]+|\d+\.\d+|(?:19|20)\d\d[-_.]?\d\d[-_.]?\d\d(?:[-_T]?\d{4,6})?",
    re.IGNORECASE,
)
"""What differs between the names of one run's checkpoints besides the step: other counters, losses, dates."""


def run_of(stem: str) -> tuple[str, str]:
    """Return what all checkpoints of a run share before their step, and a pattern of the step in names like this."""
    match = next(match for rule in _PATTERNS if (match := rule.search(stem)))
    shared = _COUNTED.sub("", stem[: match.start()]).strip("-_.= ").lower()
    return shared, f"{re.escape(stem[: match.start(1)])}(\\d+)"


def has_odd_step(stem: str) -> bool:
    """Return whether a name has a number in the place of a step that is no plain number of steps."""
    if _COMMIT.fullmatch(stem) or step_of(stem) is not None:
        return False
    return any(_is_odd(stem, place) for place in range(len(_ODD_NUMBERS)))


def _is_odd(stem: str, place: int) -> bool:
    match = _ODD_NUMBERS[place].search(stem)
    return match is not None and match.group(1).isnumeric()


def step_within(stated: Mapping[str, int]) -> int | None:
    """Return the step among the counters that a checkpoint states, or else the epoch; None without either."""
    return next((stated[name] for name in (*STEP_COUNTERS, *EPOCH_COUNTERS) if name in stated), None)


def disagreement(spec: str, step: int, stated: Mapping[str, int]) -> str:
    """Return how the step that a checkpoint's place gives differs from the counter saved in it, or an empty text."""
    kind = counted_by(spec, step)
    if not kind or step in stated.values():
        return ""
    epochs = [stated[name] for name in EPOCH_COUNTERS if name in stated]
    if "epoch" in kind and any(abs(epoch - step) <= 1 for epoch in epochs):
        return ""
    word, compared = ("epoch", EPOCH_COUNTERS) if kind == "epoch" else ("step", STEP_COUNTERS)
    name = next((name for name in compared if name in stated), None)
    return "" if name is None else f"{word} {step} by its name, but {name} inside is {stated[name]}"


def counted_by(spec: str, step: int) -> str:
    """Return what the step in a name counts: ``step``, ``epoch``, ``step or epoch``; empty if it is not there."""
    for part in [*reversed(spec.rstrip("/").split("/"))][:2]:
        for stem in (part, part.rpartition(".")[0]):
            place = next((k for k, rule in enumerate(_PATTERNS) if rule.search(stem)), None)
            if place is not None and step_of(stem) == step:
                return _COUNT_OF[place]
    return ""


def step_pattern(text: str) -> re.Pattern[str]:
    """Return a pattern for `step_of` from a regular expression with one group of digits."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ToposcopeError(f"step pattern {text!r}: not a regular expression ({error})") from error
    if pattern.groups != 1:
        raise ToposcopeError(
            rf"step pattern {text!r}: has {pattern.groups} groups; the digits of the step go into one, such as it-(\d+)"
        )
    return pattern


def tokens_of(stem: str) -> int | None:
    """Return the number of tokens that a name holds, or None."""
    match = _TOKENS.search(stem)
    if not match:
        return None
    count = Decimal(match.group(1)) * _UNITS[match.group(2).upper()]
    return int(count) if count == int(count) <= MAX_STEP else None


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which checkpoints of a series to use; all by default.

    Attributes
    ----------
    steps : list of int
        Only these.
    every : int
        Only one in so many of these, from the first on; 0 for no condition.
    log_spaced : int
        At most so many of the rest: the first and the last, and between them those nearest to an even grid in the
        logarithm of the step. Step 0, which has no logarithm, is always the first. 1 is the last alone; 0 for no
        condition.
    """

    steps: list[int] = []
    every: int = 0
    log_spaced: int = 0

    def choose(self, steps: Sequence[int], spec: str) -> list[int]:
        """Return those of some ascending steps that fulfil all conditions.

        Parameters
        ----------
        steps : sequence of int
            Available steps.
        spec : str
            The series, for messages.

        Raises
        ------
        ToposcopeError
            If a step does not exist, or a condition is not valid.
        """
        for name, value in (("every", self.every), ("log_spaced", self.log_spaced)):
            if value < 0:
                raise ToposcopeError(f"{name} is {value}; it must be at least 1, or 0 for no condition")
        wanted = set(self.steps)
        missing = sorted(wanted - set(steps))
        if missing:
            there = f"it has {len(steps)}, from step {steps[0]} to {steps[-1]}" if steps else "it has none"
            raise ToposcopeError(f"{spec}: no checkpoint at step {missing[0]}; {there}")
        chosen = [s for s in steps if not wanted or s in wanted][:: self.every or 1]
        return _log_spaced(chosen, self.log_spaced) if self.log_spaced else chosen


def _log_spaced(steps: list[int], count: int) -> list[int]:
    """Return `count` steps: first and last, then, from below, the nearest one left to each point of the grid."""
    if len(steps) <= count:
        return steps
    if count == 1:
        return steps[-1:]
    zero = [s for s in steps if s == 0]
    positive = steps[len(zero) :]
    count -= len(zero)
    logs = np.log(np.array(positive, dtype=np.float64))
    chosen = [len(positive) - 1] if count == 1 else [0, len(positive) - 1]
    left = logs.copy()
    left[chosen] = np.inf
    for point in np.linspace(logs[0], logs[-1], max(count, 2))[1 : count - 1]:
        nearest = int(np.argmin(np.abs(left - point)))
        chosen.append(nearest)
        left[nearest] = np.inf
    return zero + [positive[k] for k in sorted(chosen)]
