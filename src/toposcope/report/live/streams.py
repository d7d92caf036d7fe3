"""Server-sent events: one stream per page, and polls of the database while any stream is open."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool

from toposcope.report.columns import to_json
from toposcope.report.live.feed import Position

POLL_SECONDS = 0.25
POLLS_PER_SEARCH = 8
"""Polls between searches for new studies."""
HEARTBEAT_SECONDS = 15
MIN_SECONDS = 0.3
"""Least time between two messages of a stream."""
RETRY_MS = 1500
"""Time after which a browser reconnects."""
MAX_STREAMS = 4
"""Open streams of one browser, which allows six connections to a server for all its tabs. With more tabs, the oldest
stream is closed and the browser reopens it: the tabs take turns, and each gets all rows."""

Messages = Callable[[Position], Awaitable[tuple[dict[str, Any], Position]]]


class Hub:
    """Wakes the streams when something is new.

    Parameters
    ----------
    look : callable
        Takes whether to search for new studies too; returns whether anything is new. It may take a while.
    """

    def __init__(self, look: Callable[[bool], bool]) -> None:
        self._look = look
        self._streams: list[Stream] = []
        self._poller: asyncio.Task[None] | None = None

    def open(self, stream: "Stream") -> None:
        """Add a stream; if its browser has too many, close the oldest."""
        self._streams.append(stream)
        of_client = [each for each in self._streams if each.client == stream.client and not each.is_ended]
        for each in of_client[:-MAX_STREAMS]:
            each.end()
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll())

    def leave(self, stream: "Stream") -> None:
        """Remove a stream, and stop polling if it was the last."""
        if stream in self._streams:
            self._streams.remove(stream)
        if not self._streams and self._poller is not None:
            self._poller.cancel()
            self._poller = None

    def close(self) -> None:
        """End all streams."""
        for stream in list(self._streams):
            stream.end()
            self.leave(stream)

    async def _poll(self) -> None:
        polls = 0
        while True:
            polls += 1
            if await run_in_threadpool(self._look, polls % POLLS_PER_SEARCH == 0):
                for stream in self._streams:
                    stream.news.set()
            await asyncio.sleep(POLL_SECONDS)


class Stream:
    """The events of one page.

    Parameters
    ----------
    hub : Hub
    client : str
        Identifies a browser, the same for all its tabs.
    """

    def __init__(self, hub: Hub, client: str) -> None:
        self._hub = hub
        self.client = client
        self.news = asyncio.Event()
        self.is_ended = False

    def end(self) -> None:
        """End the stream before its next message."""
        self.is_ended = True
        self.news.set()

    async def events(self, messages: Messages, known: Position) -> AsyncIterator[str]:
        """Yield messages with what is new after a position, and heartbeats in between.

        The identifier of an event is the position of the page, so that any server can continue from there.
        """
        self._hub.open(self)
        try:
            yield f"retry: {RETRY_MS}\n\n"
            while not self.is_ended:
                self.news.clear()
                message, known = await messages(known)
                yield f"id: {json.dumps(known, separators=(',', ':'))}\ndata: {to_json(message)}\n\n"
                sent = time.monotonic()
                while not await self._has_news():
                    yield "event: alive\ndata:\n\n"
                await asyncio.sleep(max(0.0, MIN_SECONDS - (time.monotonic() - sent)))
        finally:
            self._hub.leave(self)

    async def _has_news(self) -> bool:
        """Wait for news until the next heartbeat is due; return whether there is any."""
        try:
            await asyncio.wait_for(self.news.wait(), HEARTBEAT_SECONDS)
        except TimeoutError:
            return False
        return True
