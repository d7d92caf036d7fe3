"""How often alerts may be false, and how that is shared out among the checks."""

FALSE_ALARM_RATE = 1e-5
"""False alerts a step over all checks together, on runs in which nothing changes but noise: one in 100,000 steps."""
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
"""Of that rate, by check; the rest is left to the checks that use no noise model."""
MAX_GAP = 1000
"""Steps between two values for which a check may spend its rate at once."""


def rate_of(check: str, gap: int) -> float:
    """Return the probability of a false alert that a check may spend on one value, `gap` steps after the last."""
    return FALSE_ALARM_RATE * SHARES[check] * min(max(gap, 1), MAX_GAP)
