"""How often, and after what wait, something that failed in passing is tried again."""

import time

from toposcope.checkpoints.sources.source import CheckpointError

TRIES = 6
FIRST_WAIT = 0.5
"""Seconds; each further wait is twice as long."""
LONGEST_WAIT = 8.0
LONGEST_ASKED = 330.0
"""Seconds a server may ask for: a little more than the five minutes of a rate limit."""


class Patience:
    """Tries that are left for one thing.

    Parameters
    ----------
    location : str
        What is being read, for the message.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._failures = 0

    def wait(self, reason: str, asked: float | None = None) -> None:
        """Wait before the next try, as long as the server asked, if it did.

        Raises
        ------
        CheckpointError
            If there were enough tries, or the server asks for too long a wait.
        """
        self._failures += 1
        if asked is not None and asked > LONGEST_ASKED:
            raise self._unreachable(f"{reason}, and asks for a wait of {asked:.0f} seconds; run the same command then")
        if self._failures >= TRIES:
            raise self._unreachable(f"{reason}, {TRIES} times; run the same command again later")
        time.sleep(min(FIRST_WAIT * 2 ** (self._failures - 1), LONGEST_WAIT) if asked is None else asked)

    def renew(self) -> None:
        """Begin to count anew: it went well for a while."""
        self._failures = 0

    def _unreachable(self, reason: str) -> CheckpointError:
        return CheckpointError(f"{self._location}: cannot be read: {reason}", "unreachable")
