"""p-values adjusted for the number of tests."""

from typing import Literal

import numpy as np

from toposcope.typing import Vector

Method = Literal["holm", "bonferroni", "bh"]
NAMES: dict[Method, str] = {"holm": "Holm", "bonferroni": "Bonferroni", "bh": "Benjamini and Hochberg"}


def adjusted(p: Vector, method: Method = "holm") -> Vector:
    """Return adjusted p-values; NaN stays NaN and is not counted.

    Parameters
    ----------
    p : ndarray, shape (m,)
    method : "holm", "bonferroni" or "bh"
        Holm 1979 and Bonferroni bound the chance of any false positive, Benjamini & Hochberg 1995 their expected share.
    """
    result = np.full(len(p), np.nan)
    defined = np.flatnonzero(np.isfinite(p))
    order = defined[np.argsort(p[defined], kind="stable")]
    m, rank = len(order), np.arange(1, len(order) + 1)
    if method == "bonferroni":
        raised = m * p[order]
    elif method == "bh":
        raised = np.minimum.accumulate((m / rank * p[order])[::-1])[::-1]
    else:
        raised = np.maximum.accumulate((m - rank + 1) * p[order])
    result[order] = np.minimum(1.0, raised)
    return result
