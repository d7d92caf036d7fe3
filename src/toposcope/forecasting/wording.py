"""Numbers as the sentences of this room write them."""

import numpy as np


def short(value: float) -> str:
    """Write a count of parameters or tokens to three digits, with k, M, B or T."""
    if not np.isfinite(value):
        return "unbounded"
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= unit * 0.9995:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"
