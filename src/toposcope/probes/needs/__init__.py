"""Inputs that probes need beyond the layers of checkpoints, one a file.

A module holds a `Need` called ``NEED``; adding a kind of input means adding its file to this package, or naming its
module as an entry point of the group ``toposcope.needs`` in a package of one's own. A probe lists the inputs it needs
in `Probe.NEEDS` and finds them in `Subject.inputs`.
"""

from functools import cache
from types import ModuleType

from toposcope.errors import ToposcopeError, choices
from toposcope.plugins import collect
from toposcope.probes.needs.need import Need, RunContext
from toposcope.probes.probe import RELATIONS, Probe

__all__ = ["Need", "RunContext", "check_needs", "needs", "needs_of"]


@cache
def needs() -> dict[str, Need]:
    """Return every kind of input by name.

    Raises
    ------
    ToposcopeError
        If an installed package adds one that cannot be loaded, or whose name is taken.
    """
    return collect(__name__, "toposcope.needs", _need_of)


def needs_of(*probes: Probe | None) -> list[Need]:
    """Return the inputs that some probes need, by name; None stands for no probe."""
    names = {name for probe in probes if probe is not None for name in probe.NEEDS - RELATIONS}
    return [needs()[name] for name in sorted(names)]


def check_needs(probe: type[Probe]) -> None:
    """Refuse a probe that needs an input nothing provides.

    Raises
    ------
    ToposcopeError
    """
    known = sorted({*needs(), *RELATIONS})
    for name in sorted(probe.NEEDS - set(known)):
        raise ToposcopeError(
            f"probe {probe.name()}: nothing provides {name!r}, which its NEEDS names; {choices(name, known)}"
        )


def _need_of(module: ModuleType) -> dict[str, Need]:
    need = getattr(module, "NEED", None)
    if not isinstance(need, Need):
        return {}
    if need.name in RELATIONS:
        raise ToposcopeError(f"need {need.name!r}: the name is taken; it stands for what other checkpoints hold")
    return {need.name: need}
