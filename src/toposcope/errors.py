"""The one error type of the library, what other errors say, and the advice on a name that does not exist."""

import functools
import sys
import warnings
from collections.abc import Callable, Iterable
from json import JSONDecodeError
from types import FunctionType
from typing import Any, TypeVar

from toposcope.elsewhere import elsewhere

_AnyCallable = TypeVar("_AnyCallable", bound=Callable[..., Any])

MAX_FOREIGN_MESSAGE = 200  # characters of another library's message


class ToposcopeError(Exception):
    """Something the user can fix: one line that names the thing at fault and how to fix it."""


class WrongCallError(ToposcopeError, TypeError):
    """A function was called with an argument that it does not have."""


def message_of(error: BaseException) -> str:
    """Return what an error says on one line; of another library's, the beginning, or its type if it says nothing."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = error.doc if isinstance(error, JSONDecodeError) else ""
    content = error.object if isinstance(error, UnicodeDecodeError) else b""
    if "\0" in text or b"\0" in content:
        return "zero bytes in it, as a crash leaves"
    message = " ".join(str(error).split())
    if message.startswith("Exceeds the limit (") and "integer string" in message:
        return "a whole number of more than 4,300 digits"
    return message if isinstance(error, ToposcopeError) else message[:MAX_FOREIGN_MESSAGE] or type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the name that was probably meant, one that is spelt alike or goes on; or nothing."""
    from difflib import get_close_matches  # slow to import

    plain = {each.lower().replace("-", "_"): each for each in known if each}
    meant = name.lower().replace("-", "_")
    near = get_close_matches(meant, plain, 1) or [each for each in plain if meant and each.startswith(meant)]
    return plain[near[0]] if near else ""


def choices(name: str, known: Iterable[str]) -> str:
    """Return a hint for a wrong name: the one that was probably meant, and all that exist."""
    if away := elsewhere(name):
        return away
    known = list(dict.fromkeys(each for each in known if each))
    if not known:
        return "nothing to choose from"
    listed = ", ".join(known)
    if meant := nearest(name, known):
        return f"did you mean {meant!r}? Choose from {listed}"
    return f"choose from {listed}"


def warn_caller(message: str) -> None:
    """Warn at the line of the caller's own code, however many functions of this library lie in between."""
    frame, level = sys._getframe(1), 2  # noqa: SLF001 - what the standard library walks too
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "toposcope":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


def checks_arguments(function: _AnyCallable) -> _AnyCallable:
    """Return a function that answers an unknown argument with the name that was probably meant.

    Its signature, for readers and type checkers, is that of the function; a call takes half a microsecond more.
    """
    import inspect  # slow to import

    parameters = inspect.signature(function).parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    if inspect.Parameter.VAR_KEYWORD in kinds or inspect.Parameter.VAR_POSITIONAL in kinds:
        return function
    by_name = {each.name for each in parameters if each.kind != inspect.Parameter.POSITIONAL_ONLY}
    by_place = [each.name for each in parameters if each.kind != inspect.Parameter.KEYWORD_ONLY]
    is_method = by_place[:1] == ["self"]
    what = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        if options.keys() <= by_name and len(arguments) <= len(by_place):
            return function(*arguments, **options)
        names = [each.name for each in parameters if each.name != "self"]
        for name in options:
            if name not in by_name:
                raise WrongCallError(f"{what}: no argument {name!r}; {choices(name, names)}")
        places = len(by_place) - is_method
        raise WrongCallError(
            f"{what}: {len(arguments) - is_method} arguments without a name, and it takes {places} "
            f"({', '.join(by_place[is_method:])}); name the others: {', '.join(names[places:]) or 'there are none'}"
        )

    return checked  # type: ignore[return-value]


def check_arguments_of(package: str, names: Iterable[str]) -> None:
    """Let the functions of a package that have these names answer as `checks_arguments` says."""
    module = sys.modules[package]
    for name in names:
        value = getattr(module, name)
        if isinstance(value, FunctionType) and not hasattr(value, "__wrapped__"):
            setattr(module, name, public(value, package))


def public(function: _AnyCallable, package: str) -> _AnyCallable:
    """Return a function as a package exports it; it is pickled by that name, the one it checks by its own."""
    checked = checks_arguments(function)
    if checked is not function:
        checked.__module__ = package
    return checked


def unknown_name(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error of a package or object that has no such name, with the one that was probably meant."""
    if advice := elsewhere(name):
        return AttributeError(f"{owner} has no attribute {name!r}; {advice}")
    meant = "" if name.startswith("_") else nearest(name, known)
    return AttributeError(f"{owner} has no attribute {name!r}{meant and f'; did you mean {meant!r}?'}")
