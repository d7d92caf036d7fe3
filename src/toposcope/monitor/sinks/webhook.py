"""Posts events to a webhook: of a monitored run its start, its alerts and its end."""

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
"""Wait after a failed request, which quadruples after each further failure, and the number of tries."""
MIN_SECONDS_BETWEEN = 1.0  # alerts that come faster are sent in one request
MAX_WAITING, MAX_LINES = 1000, 20
RETRIED = (408, 425, 429)  # HTTP statuses below 500 after which a request is tried again


class Webhook:
    """Posts JSON: ``text``, a few lines that Slack and Mattermost display, and ``events``, the same as data.

    The URL is a secret: it appears in no message, file or log, and redirects are not followed, so that no other host
    learns it. A failed request is tried again a few times, with the events that came since.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._opener = _opener(check_address(address))
        self._waiting: deque[dict[str, Any]] = deque(maxlen=MAX_WAITING)
        self._n_tries, self._next_try = 0, -math.inf

    def add(self, event: str, run: str, step: int, text: str, details: dict[str, Any] | None = None) -> None:
        """Queue an event."""
        self._waiting.append({"event": event, "run": run, "step": step, "text": text, **(details or {})})

    def send(self, *, at_once: bool = False) -> None:
        """Send the queued events, if it is time to; `at_once`, now and never again."""
        if at_once:
            self._n_tries = MAX_TRIES - 1
        if self._waiting and (at_once or time.monotonic() >= self._next_try):
            self._send()

    def _send(self) -> None:
        """Send all queued events in one request."""
        events = list(self._waiting)
        lines = [event["text"] for event in events[:MAX_LINES]]
        if len(events) > MAX_LINES:
            lines.append(f"and {len(events) - MAX_LINES} more")
        body = json.dumps({"text": "\n".join(lines), "events": events}, allow_nan=False).encode()
        failure, is_temporary = self._post(body)
        if not failure:
            self._waiting.clear()
            self._n_tries, self._next_try = 0, time.monotonic() + MIN_SECONDS_BETWEEN
            return
        self._n_tries += 1
        if not is_temporary or self._n_tries >= MAX_TRIES:
            raise ToposcopeError(f"{failure}; check the URL, and that it accepts JSON")
        self._next_try = time.monotonic() + FIRST_WAIT_SECONDS * 4 ** (self._n_tries - 1)

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Send a request; return the failure, without the URL, and whether to try again."""
        headers = {"Content-Type": "application/json", "User-Agent": "toposcope"}
        request = urllib.request.Request(self._address, body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS):
                return "", False
        except urllib.error.HTTPError as error:
            error.close()
            return f"it answered with status {error.code}", error.code >= 500 or error.code in RETRIED
        except (OSError, HTTPException, ValueError):
            # the messages of these exceptions may contain the URL
            return f"no answer within {TIMEOUT_SECONDS:.0f} seconds, or no connection", True


class WebhookSink:
    """Posts the start of a run, its alerts and its end."""

    def __init__(self, address: str, run: str) -> None:
        self._webhook, self._run, self._step = Webhook(address), run, 0
        self._webhook.add("begin", run, 0, f"{run}: training started")

    def put(self, event: Event) -> None:
        """Send an alert, and queued events."""
        self._step = max(self._step, event.step)
        if isinstance(event, Alert):
            details = {
                "kind": event.kind,
                "since": event.since,
                "place": event.place,
                "evidence": {name: v if math.isfinite(v) else str(v) for name, v in event.evidence.items()},
            }
            text = f"{self._run}, step {event.step:,}: {event.message}"
            self._webhook.add("alert", self._run, event.step, text, details)
        self._webhook.send()

    def close(self) -> None:
        """Send the end of the run, and queued events."""
        self._webhook.add("end", self._run, self._step, f"{self._run}: the monitor stopped at step {self._step:,}")
        self._webhook.send(at_once=True)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as a failure."""

    def redirect_request(self, *_: Any) -> None:
        return None


def check_address(address: str) -> str:
    """Return a URL to which alerts may be sent."""
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
    """Return an opener that follows no redirects, and uses no proxy for this machine."""
    proxies = [] if urlsplit(address).scheme == "https" else [urllib.request.ProxyHandler({})]
    return urllib.request.build_opener(_NoRedirect, *proxies)


def _refuse() -> NoReturn:
    raise ToposcopeError(
        "webhook: the URL must be https://HOST/..., without a user name, or http:// on this machine; "
        "it is a secret, so it is not shown here"
    ) from None


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
