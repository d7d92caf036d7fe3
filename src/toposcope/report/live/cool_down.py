"""What the page says of a cool-down from now on: as ``toposcope cooldown`` measured it, or how to measure it."""

import json
import math
import shlex
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toposcope.logs.watched import monitor_facts
from toposcope.report.live.fleet import range_words
from toposcope.wording import loss_words, sentence

STORED = "cooldown.json"  # in the folder of the run: what ``toposcope cooldown --json`` wrote
OF_NOW = 0.9  # of the steps so far: what was measured later counts as measured now
MIN_SAVED, WINDOW = 7, 0.3  # checkpoints of the last three tenths of the steps, that measuring a cool-down takes
MAX_CHANGE = 0.05  # of the learning rate there


def stamp(folder: Path) -> int:
    """Return a number that changes when what is stored in a folder does; 0 where nothing is."""
    try:
        return (folder / STORED).stat().st_mtime_ns
    except OSError:
        return 0


def _finite(text: str) -> float:
    """Read a number; NaN and what is beyond any float is none (`ValueError`)."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no number")
    return value


def measured_words(folder: Path, step: int | None) -> str:
    """Return a sentence on the cool-down that is stored in the folder of a run; empty if none is, or not yet."""
    try:
        content = (folder / STORED).read_bytes()
    except OSError:
        return ""
    if not content:  # it is being measured
        return ""
    try:
        stored = json.loads(content, parse_float=_finite, parse_constant=_finite)
        at, asked, text = int(stored["step"]), stored["asked"], str(stored["text"])
        answer = next((each for each in stored["answers"] if each["length"] == asked), None)
        if answer is None:
            return sentence(f"Of a cool-down started at step {at:,}: {stored['headline']!s}")
        return _words(answer, at, text, is_now=step is None or at >= OF_NOW * step)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return f"{folder / STORED}: not what `toposcope cooldown --json` writes."


def _words(answer: Mapping[str, Any], at: int, text: str, *, is_now: bool) -> str:
    started, would = ("now", "would end") if is_now else (f"at step {at:,}", "would have ended")
    gain = f"{loss_words(answer['gain'])} below" if answer["gain"] > 0 else "no lower than"
    again = "" if is_now else "; measure it again"
    return (
        f"A cool-down started {started} {would} at {range_words(answer)} after {answer['length']:,} steps, {gain} "
        f"holding the rate: by merged checkpoints up to step {at:,}, on {text}{again}."
    )


def how_to_measure(c: sqlite3.Connection, run: str, folder: Path) -> tuple[str, str]:
    """Return a sentence and the command that measures a cool-down, where its checkpoints are known; else nothing."""
    saved = monitor_facts(c, run).get("checkpoints")
    if not isinstance(saved, Mapping) or stamp(folder):
        return "", ""
    rows = "FROM log WHERE run = :run AND learning_rate > 0"
    (last,) = c.execute(f"SELECT MAX(step) {rows}", {"run": run}).fetchone()
    if last is None:
        return "", ""
    since = (1 - WINDOW) * last
    steps = [step for step in saved.get("steps", ()) if isinstance(step, int) and step >= since]
    low, high = c.execute(
        f"SELECT MIN(learning_rate), MAX(learning_rate) {rows} AND step >= :since", {"run": run, "since": since}
    ).fetchone()
    if len(steps) < MIN_SAVED or high - low > MAX_CHANGE * high:
        return "", ""
    place, here, stored = (shlex.quote(str(path)) for path in (saved.get("folder", ""), folder, folder / STORED))
    return (
        f"{len(steps)} checkpoints were saved at a constant learning rate. Where a cool-down started now would end "
        "takes more than the monitor's budget to measure; this does, and shows it here:",
        f"toposcope cooldown {place} --log {here} --json > {stored}",
    )
