"""How cells and sentences write numbers and words."""

import math

UNDEFINED = "–"  # written where a number is not defined


def missing(value: object) -> bool:
    """Return whether a value is absent or not a number."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


NOISE = 1e-12  # share of the numbers next to it below which a number is a rounding error


def settled(value: float | None, *next_to: float | None) -> float | None:
    """Return a number, or 0 for a rounding error next to numbers of the same unit."""
    largest = max((abs(other) for other in next_to if other is not None and math.isfinite(other)), default=0.0)
    return 0.0 if value is not None and abs(value) <= NOISE * largest else value


def _minus(text: str) -> str:
    return text.replace("-", "−")


def signed(value: float | None, digits: int = 3) -> str:
    """Write a number with its sign; what rounds to zero has none."""
    if value is None or not math.isfinite(value):
        return UNDEFINED
    text = f"{value:+.{digits}f}"
    return _minus(text) if float(text) else f"{0:.{digits}f}"


def fixed(value: float | None, digits: int = 3) -> str:
    """Write a number to so many decimals."""
    return UNDEFINED if value is None or not math.isfinite(value) else _minus(f"{value:.{digits}f}")


def interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """Write an interval."""
    return UNDEFINED if missing(low) or missing(high) else f"{signed(low, digits)} to {signed(high, digits)}"


def p_value(value: float | None) -> str:
    """Write a p-value to three decimals."""
    if value is None or not math.isfinite(value):
        return UNDEFINED
    return "< .001" if value < 0.0005 else f"{value:.3f}".lstrip("0") if value < 0.9995 else "1"


def plain(value: float | None, digits: int = 4) -> str:
    """Write a number to so many significant digits; whole numbers whole."""
    if value is None or not math.isfinite(value):
        return UNDEFINED
    if float(value).is_integer() and abs(value) < 1e15:
        return _minus(f"{value:,.0f}")
    return _minus(f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}")


def tenths(value: float | None) -> str:
    """Write a positive number to one decimal."""
    return UNDEFINED if missing(value) else f"{value:,.1f}"


def share(value: float | None) -> str:
    """Write a share in percent."""
    return UNDEFINED if value is None or missing(value) else f"{100 * value:.0f}%"


def percent(value: float | None) -> str:
    """Write a relative change in percent, with its sign."""
    if value is None or not math.isfinite(value):
        return UNDEFINED
    return signed(100 * value, 0) + "%" if abs(value) >= 0.1 else signed(100 * value, 1) + "%"


def whole(value: float | None) -> str:
    """Write a count or a step."""
    return UNDEFINED if value is None or not math.isfinite(value) else _minus(f"{round(value):,}")


def word(value: object) -> str:
    """Write a word."""
    return UNDEFINED if value is None or value == "" else str(value)
