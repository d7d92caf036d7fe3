"""One alert a fault: silent while it lasts, armed again after a recovery that has to be longer each time."""


class Latch:
    """Whether a check may raise an alert of one place.

    Parameters
    ----------
    recovery : int
        Usual values after the first alert before there may be another; doubled by each alert, so that a run of which
        it is the nature to look faulty now and then is left alone.
    """

    def __init__(self, recovery: int) -> None:
        self._recovery = recovery
        self._left = 0
        self.n_alerts = 0

    @property
    def armed(self) -> bool:
        """Whether the next faulty value raises an alert."""
        return self._left == 0

    def faulty(self) -> bool:
        """Take a faulty value; return whether it raises an alert."""
        raised = self.armed
        self._left = self._recovery
        if raised:
            self._recovery *= 2
            self.n_alerts += 1
        return raised

    def usual(self) -> None:
        """Take a value that is as it should be."""
        if self._left:
            self._left -= 1
