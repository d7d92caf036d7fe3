"""Pickles read as data: every name stands for an inert object, so that nothing is imported or executed.

The standard library's unpickler in C makes the object, after one check of the opcodes that refuses what would take
memory, time or the stack out of proportion to the file: the machine itself has no bounds.
"""

import io
import pickle
import pickletools
import struct
from collections import ChainMap, OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, BinaryIO

import msgspec

from toposcope.checkpoints.formats.dtypes import DTYPES
from toposcope.checkpoints.sources.source import CheckpointError, damaged
from toposcope.checkpoints.tuning import MIN_DEFERRED_BYTES

Names = Mapping[tuple[str, str], Any]
Unknown = dict[str, None]  # names of other classes
Persistent = Callable[[Any], Any] | None  # what stands for an object outside the pickle
MAX_PICKLE_BYTES = 1 << 28  # a hundred times the pickle of the largest models, which holds no numbers
MAX_OPCODES = 1 << 24  # 40 for each of 400,000 tensors
MAX_LINE_BYTES = 1 << 16
MAX_INTEGER_BYTES = 64  # Python reads any; one of thousands of digits cannot be shown
MAX_STACK = 1 << 17  # values at a time; lists and dictionaries are pickled in batches of 1,000
MAX_NESTED_TUPLES = 16  # hashing and comparing tuples within tuples recurs in C, without a bound
MAX_KEY_PARTS = 64  # of a tuple that is a key
MAX_KEY_BYTES = 9  # of a whole number that is a key, as of 64 bits; many longer ones can have one hash
MAX_NESTED = 50_000  # lists and dictionaries within one another
MAX_OTHER_NAMES = 1 << 14  # distinct names of other classes in one pickle, each of which becomes a class
MAX_UNKNOWN = 32  # of them that are recorded
MAX_DIMENSIONS = 64  # of a tensor, as in torch
SEQUENCES = (tuple, list)


class StoredStorage(msgspec.Struct, frozen=True, gc=False):
    """Numbers stored in a row: the record that holds them, their dtype (empty for untyped bytes) and their count."""

    record: str
    dtype: str
    count: int


class StoredTensor(msgspec.Struct, frozen=True, gc=False):
    """A tensor as a pickle describes it; offset and strides count numbers."""

    storage: StoredStorage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Deferred(msgspec.Struct, frozen=True, gc=False):
    """Bytes of the pickled file that were not read: where they begin and end."""

    start: int
    stop: int


class Placeholder(dict[Any, Any]):
    """Stands for an object of another class, never imported or called; holds the items that the pickle sets."""

    __slots__ = ("arguments", "state")
    name = ""  # of the class that it stands for
    arguments: tuple[Any, ...]
    state: Mapping[Any, Any]

    def __new__(cls, *arguments: Any) -> "Placeholder":  # noqa: D102
        made = super().__new__(cls)  # not __init__, which the opcodes of objects do not call
        made.arguments, made.state = arguments, _STATELESS
        return made

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        # Attributes come alone, or before those of __slots__. They are not copied: a pickle can set them many times.
        parts = state if type(state) is tuple and len(state) == 2 else (state,)
        attributes = [part for part in parts if isinstance(part, dict)]
        if attributes:
            self.state = attributes[0] if len(attributes) == 1 else ChainMap(*reversed(attributes))

    def __call__(self, *arguments: Any) -> "Placeholder":
        """Return another object of this class."""
        return type(self)(*arguments)

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def append(self, _: Any) -> None:
        """Ignore items."""

    extend = append


class OtherTensor(Placeholder):
    """Stands for a tensor that is not plain numbers: quantised, sparse, of another class or without numbers."""

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape among its arguments, or among those of a tuple of them; () if there is none."""
        inner = [part for each in self.arguments if type(each) is tuple for part in each[:MAX_DIMENSIONS]]
        for part in (*self.arguments, *inner):
            if type(part) is tuple and 0 < len(part) <= MAX_DIMENSIONS and all(type(n) is int and n >= 0 for n in part):
                return part
        return ()


_STATELESS: Mapping[Any, Any] = MappingProxyType({})


@lru_cache(maxsize=256)
def class_of(name: str, base: type[Placeholder] = Placeholder) -> type[Placeholder]:
    """Return what stands for a class; nothing in a pickle can change it, as its methods need an object."""
    return type("Placeholder", (base,), {"__slots__": (), "name": name})


def name_of(kind: Any) -> str:
    """Return the name of what a placeholder, or the class of one, stands for; nothing of anything else."""
    return kind.name if issubclass(kind if isinstance(kind, type) else type(kind), Placeholder) else ""


class _Dictionary(OrderedDict[Any, Any]):
    """An ordered dictionary that ignores attributes."""

    def __setstate__(self, _: Any) -> None:
        pass


class _Function(msgspec.Struct, frozen=True):
    """A function of this package under the name of another; a pickle can set no attribute of it."""

    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def _dictionary(*pairs: Any) -> "_Dictionary | Placeholder":
    """Return an ordered dictionary, which Python 2 makes of a list of pairs."""
    return Placeholder(*pairs) if pairs else _Dictionary()


def natural_numbers(values: Any = ()) -> tuple[int, ...]:
    """Return the shape, offsets or strides that a pickle holds; ValueError for anything else."""
    if type(values) not in SEQUENCES or len(values) > MAX_DIMENSIONS:
        raise ValueError("not a shape")
    for value in values:
        if type(value) is not int or value < 0:
            raise ValueError("a shape of other than natural numbers")
    return tuple(values)


def _rebuild(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any = None, hooks: Any = None, metadata: Any = None
) -> StoredTensor | Placeholder:
    return _rebuild_v3(storage, offset, shape, strides, grad, hooks, getattr(storage, "dtype", None), metadata)


def _rebuild_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any, _hooks: Any, dtype: Any, metadata: Any = None
) -> StoredTensor | Placeholder:
    if isinstance(storage, Placeholder):
        return class_of(f"tensor of a {storage.name or 'storage of another kind'}", OtherTensor)(shape)
    if not isinstance(storage, StoredStorage) or not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError("a tensor without a storage or a dtype of torch")
    if isinstance(metadata, dict) and (metadata.get("conj") or metadata.get("neg")):
        return class_of("lazy conjugate or negative", OtherTensor)(shape)
    shape, strides, (offset,) = natural_numbers(shape), natural_numbers(strides), natural_numbers([offset])
    if len(shape) != len(strides):
        raise ValueError("a tensor whose strides do not fit its shape")
    return StoredTensor(storage, dtype, offset, shape, strides)


def _rebuild_from_type(rebuild: Any, kind: Any, arguments: Any, state: Any) -> Any:
    if isinstance(rebuild, _Function) and rebuild.function is _rebuild_from_type:
        raise ValueError("a tensor within a tensor")
    if len(arguments) > MAX_DIMENSIONS:
        raise ValueError("a tensor of many arguments")
    rebuilt = rebuild(*arguments)
    if isinstance(rebuilt, Placeholder) and (name := name_of(kind)):
        made = class_of(name, OtherTensor)(*arguments)
        made.__setstate__(state)
        return made
    return rebuilt


def _data(data: Any, *_: Any) -> Any:
    if isinstance(data, tuple):  # what a function returns may be a key, and is not looked into
        raise ValueError("a parameter that is a tuple")
    return data


def _instance(kind: Any = "", *arguments: Any) -> Placeholder:
    """Return an object of a class, as ``copyreg`` makes it."""
    return class_of(name_of(kind))(*arguments)


STORAGES = {
    **{"DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16"},
    **{"LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8"},
    **{"ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64"},
    **{"ComplexDoubleStorage": "complex128", "QInt8Storage": "int8", "QUInt8Storage": "uint8"},
    **{"QInt32Storage": "int32", "UntypedStorage": ""},
}
_USUAL = {
    *("__builtin__", "_codecs", "argparse", "builtins", "collections", "copyreg", "copy_reg", "datetime", "pathlib"),
    *("pathlib._local", "numpy", "torch", "torch.serialization", "torch.torch_version"),
    *("pytorch_lightning.utilities.parsing", "lightning.pytorch.utilities.parsing"),
    *("lightning.fabric.utilities.data", "lightning_fabric.utilities.data"),
}
"""Modules of what trainers often save with the weights; their names are no news."""
TENSOR_NAMES: Names = {
    ("collections", "OrderedDict"): _dictionary,
    **{("torch._utils", name): _rebuild for name in ("_rebuild_tensor", "_rebuild_tensor_v2")},
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_v3,
    **{("torch._utils", name): _data for name in ("_rebuild_parameter", "_rebuild_parameter_with_state")},
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    ("torch.nn.parameter", "Parameter"): _data,
    ("torch", "Size"): natural_numbers,
    **{("torch", name): StoredStorage(name, dtype, 0) for name, dtype in STORAGES.items()},
    ("torch.storage", "UntypedStorage"): StoredStorage("UntypedStorage", "", 0),
    **{("torch", name): name for name in DTYPES},
    **{(module, name): _instance for module in ("copyreg", "copy_reg") for name in ("_reconstructor", "__newobj__")},
}
"""Names that the pickle of a saved model may hold, and what each stands for; any other is a class of its own."""
_ATTACKS = set(
    """
os posix nt ntpath posixpath subprocess sys pty socket ctypes importlib runpy shutil webbrowser commands eval exec
execfile compile open __import__ input breakpoint globals torch.load torch.hub torch.serialization.load pickle.load
pickle.loads pickle.Unpickler _pickle.loads cPickle.loads
""".split()
)


def _is_attack(module: str, name: str) -> bool:
    """Return whether a name has no use in a saved model but an attack; only the message depends on it."""
    full = name if module in ("builtins", "__builtin__") else f"{module}.{name}"
    parts = name.split(".")
    return bool({module.partition(".")[0], full} & _ATTACKS) or (
        len(parts) > 1 and any(part in _ATTACKS or part.startswith("__") for part in parts)
    )


def load(
    stream: BinaryIO,
    location: str,
    names: Names,
    persistent: Persistent = None,
    unknown: Unknown | None = None,
    *,
    deferring: bool = False,
) -> Any:
    """Unpickle the next object of a stream, which is left behind it, with an inert object for every name.

    `names` maps a name to a function, a storage, the name of a dtype, or a class that defines ``__setstate__``. With
    `deferring`, long bytes stay in the file as `Deferred`, so that listing the arrays of a pickle does not read them.
    """
    try:
        content = _checked(stream, deferring=deferring)
        refer = (lambda place: Deferred(*place)) if deferring else persistent
        # A buffer to look ahead in spares the machine a call for each opcode.
        read = io.BufferedReader(io.BytesIO(content), min(len(content), 1 << 17))
        return _Unpickler(read, location, names, refer, {} if unknown is None else unknown).load()
    except CheckpointError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise damaged(location, f"its pickle cannot be read ({reason!a})") from error


class _Unpickler(pickle.Unpickler):  # noqa: S301 - every name is inert
    def __init__(self, stream: BinaryIO, location: str, names: Names, persistent: Persistent, unknown: Unknown) -> None:
        # Texts of Python 2 may hold the bytes of an array.
        super().__init__(stream, encoding="latin1")
        self._location, self._names, self._persistent, self._unknown = location, names, persistent, unknown
        self._n_others = 0

    def find_class(self, module: str, name: str) -> Any:
        found = self._names.get((module, name))
        if found is not None:
            return _Function(found) if callable(found) and not isinstance(found, type) else found
        full = f"{module}.{name}"
        full = full if full.isprintable() else ascii(full)[1:-1]
        if _is_attack(module, name):
            raise CheckpointError(
                f"{self._location}: its pickle names {full[:120]!a}, which no saved model needs but an attack does; "
                "nothing was executed. Save the model's state_dict() alone",
                "unsafe",
            )
        self._n_others += 1
        if self._n_others > MAX_OTHER_NAMES:
            raise pickle.UnpicklingError(f"more than {MAX_OTHER_NAMES:,} names of classes")
        if module == "torch._utils" and name.startswith("_rebuild_"):
            what = name.removeprefix("_rebuild_").replace("_", " ").replace("qtensor", "quantised tensor")
            return class_of(what, OtherTensor)
        if module in _USUAL:
            return Placeholder
        if len(self._unknown) < MAX_UNKNOWN and not module.startswith(("numpy.", "torch.")):
            self._unknown[full] = None
        return class_of(full)

    def persistent_load(self, reference: Any) -> Any:
        if self._persistent is None:
            raise pickle.UnpicklingError("it refers to objects outside the pickle")
        return self._persistent(reference)


# The check of the opcodes

_CODE = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}
_BINPUT, _LONG_BINPUT, _MEMOIZE = _CODE["BINPUT"], _CODE["LONG_BINPUT"], _CODE["MEMOIZE"]
_BINGET, _LONG_BINGET, _POP, _DUP = _CODE["BINGET"], _CODE["LONG_BINGET"], _CODE["POP"], _CODE["DUP"]
_MARK, _TUPLE, _LONG1, _LONG4, _INT = (_CODE[name] for name in ("MARK", "TUPLE", "LONG1", "LONG4", "INT"))
_GLOBAL, _BINPERSID, _STOP, _FRAME, _PROTO = (_CODE[n] for n in ("GLOBAL", "BINPERSID", "STOP", "FRAME", "PROTO"))


def _table(values: Mapping[str, int], missing: int = -1) -> list[int]:
    """Return a number for each byte that is an opcode."""
    table = [missing] * 256
    for names, value in values.items():
        for name in names.split():
            table[_CODE[name]] = value
    return table


_CONSTANTS = _table({
    "NONE NEWTRUE NEWFALSE EMPTY_LIST EMPTY_DICT EMPTY_SET EMPTY_TUPLE": 0,
    "BININT1": 1, "BININT2": 2, "BININT": 4, "BINFLOAT": 8,
})  # fmt: skip
"""Bytes of the argument of opcodes that push one value."""
_COUNTED = _table({
    "SHORT_BINUNICODE SHORT_BINSTRING SHORT_BINBYTES": 1, "BINUNICODE BINSTRING BINBYTES": 4,
    "BINUNICODE8 BINBYTES8 BYTEARRAY8": 8, "LONG1": 1, "LONG4": 4,
})  # fmt: skip
"""Bytes of the count of the bytes that follow."""
_BYTES = _table({"SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8 BINSTRING": 1})
_POPPED = _table({"BINPERSID STOP": 0, "APPEND BUILD STACK_GLOBAL REDUCE NEWOBJ": 1, "SETITEM": 2})
"""Values by which the stack shrinks; that which is left on top is no tuple."""
_BY_MARK = _table({"LIST DICT FROZENSET OBJ": 1, "APPENDS SETITEMS ADDITEMS POP_MARK": 0})
"""Values pushed by opcodes that take all above the mark."""
_KEYS = _table({"SETITEM SETITEMS DICT": 2, "ADDITEMS FROZENSET": 1}, missing=0)
"""Every how manieth of the values that an opcode takes is hashed."""
_CALLS = _table({"REDUCE NEWOBJ": 1}, missing=0)
_TUPLES = _table({"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3})
_UINT32 = struct.Struct("<I").unpack_from
_MAX_OPCODE_BYTES = 128  # of an opcode with its argument, but for lines and what is counted
_CHUNK = 1 << 13
_NESTED = 40  # a tuple stands on the stack as its nesting, shifted by so many bits, plus its length; all else as 0
_LENGTH = (1 << _NESTED) - 1


def _checked(stream: BinaryIO, *, deferring: bool) -> bytes:
    """Return the next pickle of a stream, once it is known to be bounded, without its frames and what is deferred.

    Lengths lie inside the file, and indices of the memo are at most as many as the opcodes before them. Tuples are
    followed along the stack: they are not nested deeply, small where they are keys, and of calls no longer together
    than the pickle itself.
    """
    kept: list[bytes] = []
    data, at, first, limit, n_kept, n_arguments, constants = b"", 0, 0, -1, 0, 0, _CONSTANTS
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[int, int] = {}
    for place in range(MAX_OPCODES):
        if at > limit:
            kept.append(data[first:at])
            n_kept += at - first
            more = stream.read(_CHUNK)
            data, first, at = data[at:] + more, 0, 0
            limit = len(data) - (_MAX_OPCODE_BYTES if len(more) == _CHUNK else 1)
            if not data or n_kept > MAX_PICKLE_BYTES:
                raise EOFError("it ends too early, or is too long")
            if len(stack) > MAX_STACK:
                raise pickle.UnpicklingError(f"more than {MAX_STACK:,} values that wait for others")
        code = data[at]
        at += 1
        if code == _LONG_BINPUT:
            (index,) = _UINT32(data, at)
            if index > place:
                raise pickle.UnpicklingError("an index of its memo beyond all values")
            memo[index] = stack[-1]
            at += 4
        elif code == _BINPUT:
            memo[data[at]] = stack[-1]
            at += 1
        elif (size := constants[code]) >= 0:
            stack.append(0)
            at += size
        elif code == _BINGET:
            stack.append(memo[data[at]])
            at += 1
        elif code == _MARK:
            marks.append(len(stack))
        elif code == _TUPLE or (size := _TUPLES[code]) > 0:
            mark = marks.pop() if code == _TUPLE else len(stack) - size
            parts = stack[mark:]
            nesting = (max(parts) >> _NESTED) + 1 if any(parts) else 1
            if nesting > MAX_NESTED_TUPLES:
                raise pickle.UnpicklingError(f"more than {MAX_NESTED_TUPLES} tuples within one another")
            stack[mark:] = [(nesting << _NESTED) + len(parts)]
        elif (popped := _POPPED[code]) >= 0:
            if code == _STOP:
                stream.seek(stream.tell() - len(data) + at)
                kept.append(data[first:at])
                return b"".join(kept)
            if code == _BINPERSID and deferring:
                raise pickle.UnpicklingError("it refers to objects outside the pickle")
            if _CALLS[code] > 0:
                n_arguments += stack[-1] & _LENGTH
                if n_arguments > place:
                    raise pickle.UnpicklingError("the same arguments again and again")
            elif _KEYS[code]:
                _check_keys(stack[-2:-1])
            del stack[len(stack) - popped :]
            stack[-1] = 0
        elif code == _LONG_BINGET:
            stack.append(memo[_UINT32(data, at)[0]])
            at += 4
        elif code == _MEMOIZE:
            memo[len(memo)] = stack[-1]
        elif (width := _COUNTED[code]) > 0:
            size = int.from_bytes(data[at : at + width], "little")
            is_long = size > MAX_KEY_BYTES and code in (_LONG1, _LONG4)
            if is_long and size > MAX_INTEGER_BYTES:
                raise pickle.UnpicklingError("a whole number of many digits")
            stack.append(2 << _NESTED if is_long else 0)  # no key
            is_deferred = deferring and size >= MIN_DEFERRED_BYTES and _BYTES[code] > 0
            if not is_deferred and at + width + size <= len(data):
                at += width + size
                continue
            start = stream.tell() - len(data) + at + width
            _check_end(stream, start + size)
            if is_deferred:
                kept += [data[first : at - 1], _reference(start, start + size)]
            else:
                n_kept += size
                if n_kept > MAX_PICKLE_BYTES:
                    raise EOFError("it holds too long a text; pickle it with protocol 4")
                stream.seek(start)
                kept += [data[first : at + width], stream.read(size)]
            data, first, at, limit = b"", 0, 0, -1
        elif (pushed := _BY_MARK[code]) >= 0:
            mark = marks.pop()
            if every := _KEYS[code]:
                _check_keys(stack[mark::every])
            stack[mark:] = [0] * pushed
        elif code in (_GLOBAL, _INT):
            for _ in range(2 if code == _GLOBAL else 1):
                if (end := data.find(b"\n", at)) < 0:
                    data += stream.read(MAX_LINE_BYTES)
                    end = data.index(b"\n", at)
                if code == _INT and end - at > 20:  # digits of 64 bits and a sign
                    raise pickle.UnpicklingError("a whole number of many digits")
                at = end + 1
            stack.append(0)
        elif code == _POP:
            (marks if marks and marks[-1] == len(stack) else stack).pop()
        elif code == _DUP:
            stack.append(stack[-1])
        elif code == _FRAME:
            kept.append(data[first : at - 1])
            at += 8
            first = at
        elif code == _PROTO:
            at += 1
        else:
            raise pickle.UnpicklingError("an opcode that torch does not write")
    raise pickle.UnpicklingError(f"more than {MAX_OPCODES:,} opcodes")


def _check_keys(keys: list[int]) -> None:
    """Refuse tuples that take long to hash."""
    if any(key >> _NESTED > 1 or key & _LENGTH > MAX_KEY_PARTS for key in keys):
        raise pickle.UnpicklingError("a key of tuples within tuples, of many parts or of many digits")


def _check_end(stream: BinaryIO, stop: int) -> None:
    """Refuse a length that exceeds the file; leave the stream behind it."""
    if not (stream.seek(stop - 1) and stream.read(1)):
        raise EOFError("it ends too early")


def _reference(start: int, stop: int) -> bytes:
    """Return opcodes that refer to bytes of the file as to an object outside the pickle."""
    places = b"".join(pickle.LONG1 + b"\x09" + place.to_bytes(9, "little") for place in (start, stop))
    return places + pickle.TUPLE2 + pickle.BINPERSID
