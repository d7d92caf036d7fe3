"""A lower limit on the speed of a server: one that sends a byte now and then would hold a run up forever."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from httpx2 import Response

ANSWER_SECONDS = 120.0
"""From a request to the end of the headers of its response."""
WINDOW_SECONDS = 60.0
MIN_WINDOW_BYTES = 60_000
"""Bytes of a body that have to arrive in a window: a kilobyte a second."""


class SlowServerError(Exception):
    """A response that comes too slowly; another try may help."""


def answer_in_time(send: Callable[[], "Response"]) -> "Response":
    """Return the response of a request whose headers arrive within `ANSWER_SECONDS`.

    Raises
    ------
    SlowServerError
        If they do not; whatever `send` raises.
    """
    answers: list[Response] = []
    errors: list[BaseException] = []
    is_late = threading.Event()

    def run() -> None:
        try:
            answers.append(send())
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits
            errors.append(error)
        if is_late.is_set() and answers:
            answers[0].close()

    # A daemon: what still waits for a header does not keep the process alive.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if not answers and not errors:
        is_late.set()
        raise SlowServerError("no answer in time")
    if errors:
        raise errors[0]
    return answers[0]


def paced(response: "Response", chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks of a response while at least `MIN_WINDOW_BYTES` arrive in each window.

    Raises
    ------
    SlowServerError
        If fewer arrive.
    """
    received, is_slow, is_over = [0], threading.Event(), threading.Event()
    stream = response.extensions.get("network_stream")
    connection = stream.get_extra_info("socket") if stream is not None else None

    def watch() -> None:
        before = 0
        while not is_over.wait(WINDOW_SECONDS):
            if received[0] - before < MIN_WINDOW_BYTES:
                is_slow.set()
                # Wakes the thread that waits for bytes; closing the socket would not.
                with suppress(OSError):
                    if connection is not None:
                        connection.shutdown(socket.SHUT_RDWR)
                return
            before = received[0]

    threading.Thread(target=watch, daemon=True).start()
    try:
        for chunk in chunks:
            received[0] += len(chunk)
            yield chunk
            if is_slow.is_set():
                raise SlowServerError("too few bytes a second")
    except SlowServerError:
        raise
    except Exception as error:
        if is_slow.is_set():
            raise SlowServerError("too few bytes a second") from error
        raise
    finally:
        is_over.set()
