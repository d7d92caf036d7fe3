"""Probes: model state -> diagrams and statistics. One file, one class; adding a probe means adding its file.

Another package adds one by naming its module as an entry point of the group ``toposcope.probes``.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from types import ModuleType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from toposcope.errors import ToposcopeError, choices
from toposcope.plugins import collect
from toposcope.probes.feature import KINDS, Feature, Kind
from toposcope.probes.needs import check_needs
from toposcope.probes.probe import Failure, Measurement, Probe, ProbeInput

__all__ = ["Failure", "Feature", "Kind", "Measurement", "Probe", "ProbeInput", "make_probes", "probe_types"]


Probes = Sequence[dict[str, Any] | str] | dict[str, Any] | str
"""What a user writes for probes: ``"rips"``, ``{"name": "rips", "pooled": True}``, or several of these."""


@cache
def probe_types() -> dict[str, type[Probe]]:
    """Return every probe class by name.

    Raises
    ------
    ToposcopeError
        If a probe does not declare the kind of its statistics, needs an input that nothing provides, or comes from an
        installed package that cannot be loaded.
    """
    return dict(sorted(collect(__name__, "toposcope.probes", _probes_of).items()))


def _probes_of(module: ModuleType) -> dict[str, type[Probe]]:
    """Return the probe classes that a module defines."""
    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Probe)]
    types = {cls.name(): cls for cls in classes if cls is not Probe and cls.__module__ == module.__name__}
    for name, cls in types.items():
        if getattr(cls, "KIND", None) not in KINDS:
            raise ToposcopeError(f"probe {name}: set {cls.__name__}.KIND to one of {', '.join(KINDS)}")
        check_needs(cls)
    return types


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


def declarations(probes: Probes) -> list[dict[str, Any]]:
    """Return the declarations of one probe or several; a name stands for the probe with its default options."""
    if isinstance(probes, str | dict):
        probes = [probes]
    if not isinstance(probes, Iterable):
        raise ToposcopeError(f"probes: {probes!r} is none; give names, such as 'rips', or dictionaries with options")
    return [{"name": probe} if isinstance(probe, str) else probe for probe in probes]


def _make_probe(declaration: dict[str, Any]) -> Probe:
    types = probe_types()
    if not isinstance(declaration, dict):
        raise ToposcopeError(f'probes: {declaration!r} is not a probe; give {{"name": ...}}, with options if wanted')
    name = declaration.get("name")
    if not isinstance(name, str) or name not in types:
        raise ToposcopeError(f"probes: {name!r} is not a probe; {choices(str(name), types)}")
    try:
        probe: Probe = msgspec.convert(declaration, Union[tuple(types.values())], strict=False)  # noqa: UP007 - built at run time
    except msgspec.ValidationError as error:
        raise ToposcopeError(f"probes: {name}: {_option_error(types[name], str(error))}") from error
    return probe


def _option_error(kind: type[Probe], message: str) -> str:
    """Return a message that names the wrong option and the values it takes."""
    if unknown := re.search(r"unknown field `(.+?)`", message):
        hint = choices(unknown[1], kind.__struct_fields__) if kind.__struct_fields__ else "it takes none"
        return f"unknown option {unknown[1]!r}; {hint}"
    options = ", ".join(kind.__struct_fields__) or "none"
    reason, _, place = message.partition(" - at `$.")
    name = place.rstrip("`").partition("[")[0]
    if name not in kind.__struct_fields__:
        return f"{message} (its options: {options})"
    hint = get_type_hints(kind)[name]
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    allowed = [str(value) for part in parts if get_origin(part) is Literal for value in get_args(part)]
    wrong = re.search(r"Invalid enum value '?(.*?)'?$", reason)
    if wrong and allowed:
        return f"{name} is {wrong[1]!r}; {choices(wrong[1], allowed)}"
    takes = f"; it takes {' or '.join(map(repr, allowed))}" if allowed else ""
    return f"{name}: {reason}{takes} (its options: {options})"


def __dir__() -> list[str]:
    return sorted(__all__)
