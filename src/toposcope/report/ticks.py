"""What figures carry into the processes that render them: it imports little, since each of these begins with that."""

from math import log10

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_of_ten(value: float, _place: float = 0) -> str:
    """Write a tick; Matplotlib's own way takes as long as the rest of the figure."""
    if not value > 0:
        return ""
    exponent = round(log10(value))
    return f"{value:g}" if 0 <= exponent < 4 else "10" + str(exponent).translate(SUPERSCRIPTS)
