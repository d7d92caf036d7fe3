"""Formats numbers and layers for the messages of alerts."""

from collections.abc import Sequence

MAX_NAMED = 3
"""Layers named in a message; the rest are counted."""


def number(value: float) -> str:
    """Format a number with four significant digits."""
    return f"{value:.4g}"


def factor(value: float) -> str:
    """Format a factor, rounded more if it is large."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def layers_named(layers: Sequence[str], n_layers: int) -> str:
    """Format the names of some of `n_layers` layers."""
    if len(layers) == 1:
        return layers[0]
    more = f" and {len(layers) - MAX_NAMED} more" if len(layers) > MAX_NAMED else ""
    return f"{len(layers)} of {n_layers} layers ({', '.join(layers[:MAX_NAMED])}{more})"
