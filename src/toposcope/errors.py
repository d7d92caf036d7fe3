"""The one error type of the library, what other errors say, and the advice on a name that does not exist."""

from collections.abc import Iterable
from json import JSONDecodeError

MAX_FOREIGN_MESSAGE = 200  # characters of another library's message


class ToposcopeError(Exception):
    """Something the user can fix: one line that names the thing at fault and how to fix it."""


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


def choices(name: str, known: Iterable[str]) -> str:
    """Return a hint for a wrong name: the one that was probably meant, and all that exist."""
    from difflib import get_close_matches  # slow to import

    plain = {each.lower().replace("-", "_"): each for each in known if each}
    if not plain:
        return "nothing to choose from"
    meant = name.lower().replace("-", "_")
    near = get_close_matches(meant, plain, 1) or [each for each in plain if meant and each.startswith(meant)]
    listed = ", ".join(plain.values())
    return f"did you mean {plain[near[0]]!r}? Choose from {listed}" if near else f"choose from {listed}"
