"""One rule for what is read from outside: how many bytes, values, levels and seconds it may take, whoever reads it.

Readers of configurations, declarations, headers, indices, manifests and answers of servers ask here before anything
is made of what they read. Whatever is beyond a bound is a ValueError that says so in one line.
"""

import json
import logging
import queue
import re
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from toposcope.errors import message_of

MAX_BYTES = 100_000_000  # of a text that describes something else; the safetensors library allows as many in a header
MAX_VALUES = 1 << 22
"""Signs of JSON that begin or separate values: the headers of 200,000 tensors have 1.6 million. Empty lists, of which
Python makes the most of the fewest bytes, then take 0.3 GB."""
MAX_TOML_BYTES = 4_000_000  # Python's reader takes up to a hundred times as much memory
MAX_DEPTH = 20
"""Tables and lists of TOML within one another; and parts of a key, by whose square its reader takes memory."""
MAX_RUNS = 1 << 12  # of one log, each of which takes some milliseconds
MAX_CONTAINERS = 1 << 18  # dictionaries, lists and objects of a pickle
MAX_NESTED = 50_000  # of them within one another
MAX_REPEATED = 1 << 16
"""Values of a pickle if those in several places are counted several times; or eight times its own."""
SAID_AFTER_SECONDS = 5.0  # of waiting for a server, after which one line says so
MAX_SECONDS = 60.0  # without progress, after which whoever waits for a server gives up

_SIGNS = "[{,"
_TOML_PART = re.compile(r"[^,=\n\[\]{}]+")
_Kind = TypeVar("_Kind")
_Piece = TypeVar("_Piece")


class _Stored(Protocol):
    @property
    def size(self) -> int: ...

    def read(self, start: int, stop: int) -> Any: ...


def bytes_of(file: _Stored | Path, limit: int = MAX_BYTES) -> bytes:
    """Read a file that describes something, unless it is too long to."""
    size = file.stat().st_size if isinstance(file, Path) else file.size
    if size > limit:
        raise ValueError(f"{size:,} bytes, of at most {limit:,}")
    content: bytes = file.read_bytes() if isinstance(file, Path) else file.read(0, size).tobytes()
    return content


def refuse_values(text: bytes | str) -> None:
    """Refuse JSON of more values than any description has, before they are made."""
    signs: Iterable[Any] = _SIGNS if isinstance(text, str) else [sign.encode() for sign in _SIGNS]
    if len(text) > MAX_VALUES and sum(text.count(sign) for sign in signs) > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES:,} values")


def json_value(text: bytes | str) -> Any:
    """Return what JSON holds, with NaN and infinities as Python writes them."""
    refuse_values(text)
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(message_of(error)) from error


def json_as(text: bytes, kind: type[_Kind]) -> _Kind:
    """Return what JSON holds as a type of msgspec."""
    refuse_values(text)
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(message_of(error)) from error


def toml_value(path: Path) -> dict[str, Any]:
    """Return what a file of TOML holds."""
    text = bytes_of(path, MAX_TOML_BYTES).decode()
    # Texts count too, but for dots in a row: a path that goes up.
    if any(part[0].replace("..", "").count(".") > MAX_DEPTH for part in _TOML_PART.finditer(text)):
        raise ValueError(f"more than {MAX_DEPTH} deep: a key of so many parts, or a text of so many dots")
    try:
        content = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(message_of(error)) from error
    _refuse_depth(content, MAX_DEPTH)
    return content


def _refuse_depth(content: Any, depth: int) -> None:
    inner = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    if inner and not depth:
        raise ValueError(f"tables or lists more than {MAX_DEPTH} deep")
    for value in inner:
        _refuse_depth(value, depth - 1)


def awaited(pieces: Iterator[_Piece], what: str) -> Iterator[_Piece]:
    """Yield what a server sends as it comes, in a thread; a TimeoutError once nothing more has come for too long."""
    came = queue.Queue[_Piece | BaseException](64)
    is_over = threading.Event()

    def fetch() -> None:
        try:
            for piece in pieces:
                came.put(piece)
                if is_over.is_set():
                    return
            came.put(StopIteration())
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            came.put(error)

    # Not one of a pool, whose threads are waited for at the end of the program.
    threading.Thread(target=fetch, daemon=True).start()
    try:
        while not isinstance(piece := _next(came, what), StopIteration):
            if isinstance(piece, BaseException):
                raise piece
            yield piece
    finally:
        is_over.set()
        while not came.empty():
            came.get_nowait()


def _next(came: "queue.Queue[_Piece | BaseException]", what: str) -> _Piece | BaseException:
    try:
        return came.get(timeout=SAID_AFTER_SECONDS)
    except queue.Empty:
        text = "%s: no answer for %g s; waiting, %g s at most"
        logging.getLogger(__name__).warning(text, what, SAID_AFTER_SECONDS, MAX_SECONDS)
    try:
        return came.get(timeout=MAX_SECONDS - SAID_AFTER_SECONDS)
    except queue.Empty:
        raise TimeoutError from None


def is_bounded(content: Any, parts_of: Callable[[Any], list[Any]]) -> bool:
    """Return whether content whose parts may lie in many places can be looked at in each of them.

    What holds itself is cut there first, so that no walk goes round in it; a tuple that does cannot be cut.
    """
    sizes: dict[int, int] = {}  # of each value with all below it, wherever it lies
    above: set[int] = set()
    stack: list[tuple[Any, bool]] = [(content, False)]
    total = 0
    while stack:
        value, is_done = stack.pop()
        if not is_done:
            if id(value) in sizes:
                continue  # before its parts are listed
            sizes[id(value)] = 0
            above.add(id(value))
            if len(above) > MAX_NESTED or len(sizes) > MAX_CONTAINERS:
                return False
            stack.append((value, True))
            stack += [(part, False) for part in parts_of(value) if isinstance(part, dict | list | tuple)]
            continue
        parts = parts_of(value)
        if not above.isdisjoint(map(id, parts)):
            _cut(value, above)
            parts = parts_of(value)
            if not above.isdisjoint(map(id, parts)):
                return False
        above.remove(id(value))
        size = len(parts) + 1 + sum(sizes.get(id(part), 0) for part in parts)
        sizes[id(value)] = min(size, 1 << 60)
        total += len(parts) + 1
    return sizes[id(content)] <= max(MAX_REPEATED, 8 * total)


def _cut(value: Any, above: set[int]) -> None:
    places = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place in [place for place, part in places if id(part) in above]:
        value[place] = None
