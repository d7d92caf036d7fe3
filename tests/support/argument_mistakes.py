"""What is no number of its kind, for every number that a function takes."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

COUNTS = (True, np.True_, -1, -(2**70), 2.5, np.nan, "3", [1], 1j)
NUMBERS = (True, np.False_, np.nan, "x", [1.0], 1j)
MAY_BE_NEGATIVE, MAY_BE_NAN = {"low", "high"}, {"cover_radius"}
MAY_BE_EMPTY = {"sigma", "pairs", "births", "at", "edges", "grid", "lengths"}


def mistakes(calls: Mapping[str, tuple[Callable[..., Any], dict[str, Any]]]) -> list[Any]:
    """Return every number of some functions, by name with valid arguments, with each value that is none of its kind."""
    found = []
    for name, (call, valid) in calls.items():
        for parameter, declared in inspect.signature(call).parameters.items():
            kind = str(declared.annotation).partition(" ")[0].removeprefix("<class").strip()
            kind = getattr(declared.annotation, "__name__", kind)
            values: tuple[Any, ...] = ()
            if kind == "int" or (name, parameter) == ("matching", "order"):
                values = COUNTS
            elif kind == "float" or parameter in ("scale", "alpha"):
                values = NUMBERS if parameter in MAY_BE_NEGATIVE else (*NUMBERS, -1.0)
            elif isinstance(valid.get(parameter), (np.ndarray, list)) and parameter not in MAY_BE_EMPTY:
                values = (np.array(valid[parameter])[:0],)
            for value in values:
                is_valid = (parameter in MAY_BE_NAN and value is np.nan) or (
                    parameter in ("alpha", "tokens") and value == [1]
                )
                if not is_valid:
                    found.append(pytest.param(name, parameter, value, id=f"{name}-{parameter}-{value!r:.20}"))
    return found
