"""Access control of the server: host names, origins, and a token if other machines can reach it."""

import asyncio
import hmac
import ipaddress
import secrets
import socket
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

import h11
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
TOKEN_BYTES = 24
MAX_REQUEST_BYTES = 1 << 18  # of a request's headers: a page sends the positions of its runs
MAX_CONNECTIONS = 256
REQUEST_SECONDS = 10.0  # for a request to come whole, from its first byte or the connection on
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or name, which only this machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(TOKEN_BYTES)


class PatientProtocol(H11Protocol):
    """HTTP in which a client has a while to send a whole request."""

    waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # noqa: D102
        super().connection_made(transport)
        waiting = [each for each in self.connections if isinstance(each, PatientProtocol) and each.waiting]
        if waiting and len(self.connections) > MAX_CONNECTIONS:  # whoever sends half a request makes room
            min(waiting, key=lambda each: each.waiting.when() if each.waiting else 0.0).transport.abort()
        self._wait()

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self._wait()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:  # noqa: D102
        if self.cycle and not self.cycle.response_complete:  # of a request whose body is wrong
            self.cycle.disconnected = True
            self.transport.abort()
        else:
            super().send_400_response(msg)

    def _wait(self) -> None:
        if self.waiting is None:
            self.waiting = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None


class Guard:
    """Middleware that refuses requests that are not allowed to read.

    Another website can make a browser send requests to a server on its user's machine: under another name (DNS
    rebinding), which ``Host`` shows, or from another origin, which ``Origin`` or ``Sec-Fetch-Site`` shows.
    """

    def __init__(self, app: ASGIApp, host: str, port: int, token: str = "") -> None:
        self._app, self._token, self._cookie = app, token.encode(), f"toposcope-{port}"
        self._is_local = is_loopback(host)
        self._names = {*LOCAL_NAMES} if self._is_local else {*LOCAL_NAMES, host, socket.gethostname(), socket.getfqdn()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *known]}
            await send(message)

        headers = Headers(scope=scope)
        refused = self._refusal(scope["method"], headers)
        if refused is not None:
            await refused(scope, receive, send_guarded)
            return
        if self._token and not self._knows(headers.get("cookie", "")):
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            if not self._is_token(given):
                text = "This page needs a token: open the complete URL that toposcope show printed.\n"
                await PlainTextResponse(text, 403)(scope, receive, send_guarded)
                return
            # The redirect removes the token from the URL, so that it is not shown or shared with it.
            redirect = RedirectResponse("./", 303)
            redirect.set_cookie(self._cookie, given, httponly=True, samesite="lax")
            await redirect(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _refusal(self, method: str, headers: Headers) -> PlainTextResponse | None:
        if method not in ("GET", "HEAD"):
            return PlainTextResponse("This server allows only GET and HEAD.\n", 405)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_own(_name(hosts[0])):
            return PlainTextResponse(
                "This server does not serve that host name; open the URL that toposcope show printed.\n", 421
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != hosts[0]:
            return PlainTextResponse("Requests from other websites are refused.\n", 403)
        site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "navigate")
        if site not in ("none", "same-origin") and mode != "navigate":
            return PlainTextResponse("Requests from other websites are refused.\n", 403)
        return None

    def _is_own(self, name: str) -> bool:
        """Return whether a host is this server's; unlike a name, an IP address cannot be rebound."""
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._is_local

    def _knows(self, cookies: str) -> bool:
        try:
            cookie = SimpleCookie(cookies).get(self._cookie)
        except CookieError:
            return False
        return cookie is not None and self._is_token(cookie.value)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self._token)


def _name(host: str) -> str:
    """Return the name in a ``Host`` header; empty if it is invalid."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""
