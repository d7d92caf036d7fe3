"""Errors of a declaration's fields, by the names that the TOML file has for them."""

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from toposcope.errors import choices

_NAMES = {
    "array": "a list, or tables in double brackets",
    "object": "a table",
    "str": "text in quotes",
    "null": "nothing",
}


def readable(error: Exception, kind: type[msgspec.Struct], whole: str = "top level") -> str:
    """Return what is wrong and the mend, from the message of a conversion into `kind`, called `whole`."""
    message, _, place = str(error).partition(" - at `$")
    path = re.sub(r"\[(?:\d*|\.\.\.)\]", "", place).strip("`.")
    parts = path.split(".") if path else []
    hint = _hint(kind, parts)
    if unknown := re.search(r"unknown field `(.+?)`", message):
        fields = [name for struct in _structs(hint) for name in struct.__struct_fields__]
        where = f"[{path}]" if path else whole
        return f"unknown field {unknown[1]!r} at {where}; {choices(unknown[1], fields)}"
    if wrong := re.search(r"Invalid enum value '?(.*?)'?$", message):
        allowed = [str(value) for part in _parts(hint) if get_origin(part) is Literal for value in get_args(part)]
        return f"{path} is {wrong[1]!r}; {choices(wrong[1], allowed)}"
    if types := re.fullmatch(r"Expected `(.+)`, got `(.+)`", message):
        expected = " or ".join(_NAMES.get(name, name) for name in types[1].split(" | "))
        return f"{path or 'the file'} is {_NAMES.get(types[2], types[2])}; it must be {expected}"
    return f"{path}: {message}" if path else message


def _hint(kind: Any, parts: list[str]) -> Any:
    """Return the type of a field, by its path."""
    for part in parts:
        fields = [get_type_hints(struct).get(part) for struct in _structs(kind)]
        kind = next((field for field in fields if field is not None), None)
    return kind


def _structs(hint: Any) -> list[type[msgspec.Struct]]:
    return [part for part in _parts(hint) if isinstance(part, type) and issubclass(part, msgspec.Struct)]


def _parts(hint: Any) -> Iterator[Any]:
    """Yield the types that a hint is made of, through unions and lists."""
    if get_origin(hint) is Literal or not get_args(hint):
        yield hint
    else:
        for part in get_args(hint):
            yield from _parts(part)
