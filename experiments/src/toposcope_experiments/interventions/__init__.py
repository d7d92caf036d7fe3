"""Pushes on topology while a network trains, against placebos: whether the loss follows."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toposcope_experiments.interventions.push import TopologyPush

__all__ = ["TopologyPush"]


def __getattr__(name: str) -> object:
    """Import what needs PyTorch when it is first used."""
    if name in __all__:
        from toposcope_experiments.interventions.push import TopologyPush

        return TopologyPush
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
