"""The server of the live page: its routes and event streams."""

import asyncio
import hashlib
import json
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn
from markupsafe import escape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from toposcope.errors import ToposcopeError
from toposcope.files import allow_many_files
from toposcope.report.live import database as db
from toposcope.report.live.analyses import Analyses
from toposcope.report.live.assets import Assets, load_assets
from toposcope.report.live.feed import LOGGED_CHARTS, MEASURED_CHARTS, Feed, Position, View
from toposcope.report.live.fleet import fleet_kind
from toposcope.report.live.mirror import LogMirror
from toposcope.report.live.security import MAX_CONNECTIONS, MAX_REQUEST_BYTES, Guard, PatientProtocol
from toposcope.report.live.words import forecast_rows, loss_key, words
from toposcope.report.page import live_parts, page_part, page_script, run_colours, to_json, to_live_page
from toposcope.report.tuning import MAX_LIVE_ROWS

POLL_SECONDS = 0.25
POLLS_PER_SEARCH = 8  # polls between searches for new studies
HEARTBEAT_SECONDS = 15
MIN_SECONDS = 0.3  # least time between two messages of a stream
RETRY_MS = 1500  # time after which a browser reconnects
MAX_STREAMS = 4
"""Open streams of one browser, which allows six connections to a server for all its tabs. With more tabs, the oldest
stream is closed and the browser reopens it: the tabs take turns, and each gets all rows."""

Messages = Callable[[Position], Awaitable[tuple[dict[str, Any], Position]]]


class Hub:
    """Wakes the streams when something is new."""

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
    """The events of one page."""

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


LINES = (*LOGGED_CHARTS, *MEASURED_CHARTS, "explore-feature", "layer-lines")
N_PORTS = 20  # ports to try, from the default on, if none was chosen
DEFAULT_PORT = 8473
STOP_SECONDS = 1  # time for open streams to end when the server stops
LOG_ONLY = (
    "Only the log is known here. Topology, layers and phases need the weights: measure saved checkpoints with "
    "toposcope study, or attach a Monitor to the next run."
)
THINNED = (
    "A line with many steps shows means over neighbouring steps, and a band from their minimum to their maximum; "
    "zoom in to see single steps."
)


class LivePage:
    """State that the routes share: the studies, their analyses, and the open streams."""

    def __init__(self, directory: Path, assets: Assets, mirror: LogMirror | None) -> None:
        self._assets = assets
        self.feed = Feed(directory, assets, mirror)
        self.analyses = Analyses(self.feed)
        self.hub = Hub(self.refresh)

    def refresh(self, around: bool) -> bool:
        """Return whether anything is new; `around` also searches for new studies."""
        found = around and self.feed.discover()
        return self.feed.has_changed() or found

    def message(self, view: View, known: Position) -> tuple[dict[str, Any], Position]:
        """Return the message for a page with a view and a position, and its new position."""
        content, position = self.feed.message(view, known)
        name, now = self.analysed(view), time.time()
        chosen = {key: content.pop(key) for key in ("runs", "features", "layers")}
        taken = ("statuses", "faults", "studies", "not_shown")
        statuses, faults, studies, not_shown = (content.pop(key) for key in taken)
        pages = self._pages(view, studies)
        said = words(statuses, faults, self.feed.left_out, now, pages, not_shown)
        notes = [line.pop("note") for line in content["lines"] if line.get("note")]
        is_thinned = any("low" in line["rows"] for line in content["lines"])
        parts = {**live_parts(said), "analysis": str(escape(self._analysis(name)))}
        parts["loss-key"] = str(escape(loss_key(statuses)))
        if not known:
            parts["thinned"] = str(escape(" ".join([*([THINNED] if is_thinned else []), *notes])))
        return {
            **content,
            "shape": hashlib.sha256(to_json(chosen).encode()).hexdigest()[:16],
            "forecasts": forecast_rows(statuses),
            "main": fleet_kind(statuses).partition(" ")[0],
            "age": said["age"],
            "html": parts,
            "version": self.analyses.version(name),
            **({} if known else chosen),
        }, position

    def analysed(self, view: View) -> str:
        """Return the study whose analysis the page shows; empty on the page of a folder."""
        if view.study:
            return view.study
        return next(iter(self.feed.studies)) if self.feed.is_single else ""

    def page(self, view: View) -> str:
        """Return the page as HTML."""
        message, _ = self.message(view, {})
        title = self.analysed(view) or self.feed.directory.resolve().name
        charts = self._assets.charts_of(
            message["runs"], max((len(of["names"]) for of in message["layers"].values()), default=1)
        )
        sent = {"study": view.study, "most": 2 * MAX_LIVE_ROWS, "charts": [*LINES, "layer-map"], "axes": [*db.AXES]}
        live = {**message, **sent}
        return to_live_page(title, charts, live, self.analyses.result(self.analysed(view)))

    def _analysis(self, name: str) -> str:
        if not name:
            return "Each study has its analyses on its own page; click its name in the table of runs."
        if self.feed.is_log(name):
            return LOG_ONLY
        try:
            return self.analyses.text(name, self.feed.growth(name)[0])
        except (KeyError, sqlite3.Error):
            return ""  # the top of the page shows the error

    def _pages(self, view: View, studies: Mapping[str, str]) -> dict[str, str]:
        """Return links from runs to the pages of their studies; empty unless the page is that of a folder."""
        if view.study or self.feed.is_single:
            return {}
        return {run: f"?{urlencode({'study': study})}" for run, study in studies.items()}


def make_app(
    directory: Path, assets: Assets, host: str, port: int, token: str = "", mirror: LogMirror | None = None
) -> Starlette:
    """Return the application that serves a study, a log, or a folder of these."""
    live = LivePage(directory, assets, mirror)

    async def page(request: Request) -> Response:
        await run_in_threadpool(live.refresh, True)
        view = _view(request, live)
        await live.analyses.consider(live.analysed(view))
        return HTMLResponse(await run_in_threadpool(live.page, view))

    def served(content: str, kind: str) -> Callable[[Request], Response]:
        return lambda _: Response(content, media_type=kind)

    async def events(request: Request) -> Response:
        view, known = _view(request, live), _position(request.headers.get("last-event-id", ""))
        client = f"{request.client.host if request.client else ''} {request.headers.get('user-agent', '')}"

        async def message(position: Position) -> tuple[dict[str, Any], Position]:
            await live.analyses.consider(live.analysed(view))
            return await run_in_threadpool(live.message, view, position)

        return StreamingResponse(
            Stream(live.hub, client).events(message, known),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )

    async def detail(request: Request) -> Response:
        query = request.query_params
        try:
            between = int(query["from"]), int(query["to"])
        except (KeyError, ValueError):
            return PlainTextResponse("from and to must be integers (steps).\n", 400)
        if query.get("chart") not in LINES or max(map(abs, between)) >= 1 << 62:
            return PlainTextResponse(f"chart must be one of {', '.join(LINES)}.\n", 400)
        return JSONResponse(await run_in_threadpool(live.feed.detail, _view(request, live), query["chart"], between))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        live.hub.close()
        await live.analyses.close()
        live.feed.close()

    routes = [
        Route("/", page),
        Route("/page.css", served(run_colours() + page_part("page.css"), "text/css")),
        Route("/vega.css", served(page_part("vega.css"), "text/css")),
        Route("/vega.js", served(assets.vega, "text/javascript")),
        Route("/page.js", served(page_script(live=True), "text/javascript")),
        Route("/events", events),
        Route("/detail", detail),
    ]
    guards = [Middleware(Guard, host=host, port=port, token=token), Middleware(GZipMiddleware, compresslevel=3)]
    app = Starlette(routes=routes, middleware=guards, lifespan=lifespan)
    app.state.hub = live.hub
    return app


def _view(request: Request, live: LivePage) -> View:
    query = request.query_params
    study = query.get("study", "")
    return View(
        study if study in live.feed.studies else "",
        *(query.get(k, "") for k in ("feature", "run", "quantity", "layer")),
    )


def _position(text: str) -> Position:
    """Return the position that a page sent; empty if it is invalid."""
    try:
        position = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return position if _is_position(position) else {}


def _is_position(position: Any) -> bool:
    def is_pair(value: Any) -> bool:
        return isinstance(value, list) and len(value) == 2 and all(type(x) is int and abs(x) < 1 << 62 for x in value)

    return isinstance(position, dict) and all(
        isinstance(of_study, dict)
        and all(
            isinstance(run, dict) and is_pair(run.get("log")) and is_pair(run.get("measured"))
            for run in of_study.values()
        )
        for of_study in position.values()
    )


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

    hub: Hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop."""
        self.hub.close()
        await super().shutdown(sockets)


def serve(directory: Path, bound: socket.socket, host: str, token: str, mirror: LogMirror | None) -> None:
    """Serve until interrupted; who connects before the page is made waits for it."""
    allow_many_files()
    port = bound.getsockname()[1]
    app = make_app(directory, load_assets(), host, port, token, mirror)
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
    server.hub = app.state.hub
    with suppress(KeyboardInterrupt):  # the user stops the server this way
        asyncio.run(server.serve(sockets=[bound]))
