"""The rate of false alarms, and its division among the checks."""

FALSE_ALARM_RATE = 1e-5
"""False alarms per step of all checks together, on runs in which only noise changes: one in 100,000 steps."""
SHARES = {
    "loss spike": 0.2,
    "gradient spike": 0.2,
    "layer gradient spike": 0.09,
    "dead layer": 0.09,
    "frozen layer": 0.09,
    "dead units": 0.09,
    "rank collapse": 0.09,
    "norm running away": 0.09,
}
"""Share of that rate by check; the rest is reserved for checks without a noise model."""
MAX_GAP = 1000
"""Longest gap between two values, in steps, over which a check's rate adds up."""


def rate_of(check: str, gap: int) -> float:
    """Return the probability of a false alarm that a check may spend on a value `gap` steps after the last."""
    return FALSE_ALARM_RATE * SHARES[check] * min(max(gap, 1), MAX_GAP)
