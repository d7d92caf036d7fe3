"""Runs the report's analyses of a growing study in background processes, from time to time."""

import asyncio
import json
import sqlite3
import time
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool

from toposcope.report.live.assets import last_line, maker_command
from toposcope.report.live.feed import Feed

MIN_GROWTH = 1.2  # growth in measured steps after which a new analysis is due
MIN_ANALYSIS_SECONDS = 180  # least time between the end of one analysis and the start of the next

MIN_CHECKPOINTS = 8  # measured steps that a run needs to be analysed
START_SECONDS = 2  # delay of an analysis, so that a page that was just opened can draw its charts first


@dataclass
class Analysis:
    """State of the analysis of one study."""

    version: int = 0  # number of finished analyses
    n_steps: int = 0  # measured steps that the last analysis covers
    step: int = 0  # last step that it covers
    ended: float = 0.0  # when it ended, in seconds of a monotonic clock
    fault: str = ""  # why the last analysis failed; empty if it did not
    made: bytes = b""  # the last one that did not, as JSON
    task: "asyncio.Task[None] | None" = None  # the analysis in progress

    def is_due(self, n: int, now: float) -> bool:
        """Return whether a study with `n` measured steps should be analysed now."""
        if self.task is not None:
            return False
        return not self.n_steps or (n >= MIN_GROWTH * self.n_steps and now - self.ended >= MIN_ANALYSIS_SECONDS)


class Analyses:
    """The analyses of the studies of a feed, one at a time."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._analyses: dict[str, Analysis] = {}
        self._turn = asyncio.Lock()

    async def consider(self, name: str) -> None:
        """Start an analysis of a study if one is due."""
        try:
            longest, n, step = await run_in_threadpool(self._feed.growth, name)
        except (KeyError, sqlite3.Error):
            return
        known = self._analyses.setdefault(name, Analysis())
        if longest >= MIN_CHECKPOINTS and known.is_due(n, time.monotonic()):
            known.task = asyncio.get_running_loop().create_task(self._make(name, known, n, step))

    def version(self, name: str) -> int:
        """Return the number of finished analyses of a study."""
        return self._analyses.get(name, Analysis()).version

    def text(self, name: str, longest: int) -> str:
        """Return the status of a study's analysis, in sentences; its longest run has `longest` measured steps."""
        known = self._analyses.get(name, Analysis())
        if longest < MIN_CHECKPOINTS:
            return (
                f"Association with the loss, phases, layers and the other sections need a run with {MIN_CHECKPOINTS} "
                f"measured steps; the longest has {longest} so far."
            )
        texts = [f"As of step {known.step:,}."] if known.version else []
        if known.task is not None:
            texts.append("A newer analysis is running." if known.version else "The analysis is running.")
        if known.fault:
            texts.append(f"The last analysis failed: {known.fault}")
        return " ".join(texts)

    def result(self, name: str) -> dict[str, Any] | None:
        """Return the last analysis of a study; None if there is none."""
        known = self._analyses.get(name)
        return json.loads(known.made) if known is not None and known.made else None

    async def close(self) -> None:
        """Cancel running analyses."""
        tasks = [known.task for known in self._analyses.values() if known.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, name: str, known: Analysis, n: int, step: int) -> None:
        try:
            await asyncio.sleep(START_SECONDS)
            async with self._turn:
                directory = self._feed.stores[name].directory
                process = await asyncio.create_subprocess_exec(
                    *maker_command("analysis", str(directory)),
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                )
                try:
                    made, errors = await process.communicate()
                except asyncio.CancelledError:
                    process.kill()
                    await process.wait()
                    raise
            known.n_steps, known.ended = n, time.monotonic()
            known.fault = last_line(errors) if process.returncode else ""
            if not process.returncode:
                known.made, known.version, known.step = made, known.version + 1, step
        finally:
            known.task = None
