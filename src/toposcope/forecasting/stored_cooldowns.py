"""Reads what ``toposcope cooldown --json`` wrote: what cool-downs of several lengths would bring."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from toposcope.errors import ToposcopeError, message_of
from toposcope.forecasting.cooldown import CoolDown, Decay, Merged, best_of
from toposcope.untrusted import bytes_of, json_as

_Steps = Annotated[int, msgspec.Meta(gt=0)]


class _Answer(msgspec.Struct):
    length: _Steps
    decay: Decay
    loss: float
    low: float
    high: float
    held: float
    now: float
    beyond: float
    notes: tuple[str, ...] = ()


class _Stored(msgspec.Struct):
    step: _Steps
    answers: list[_Answer]
    merged: list[Merged]
    headline: str = ""


def read_cool_downs(path: str | Path) -> tuple[CoolDown, ...]:
    """Return the cool-downs of a file that ``toposcope cooldown --json`` wrote, by length.

    Raises
    ------
    ToposcopeError
        If the file cannot be read, is no such file, or holds no answer; with what it says in its place.
    """
    try:
        stored = json_as(bytes_of(Path(path)), _Stored)
        merged = best_of(stored.merged, stored.step) if stored.answers else None
    except (OSError, ValueError) as error:
        raise ToposcopeError(
            f"{path}: not what `toposcope cooldown SERIES --json` writes ({message_of(error)})"
        ) from error
    if merged is None:
        raise ToposcopeError(f"{path}: it holds no cool-down. {stored.headline}".rstrip())
    return tuple(
        CoolDown(step=stored.step, merged=merged, **msgspec.structs.asdict(answer))
        for answer in sorted(stored.answers, key=lambda answer: answer.length)
    )


def nearest(cool_downs: Sequence[CoolDown], length: int) -> CoolDown:
    """Return the cool-down whose length is nearest, as a ratio."""
    return min(cool_downs, key=lambda each: abs(float(np.log(each.length / max(length, 1)))))
