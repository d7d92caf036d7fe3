"""Progress on standard error: a bar for each stage in a terminal, else a line now and then."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import TaskID

    from toposcope.progress import Progress

BYTE_STAGES = ("read", "examine")  # stages whose progress is in bytes
TIMED_STAGES = ("measure",)  # stages whose progress is in milliseconds of expected work
PACED_STAGES = {"landscape": "evaluations", "eigenvectors": "products at most"}
"""Stages of few long parts, whose pace is known soon after the first, and what their parts are."""
SECONDS_BETWEEN_LINES = 30
MIN_WIDTH = 65  # characters of a terminal that has room for a bar next to the words
TERMINAL_VARIABLES = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""With one of them, Rich may find a terminal where the system finds none."""


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Show a bar for each stage, on standard error, with its remaining time.

    Without a terminal, or in a narrow or dumb one, print a line when a stage starts and ends, and every half minute in
    between.
    """
    # Rich takes long to import. A process that was started without a standard error has none.
    has_terminal = sys.stderr is not None and sys.stderr.isatty()
    if not (has_terminal or any(os.environ.get(name) for name in TERMINAL_VARIABLES)):
        yield _progress_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, color_system=None if os.environ.get("NO_COLOR") else "auto")
    if not console.is_interactive or console.width < MIN_WIDTH:
        yield _progress_lines()
        return
    columns = (
        TextColumn("{task.description:>12}"),
        BarColumn(min(40, console.width - MIN_WIDTH + 5)),
        TextColumn("{task.fields[progress]:>17}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console) as display:
        stages: dict[str, _Stage] = {}
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if _begins(stages, what, done, total):
                if what in tasks:
                    display.remove_task(tasks[what])
                tasks[what] = display.add_task(what, total=total, progress="", left="")
            stage = stages[what]
            if words := stage.estimate(done):
                display.console.print(f"{what}: {words}", highlight=False)
            display.update(tasks[what], completed=done, progress=stage.progress(done), left=stage.left(done))

        yield progress


def _progress_lines() -> Progress:
    """Return what prints a line when a stage starts, when it ends, and every half minute in between."""
    stages: dict[str, _Stage] = {}

    def progress(what: str, done: int, total: int) -> None:
        if _begins(stages, what, done, total):
            click.echo(f"{what}: started, {stages[what].to_do()}", err=True)
        if words := stages[what].estimate(done):
            click.echo(f"{what}: {words}", err=True)
        elif stages[what].is_due(done):
            click.echo(f"{what}: {stages[what].line(done)}", err=True)

    return progress


def _begins(stages: dict[str, _Stage], what: str, done: int, total: int) -> bool:
    """Return whether a stage starts, or one of the same name starts again, as a second wave of measuring does."""
    if what in stages and stages[what].total == total:
        return False
    stages[what] = _Stage(what, total)
    return True


@dataclass
class _Stage:
    """One stage of the work, and the words for its progress."""

    what: str
    total: int
    started: float = field(default_factory=monotonic)
    last_line: float = field(default_factory=monotonic)
    is_done: bool = False
    first: tuple[float, int] | None = None
    """When its first part was done, and how much that was."""
    is_paced: bool = False

    def to_do(self) -> str:
        """Return the amount of work, or for a timed stage how long it takes."""
        return (_duration(self.total / 1000) if self.what in TIMED_STAGES else self._amount(self.total)) + " to do"

    def progress(self, done: int) -> str:
        """Return the share or the amount that is done."""
        if self.what in TIMED_STAGES or self.what in PACED_STAGES:
            return f"{100 * done // max(self.total, 1)}%"
        return f"{self._amount(done)}/{self._amount(self.total)}"

    def left(self, done: int) -> str:
        """Return the remaining time: as expected until a tenth is done, then from the speed so far."""
        if done >= self.total:
            return ""
        if self.what in PACED_STAGES:
            pace = self._pace(done)
            return f"{_duration(pace * (self.total - done))} left" if pace else ""
        if 10 * done >= self.total:
            return f"{_duration((monotonic() - self.started) * (self.total - done) / done)} left"
        return f"{_duration((self.total - done) / 1000)} left" if self.what in TIMED_STAGES else ""

    def _pace(self, done: int) -> float | None:
        """Return the seconds for each unit since the first part, in which all threads start, and none has ended."""
        now = monotonic()
        if self.first is None and done:
            self.first = now, done
        if self.first is None or done == self.first[1] or now - self.first[0] < self.first[0] - self.started:
            return None
        return (now - self.first[0]) / (done - self.first[1])

    def estimate(self, done: int) -> str:
        """Return once, as soon as there is a pace, how much there is to do and how long all of it takes."""
        if self.what not in PACED_STAGES or self.is_paced or done >= self.total or not (pace := self._pace(done)):
            return ""
        self.is_paced, self.last_line = True, monotonic()
        return f"{self.total:,} {PACED_STAGES[self.what]}, {_duration(pace * self.total)}"

    def is_due(self, done: int) -> bool:
        """Return whether to print a line: at intervals, and once at the end."""
        if done < self.total and monotonic() - self.last_line <= SECONDS_BETWEEN_LINES:
            return False
        was_done, self.last_line, self.is_done = self.is_done, monotonic(), done >= self.total
        return not was_done

    def line(self, done: int) -> str:
        """Return the progress and the remaining time."""
        return "done" if done >= self.total else ", ".join(filter(None, (self.progress(done), self.left(done))))

    def _amount(self, n: int) -> str:
        from rich.filesize import decimal

        return decimal(n) if self.what in BYTE_STAGES else str(n)


def _duration(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / 60)} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
