"""Reads what ``toposcope cooldown --json`` wrote: what cool-downs of several lengths would bring."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from toposcope.errors import ToposcopeError, message_of
from toposcope.forecasting.cooldown import CoolDown, Decay, Merged
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
    at_least: tuple[str, ...] = ()
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
    except (OSError, ValueError) as error:
        raise ToposcopeError(
            f"{path}: not what `toposcope cooldown SERIES --json` writes ({message_of(error)})"
        ) from error
    if not stored.answers:
        raise ToposcopeError(f"{path}: it holds no cool-down. {stored.headline}".rstrip())
    return tuple(
        CoolDown(
            step=stored.step,
            merged=min(
                (each for each in stored.merged if each.window <= answer.length),
                key=lambda each: each.loss,
                default=Merged(0, answer.now, (1.0,)),
            ),
            **msgspec.structs.asdict(answer),
        )
        for answer in sorted(stored.answers, key=lambda answer: answer.length)
    )


def nearest(cool_downs: Sequence[CoolDown], length: int) -> CoolDown:
    """Return the cool-down whose length is nearest, as a ratio."""
    return min(cool_downs, key=lambda each: abs(float(np.log(each.length / max(length, 1)))))
