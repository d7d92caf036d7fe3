"""A web address that is sent the alerts of a run, its beginning and its end."""

import json
import math
import time
import urllib.error
import urllib.request
from collections import deque
from http.client import HTTPException
from ipaddress import ip_address
from typing import Any, NoReturn
from urllib.parse import urlsplit

from toposcope.errors import ToposcopeError
from toposcope.monitor.events import Alert, Event

TIMEOUT_SECONDS = 5.0
FIRST_WAIT_SECONDS, MAX_TRIES = 2.0, 6
"""After a failed request, that long until the next one; four times as long after each further one."""
MIN_SECONDS_BETWEEN = 1.0
"""Alerts that come faster are sent together."""
MAX_WAITING, MAX_LINES = 1000, 20
PASSING = (408, 425, 429)
"""Statuses below 500 after which it is worth trying again."""


class WebhookSink:
    """Posts JSON: ``text``, a few sentences, as Slack and Mattermost show them, and ``events``, the same as data.

    The address is a secret: it is in no message, no file and no log. Redirects are not followed, so that it goes to the
    named host alone. Without an answer it tries again with the next events, a few times, then gives up.

    Parameters
    ----------
    address : str
        ``https://``, or ``http://`` on this machine.
    run : str
        What the run is called in the messages.

    Raises
    ------
    ToposcopeError
        If the address is neither.
    """

    def __init__(self, address: str, run: str) -> None:
        self._address, self._run = address, run
        self._opener = _opener(check_address(address))
        self._waiting: deque[dict[str, Any]] = deque(maxlen=MAX_WAITING)
        self._n_tries, self._next_try = 0, -math.inf
        self._step = 0
        self._add("begin", f"{run}: training began", 0)

    def put(self, event: Event) -> None:
        """Send an alert, and whatever waits."""
        self._step = max(self._step, event.step)
        if isinstance(event, Alert):
            details = {
                "kind": event.kind,
                "since": event.since,
                "place": event.place,
                "evidence": {name: _json_number(value) for name, value in event.evidence.items()},
            }
            self._add("alert", f"{self._run}, step {event.step:,}: {event.message}", event.step, details)
        if self._waiting and time.monotonic() >= self._next_try:
            self._send()

    def close(self) -> None:
        """Say that the run ended, and send whatever waits."""
        self._add("end", f"{self._run}: the monitor stopped at step {self._step:,}", self._step)
        self._n_tries = MAX_TRIES - 1
        self._send()

    def _add(self, event: str, text: str, step: int, details: dict[str, Any] | None = None) -> None:
        self._waiting.append({"event": event, "run": self._run, "step": step, "text": text, **(details or {})})

    def _send(self) -> None:
        """Send all that waits in one request."""
        events = list(self._waiting)
        lines = [event["text"] for event in events[:MAX_LINES]]
        if len(events) > MAX_LINES:
            lines.append(f"and {len(events) - MAX_LINES} more")
        body = json.dumps({"text": "\n".join(lines), "events": events}, allow_nan=False).encode()
        failure, passing = self._post(body)
        if not failure:
            self._waiting.clear()
            self._n_tries, self._next_try = 0, time.monotonic() + MIN_SECONDS_BETWEEN
            return
        self._n_tries += 1
        if not passing or self._n_tries >= MAX_TRIES:
            raise ToposcopeError(f"{failure}; check the address, and that it takes JSON")
        self._next_try = time.monotonic() + FIRST_WAIT_SECONDS * 4 ** (self._n_tries - 1)

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Send a request; return what went wrong, without the address, and whether it may pass."""
        headers = {"Content-Type": "application/json", "User-Agent": "toposcope"}
        request = urllib.request.Request(self._address, body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS):
                return "", False
        except urllib.error.HTTPError as error:
            error.close()
            return f"it answered {error.code}", error.code >= 500 or error.code in PASSING
        except (OSError, HTTPException, ValueError):
            # what these say may contain the address
            return f"no answer within {TIMEOUT_SECONDS:.0f} seconds, or no connection", True


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as the refusal it is here."""

    def redirect_request(self, *_: Any) -> None:
        return None


def check_address(address: str) -> str:
    """Return an address that alerts may be sent to.

    Raises
    ------
    ToposcopeError
        Without the address, if it is neither ``https://`` nor on this machine.
    """
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        _refuse()
    secure = parts.scheme == "https"
    if not host or parts.username is not None or not (secure or (parts.scheme == "http" and _is_this_machine(host))):
        _refuse()
    return address


def _opener(address: str) -> urllib.request.OpenerDirector:
    """Return what sends requests; those to this machine pass by any proxy."""
    proxies = [] if urlsplit(address).scheme == "https" else [urllib.request.ProxyHandler({})]
    return urllib.request.build_opener(_NoRedirect, *proxies)


def _refuse() -> NoReturn:
    raise ToposcopeError(
        "webhook: the address must be https://HOST/..., without a user name, or http:// on this machine; "
        "it is a secret, so it is not shown here"
    ) from None


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
