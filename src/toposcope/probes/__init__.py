"""Probes: model state -> diagrams and statistics. One file, one class; adding a probe means adding its file."""

import importlib
import pkgutil
from functools import cache
from typing import Any, Union

import msgspec

from toposcope.errors import ToposcopeError
from toposcope.probes.probe import Failure, Measurement, Probe, Subject

__all__ = ["Failure", "Measurement", "Probe", "Subject", "make_probes", "probe_types"]


@cache
def probe_types() -> dict[str, type[Probe]]:
    """Return every probe class of this package by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return {cls.name(): cls for cls in sorted(Probe.__subclasses__(), key=lambda c: c.name())}


def make_probes(declared: list[dict[str, Any]]) -> list[Probe]:
    """Return probes from their declarations, ``{"name": ..., option: value}``.

    Raises
    ------
    ToposcopeError
        For an unknown probe, option or value, or a probe that needs another that is not declared.
    """
    probes = [_make_probe(declaration) for declaration in declared]
    if len(set(probes)) != len(probes):
        raise ToposcopeError("probes: the same probe is declared twice with the same options; drop one of them")
    for probe in probes:
        probe.source(probes)
    return probes


def _make_probe(declaration: dict[str, Any]) -> Probe:
    types = probe_types()
    name = declaration.get("name")
    if not isinstance(name, str) or name not in types:
        raise ToposcopeError(f"probes: {name!r} is not a probe; choose from {', '.join(types)}")
    try:
        probe: Probe = msgspec.convert(declaration, Union[tuple(types.values())], strict=False)  # noqa: UP007 - built at run time
    except msgspec.ValidationError as error:
        options = ", ".join(types[name].__struct_fields__) or "none"
        raise ToposcopeError(f"probes: {name}: {error} (its options: {options})") from error
    return probe
