"""Server-sent events: one stream a page, polls of the database while anybody listens, and none otherwise."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool

from toposcope.report.columns import to_json
from toposcope.report.live.feed import Position

POLL_SECONDS = 0.25
POLLS_A_LOOK_AROUND = 8
"""Polls between two looks for new studies."""
HEARTBEAT_SECONDS = 15
MIN_SECONDS = 0.3
"""Between two messages of a stream."""
RETRY_MS = 1500
"""After which a browser connects again."""
MAX_STREAMS = 4
"""Of one browser, which has six connections to a server for all its tabs. Of more tabs, the oldest stream ends, and the
browser opens it again: the tabs take turns, and each gets all rows."""

Messages = Callable[[Position], Awaitable[tuple[dict[str, Any], Position]]]


class Hub:
    """Tells the streams when something is new.

    Parameters
    ----------
    look : callable
        Called with whether to look for new studies too; returns whether anything is new. It may take a while.
    """

    def __init__(self, look: Callable[[bool], bool]) -> None:
        self._look = look
        self._streams: list[Stream] = []
        self._poller: asyncio.Task[None] | None = None

    def open(self, stream: "Stream") -> None:
        """Begin to tell a stream; the oldest of too many of one browser ends."""
        self._streams.append(stream)
        of_client = [each for each in self._streams if each.client == stream.client and not each.is_ended]
        for each in of_client[:-MAX_STREAMS]:
            each.end()
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll())

    def leave(self, stream: "Stream") -> None:
        """Tell a stream no more; without any, polling ends."""
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
            if await run_in_threadpool(self._look, polls % POLLS_A_LOOK_AROUND == 0):
                for stream in self._streams:
                    stream.news.set()
            await asyncio.sleep(POLL_SECONDS)


class Stream:
    """The events of one page.

    Parameters
    ----------
    hub : Hub
    client : str
        The same for all tabs of a browser.
    """

    def __init__(self, hub: Hub, client: str) -> None:
        self._hub = hub
        self.client = client
        self.news = asyncio.Event()
        self.is_ended = False

    def end(self) -> None:
        """End the stream at its next turn."""
        self.is_ended = True
        self.news.set()

    async def events(self, messages: Messages, known: Position) -> AsyncIterator[str]:
        """Yield what is new after what a page knows, and a heartbeat in between.

        The identifier of an event is how far the page is with it, so that any server can go on from there.
        """
        self._hub.open(self)
        try:
            yield f"retry: {RETRY_MS}\n\n"
            while not self.is_ended:
                self.news.clear()
                message, known = await messages(known)
                yield f"id: {json.dumps(known, separators=(',', ':'))}\ndata: {to_json(message)}\n\n"
                sent = time.monotonic()
                while not await self._is_told():
                    yield "event: alive\ndata:\n\n"
                await asyncio.sleep(max(0.0, MIN_SECONDS - (time.monotonic() - sent)))
        finally:
            self._hub.leave(self)

    async def _is_told(self) -> bool:
        """Wait for news, at most until the next heartbeat is due; return whether there is any."""
        try:
            await asyncio.wait_for(self.news.wait(), HEARTBEAT_SECONDS)
        except TimeoutError:
            return False
        return True
