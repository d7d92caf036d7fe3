"""The server of the live page: its routes and event streams."""

import asyncio
import hashlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import uvicorn
from markupsafe import escape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from toposcope.errors import ToposcopeError
from toposcope.files import allow_many_files
from toposcope.report.live.assets import Assets, load_assets
from toposcope.report.live.feed import Feed, Position, View
from toposcope.report.live.security import MAX_CONNECTIONS, MAX_REQUEST_BYTES, Guard, PatientProtocol
from toposcope.report.live.status import Status
from toposcope.report.live.words import drawn_kind, forecast_rows, loss_key, words
from toposcope.report.page import live_parts, page_part, page_script, run_colours, to_json, to_live_page

POLL_SECONDS = 0.3  # between two looks, and least time between two messages of a stream
SEARCH_SECONDS = 2.0  # between searches for new studies
HEARTBEAT_SECONDS = 15
RETRY_MS = 1500  # time after which a browser reconnects
MAX_STREAMS = 4
"""Open streams of one browser, which allows six connections to a server for all its tabs. With more tabs, the oldest
stream is closed and the browser reopens it: the tabs take turns, and each gets all rows."""

if TYPE_CHECKING:
    from toposcope.report.live.logs import LogReader

WATCH_SECONDS = 5.0  # between two looks at whether a run needs a person, where somebody is to be told
N_PORTS = 20  # ports to try, from the default on, if none was chosen
DEFAULT_PORT = 8473
STOP_SECONDS = 1  # time for open streams to end when the server stops


class Alarm(NamedTuple):
    """A run that needs a person."""

    step: int
    text: str


Tell = Callable[[Mapping[str, Alarm]], None]


class LivePage:
    """State that the routes share: the studies and the open streams."""

    def __init__(self, directory: Path, assets: Assets, reader: "LogReader | None") -> None:
        self._assets = assets
        self.feed = Feed(directory, assets, reader)
        self.streams: dict[str, list[object]] = {}  # open ones by browser, the oldest first
        self._lock = threading.Lock()
        self._version, self._looked, self._searched = 0, 0.0, 0.0
        self._started, self._sound = time.time(), set[str]()

    def alarms(self, statuses: Sequence[Status]) -> dict[str, Alarm]:
        """Return the runs that need a person, by name: those once seen sound, or written since the server started."""
        self._sound |= {status.name for status in statuses if not status.health.needs_person}
        return {
            s.name: Alarm(s.step or 0, f"{s.name}: {s.health.words}. {s.health.reason}".rstrip())
            for s in statuses
            if s.health.needs_person and (s.name in self._sound or (s.updated or s.written) > self._started)
        }

    def look(self) -> dict[str, Alarm]:
        """Return `alarms` of all runs as they are now."""
        self.refresh()
        with self._lock:
            return self.alarms(self.feed.statuses()[0])

    def refresh(self, *, around: bool = False) -> int:
        """Look for what is new, unless that was just done; return a number that is another one if anything is.

        New studies are searched for from time to time, and `around` at once.
        """
        with self._lock:
            now = time.monotonic()
            if around or now - self._searched >= SEARCH_SECONDS:
                self._searched = now
                self._version += self.feed.discover()
            if around or now - self._looked >= POLL_SECONDS:
                self._looked = now
                self._version += self.feed.has_changed()
            return self._version

    async def events(self, view: View, known: Position, client: str) -> AsyncIterator[str]:
        """Yield messages with what is new after a position, and heartbeats in between.

        The identifier of an event is the position of the page, so that any server can continue from there.
        """
        streams, own = self.streams.setdefault(client, []), object()
        streams.append(own)
        seen, sent, has_more = -1, time.monotonic(), False
        try:
            yield f"retry: {RETRY_MS}\n\n"
            while own in streams[-MAX_STREAMS:]:
                version = await run_in_threadpool(self.refresh)
                if version != seen or has_more:
                    message, known = await run_in_threadpool(self.message, view, known)
                    yield f"id: {json.dumps(known, separators=(',', ':'))}\ndata: {to_json(message)}\n\n"
                    seen, sent, has_more = version, time.monotonic(), message["more"]
                elif time.monotonic() - sent > HEARTBEAT_SECONDS:
                    yield "event: alive\ndata:\n\n"
                    sent = time.monotonic()
                await asyncio.sleep(0 if has_more else POLL_SECONDS)
        finally:
            if own in streams:
                streams.remove(own)

    def end_streams(self) -> None:
        """End all streams at their next look."""
        for streams in self.streams.values():
            streams.clear()

    def message(self, view: View, known: Position) -> tuple[dict[str, Any], Position]:
        """Return the message for a page with a view and a position, and its new position."""
        content, position = self.feed.message(view, known)
        now = time.time()
        chosen = {key: content.pop(key) for key in ("runs", "features", "layers")}
        statuses = content.pop("statuses")
        of_folder = {key: content.pop(key) for key in ("faults", "studies", "not_shown")}
        said = words(
            statuses, of_folder["faults"], self.feed.left_out, now, self._pages(view, of_folder["studies"]),
            of_folder["not_shown"], () if view.study else self.feed.stoppable(),
        )  # fmt: skip
        parts = {**live_parts(said), "loss-key": str(escape(loss_key(statuses)))}
        return {
            **content,
            "shape": hashlib.sha256(to_json(chosen).encode()).hexdigest()[:16],
            "forecasts": forecast_rows(statuses),
            "needs": {name: alarm.text for name, alarm in self.alarms(statuses).items()},
            "main": drawn_kind(statuses).partition(" ")[0],
            "age": said["age"],
            "html": parts,
            **({} if known else chosen),
        }, position

    def page(self, view: View) -> str:
        """Return the page as HTML; its rows follow in messages."""
        message = self.message(view, {})[0] | {"lines": [], "study": view.study}
        title = view.study or (self.feed.studies[0] if self.feed.is_single else self.feed.directory.resolve().name)
        charts = self._assets.charts_of(
            message["runs"], max((len(of["names"]) for of in message["layers"].values()), default=1)
        )
        return to_live_page(title, charts, message)

    def _pages(self, view: View, studies: Mapping[str, str]) -> dict[str, str]:
        """Return links from runs to the pages of their studies; empty unless the page is that of a folder."""
        if view.study or self.feed.is_single:
            return {}
        return {run: f"?{urlencode({'study': study})}" for run, study in studies.items()}


def make_app(
    directory: Path, assets: Assets, host: str, port: int, token: str = "", reader: "LogReader | None" = None,
    tell: Tell | None = None,
) -> Starlette:  # fmt: skip
    """Return the application that serves a study, a log, or a folder of these."""
    live = LivePage(directory, assets, reader)

    async def page(request: Request) -> Response:
        await run_in_threadpool(live.refresh, around=True)
        return HTMLResponse(await run_in_threadpool(live.page, _view(request, live)))

    def served(content: str, kind: str) -> Callable[[Request], Response]:
        return lambda _: Response(content, media_type=kind)

    async def events(request: Request) -> Response:
        view, known = _view(request, live), _position(request)
        client = f"{request.client.host if request.client else ''} {request.headers.get('user-agent', '')}"

        return StreamingResponse(
            live.events(view, known, client), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
        )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(_watch(live, tell)) if tell is not None else None
        yield
        if watching is not None:
            watching.cancel()
        live.end_streams()
        live.feed.close()

    routes = [
        Route("/", page),
        Route("/page.css", served(run_colours() + page_part("page.css"), "text/css")),
        Route("/vega.css", served(page_part("vega.css"), "text/css")),
        Route("/vega.js", served(assets.vega, "text/javascript")),
        Route("/page.js", served(page_script(live=True), "text/javascript")),
        Route("/events", events),
    ]
    guards = [Middleware(Guard, host=host, port=port, token=token), Middleware(GZipMiddleware, compresslevel=3)]
    app = Starlette(routes=routes, middleware=guards, lifespan=lifespan)
    app.state.end_streams = live.end_streams
    return app


async def _watch(live: LivePage, tell: Tell) -> None:
    """Hand over the runs that need a person, from time to time, also while no page is open."""
    while True:
        tell(await run_in_threadpool(live.look))
        await asyncio.sleep(WATCH_SECONDS)


def _view(request: Request, live: LivePage) -> View:
    query = request.query_params
    study = query.get("study", "")
    return View(study if study in live.feed.studies else "", query.get("run", ""), query.get("quantity", ""))


def _position(request: Request) -> Position:
    """Return the position of a page whose connection comes back, or that shows something else; empty if invalid."""
    text = request.headers.get("last-event-id") or request.query_params.get("after", "")
    try:
        position = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    is_valid = isinstance(position, dict) and all(
        isinstance(of, list) and all(type(number) is int and 0 <= number < 1 << 62 for number in of)
        for of in position.values()
    )
    return position if is_valid else {}


def bound_socket(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on a port, or on the first free one from the default on."""
    ports = [port] if port is not None else range(DEFAULT_PORT, DEFAULT_PORT + N_PORTS)
    fault: OSError | None = None
    for each in ports:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, each, type=socket.SOCK_STREAM)[0]
            bound = socket.socket(family, kind, protocol)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen()
        except OSError as error:
            fault = error
            continue
        return bound
    raise ToposcopeError(f"{host}:{ports[0]}: cannot listen ({fault}); choose another --host or --port")


class _Server(uvicorn.Server):
    """A server that ends its event streams before it waits for them; it prints a traceback of each that it cuts off."""

    end_streams: Callable[[], None]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop."""
        self.end_streams()
        await super().shutdown(sockets)


def serve(
    directory: Path, bound: socket.socket, host: str, token: str, reader: "LogReader | None", tell: Tell | None = None
) -> None:
    """Serve until interrupted; who connects before the page is made waits for it."""
    allow_many_files()
    port = bound.getsockname()[1]
    app = make_app(directory, load_assets(), host, port, token, reader, tell)
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
        http=PatientProtocol,
        h11_max_incomplete_event_size=MAX_REQUEST_BYTES,
        limit_concurrency=2 * MAX_CONNECTIONS,
        lifespan="on",
        ws="none",
    )
    server = _Server(config)
    server.end_streams = app.state.end_streams
    with suppress(KeyboardInterrupt):  # the user stops the server this way
        asyncio.run(server.serve(sockets=[bound]))
