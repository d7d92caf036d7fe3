"""The report's analyses of a study that grows: made by a process in the background, now and then."""

import asyncio
import json
import sqlite3
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from toposcope.report.live.assets import last_line, maker_command
from toposcope.report.live.feed import Feed

MIN_CHECKPOINTS = 8
"""Measured steps of a run, with fewer of which nothing is analysed."""
MIN_GROWTH = 1.2
"""So many times as many measured steps make a new analysis worth its time."""
MIN_SECONDS = 180
"""Between the end of one analysis and the start of the next."""
START_SECONDS = 2
"""Before an analysis begins: a page that was just opened draws its charts first."""


@dataclass
class Analysis:
    """Where the analysis of one study is.

    Attributes
    ----------
    version : int
        Counts those that were made.
    of : int
        Measured steps that the last one is of.
    step : int
        The last step it is of.
    ended : float
        When it ended, by a clock that only goes forward.
    fault : str
        Why the last one failed, or empty.
    task : asyncio.Task, optional
        The one that is being made.
    """

    version: int = 0
    of: int = 0
    step: int = 0
    ended: float = 0.0
    fault: str = ""
    task: "asyncio.Task[None] | None" = None

    def is_due(self, n: int, now: float) -> bool:
        """Return whether a study of so many measured steps should be analysed now."""
        if self.task is not None:
            return False
        return not self.of or (n >= MIN_GROWTH * self.of and now - self.ended >= MIN_SECONDS)


class Analyses:
    """The analyses of the studies of a feed, one at a time.

    Parameters
    ----------
    feed : Feed
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._of: dict[str, Analysis] = {}
        self._turn = asyncio.Lock()

    async def consider(self, name: str) -> None:
        """Begin an analysis of a study if it is time for one."""
        try:
            longest, n, step = await run_in_threadpool(self._feed.growth, name)
        except (KeyError, sqlite3.Error):
            return
        known = self._of.setdefault(name, Analysis())
        if longest >= MIN_CHECKPOINTS and known.is_due(n, time.monotonic()):
            known.task = asyncio.get_running_loop().create_task(self._make(name, known, n, step))

    def version(self, name: str) -> int:
        """Return how many analyses of a study were made."""
        return self._of.get(name, Analysis()).version

    def text(self, name: str, longest: int) -> str:
        """Return a sentence about the analysis of a study whose longest run has so many measured steps."""
        known = self._of.get(name, Analysis())
        if longest < MIN_CHECKPOINTS:
            return (
                f"Association with the loss, phases, layers and the other sections need {MIN_CHECKPOINTS} measured "
                f"steps of a run; there are {longest}."
            )
        texts = [f"As of step {known.step:,}."] if known.version else []
        if known.task is not None:
            texts.append("The analysis is being made anew." if known.version else "The analysis is being made.")
        if known.fault:
            texts.append(f"The last analysis failed: {known.fault}")
        return " ".join(texts)

    def result(self, name: str) -> dict[str, Any] | None:
        """Return the last analysis of a study; None if there is none."""
        if not self.version(name):
            return None
        made: dict[str, Any] = json.loads(self._file(name).read_bytes())
        return made

    async def close(self) -> None:
        """End what is being made."""
        tasks = [known.task for known in self._of.values() if known.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._folder is not None:
            self._folder.cleanup()

    def _file(self, name: str) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="toposcope-show-")
        return Path(self._folder.name) / f"{list(self._of).index(name)}.json"

    async def _make(self, name: str, known: Analysis, n: int, step: int) -> None:
        try:
            await asyncio.sleep(START_SECONDS)
            async with self._turn:
                partial = self._file(name).with_suffix(".partial")
                directory = self._feed.studies[name].directory
                with partial.open("wb") as output:
                    process = await asyncio.create_subprocess_exec(
                        *maker_command("analysis", str(directory)), stdout=output, stderr=asyncio.subprocess.PIPE
                    )
                    try:
                        _, errors = await process.communicate()
                    except asyncio.CancelledError:
                        process.kill()
                        await process.wait()
                        raise
            known.of, known.ended = n, time.monotonic()
            known.fault = last_line(errors) if process.returncode else ""
            if not process.returncode:
                partial.replace(self._file(name))
                known.version, known.step = known.version + 1, step
        finally:
            known.task = None
