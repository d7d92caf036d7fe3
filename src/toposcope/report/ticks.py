"""What figures carry into the processes that render them: it imports little, since each of these begins with that."""

from math import floor, log10

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_of_ten(value: float, _place: float = 0) -> str:
    """Write a tick; Matplotlib's own way takes as long as the rest of the figure."""
    if not value > 0:
        return ""
    exponent = round(log10(value))
    return f"{value:g}" if 0 <= exponent < 4 else "10" + str(exponent).translate(SUPERSCRIPTS)


def plain_or_power(value: float, _place: float = 0) -> str:
    """Write a tick between powers of ten too."""
    if 0.01 <= value < 10_000:
        return f"{value:g}"
    exponent = floor(log10(value)) if value > 0 else 0
    mantissa = value / 10**exponent
    return power_of_ten(value) if round(mantissa, 6) == 1 else f"{mantissa:g}·10{str(exponent).translate(SUPERSCRIPTS)}"
