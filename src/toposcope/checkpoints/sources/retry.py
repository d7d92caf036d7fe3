"""Retries of what failed for a transient reason, with growing waits."""

import time

from toposcope.checkpoints.sources.source import CheckpointError

MAX_TRIES = 6
FIRST_WAIT = 0.5
"""Seconds; each further wait is twice as long, up to `MAX_WAIT`."""
MAX_WAIT = 8.0
"""Seconds."""
MAX_REQUESTED_WAIT = 330.0
"""Seconds that a server may request: a little more than the five minutes of a rate limit."""


class Retry:
    """The tries left for one operation.

    Parameters
    ----------
    location : str
        What is being read, for the message.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._failures = 0

    def wait(self, reason: str, requested: float | None = None) -> None:
        """Wait before the next try, as long as the server requests if it does.

        Raises
        ------
        CheckpointError
            If no try is left, or the server requests too long a wait.
        """
        self._failures += 1
        if requested is not None and requested > MAX_REQUESTED_WAIT:
            raise self._unreachable(
                f"{reason}, and requests a wait of {requested:.0f} seconds; run the same command then"
            )
        if self._failures >= MAX_TRIES:
            raise self._unreachable(f"{reason}, {MAX_TRIES} times; run the same command again later")
        time.sleep(min(FIRST_WAIT * 2 ** (self._failures - 1), MAX_WAIT) if requested is None else requested)

    def reset(self) -> None:
        """Start counting again after progress."""
        self._failures = 0

    def _unreachable(self, reason: str) -> CheckpointError:
        return CheckpointError(f"{self._location}: cannot be read: {reason}", "unreachable")
