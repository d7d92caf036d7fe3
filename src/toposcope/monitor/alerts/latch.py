"""Raises one alert per fault, and re-arms after a recovery that must be longer each time."""


class Latch:
    """Decides whether a check may raise an alert for one place.

    Parameters
    ----------
    recovery : int
        Normal values that must follow the first alert before another. Each alert doubles the number, so that a run that
        looks faulty now and then by its nature raises few alerts.
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
        """Record a faulty value; return whether it raises an alert."""
        raised = self.armed
        self._left = self._recovery
        if raised:
            self._recovery *= 2
            self.n_alerts += 1
        return raised

    def normal(self) -> None:
        """Record a normal value."""
        if self._left:
            self._left -= 1
