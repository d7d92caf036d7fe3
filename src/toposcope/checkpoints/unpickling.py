"""Pickles read as data: every name stands for an inert object, so that nothing is imported or executed.

The standard library's unpickler in C makes the object, after one check of the opcodes that refuses what would take
memory, time or the stack out of proportion to the file: the machine itself has no bounds.
"""

import builtins
import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, BinaryIO

import msgspec

from toposcope.checkpoints.formats.dtypes import DTYPES
from toposcope.checkpoints.sources.source import CheckpointError, damaged

Names = Mapping[tuple[str, str], Any]
Unknown = dict[str, None]  # names of other classes
Persistent = Callable[[Any], Any] | None  # what stands for an object outside the pickle
MAX_PICKLE_BYTES = 1 << 28  # a hundred times the pickle of the largest models, which holds no numbers
MAX_OPCODES = 1 << 23  # 40 for each of 200,000 tensors
MAX_LINE_BYTES = 1 << 16
MAX_INTEGER_BYTES = 64  # with its opcode and their count; Python reads any; one of thousands of digits cannot be shown
MAX_KEY_PARTS = 64  # of a key and the tuples in it: hashing and comparing them recurs in C, without a bound
MAX_KEY_TEXT_BYTES = 1 << 17  # of a key: equal texts are compared byte by byte
MAX_KEY_INTEGER_BYTES = 9  # as of 64 bits; many longer ones can have one hash
NUMBER_PARTS = 24  # that a float or a long integer counts for: with three in a key, many keys can have one hash
MAX_OTHER_NAMES = 1 << 14  # distinct names of other classes in one pickle, each of which becomes a class
MAX_UNKNOWN = 32  # of them that are recorded
MAX_DIMENSIONS = 64  # of a tensor, as in torch


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
        self.state = next((part for part in parts if part and isinstance(part, dict)), self.state)

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
    if type(values) not in (tuple, list) or len(values) > MAX_DIMENSIONS:
        raise ValueError("not a shape")
    if any(type(value) is not int or value < 0 for value in values):
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
    stream: BinaryIO, location: str, names: Names, persistent: Persistent = None, unknown: Unknown | None = None
) -> Any:
    """Unpickle the next object of a stream, which is left behind it, with an inert object for every name.

    `names` maps a name to a function, a storage, the name of a dtype, or a class that defines ``__setstate__``.
    """
    try:
        content = _checked(stream)
        # A buffer to look ahead in spares the machine a call for each opcode.
        read = io.BufferedReader(io.BytesIO(content), min(len(content), 1 << 17))
        return _Unpickler(read, location, names, persistent, {} if unknown is None else unknown).load()
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
        # A function, or a method such as Path.touch, is news.
        if module in _USUAL and "." not in name and isinstance(getattr(builtins, name, dict), type):
            return Placeholder
        if len(self._unknown) < MAX_UNKNOWN and not module.startswith(("numpy.", "torch.")):
            self._unknown[full] = None
        return class_of(full)

    def persistent_load(self, reference: Any) -> Any:
        if self._persistent is None:
            raise pickle.UnpicklingError("it refers to objects outside the pickle")
        return self._persistent(reference)


# The check of the opcodes


_REFUSED = {
    *("EXT1", "EXT2", "EXT4", "INST", "NEWOBJ_EX", "NEXT_BUFFER", "READONLY_BUFFER", "PERSID"),
    *("LONG", "FLOAT", "STRING", "UNICODE", "GET", "PUT"),
}
"""Opcodes that no saved model needs, and texts of protocol 0."""
_LINE, _COUNTS = -1, {-2: 1, -3: 4, -4: 4, -5: 8}  # sizes of arguments; bytes of the count of the bytes that follow
_TUPLES = {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
_PUTS, _GETS = {"BINPUT", "LONG_BINPUT", "MEMOIZE"}, {"BINGET", "LONG_BINGET"}
_CALLS = ("REDUCE", "NEWOBJ", "OBJ", "BINPERSID")
_NUMBERS = {"BINFLOAT", "INT", "LONG1", "LONG4"}
_KEYS = {
    **{"SETITEM": slice(1, 2), "SETITEMS": slice(0, None, 2), "DICT": slice(0, None, 2)},
    **{"ADDITEMS": slice(None), "FROZENSET": slice(None)},
}
"""Which of the values that an opcode takes are hashed."""


def _described(opcode: pickletools.OpcodeInfo) -> tuple[str, int, int | None, int]:
    """Return name, bytes of the argument, and how many values it takes (None: all above the mark) and pushes."""
    size = opcode.arg.n if opcode.arg else 0
    before, n_after = opcode.stack_before, len(opcode.stack_after)
    if pickletools.markobject in before:
        return opcode.name, size, None, n_after - before.index(pickletools.markobject)
    return opcode.name, size, len(before), n_after


_OPCODES = {o.code.encode("latin1"): _described(o) for o in pickletools.opcodes if o.name not in _REFUSED}


def _checked(stream: BinaryIO) -> bytes:
    """Return the next pickle of a stream, once it is known to be bounded, without its frames.

    Lengths lie inside the file, indices of the memo are at most as many as the opcodes before them, a call takes
    arguments that were made for it, and keys are small. The stack holds the sizes of its values: how many parts are
    looked at, at most, to hash or compare them.
    """
    kept = bytearray()
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[int, int] = {}
    made = ""  # by the last opcode but those of the memo
    for place in range(MAX_OPCODES):
        code = stream.read(1)
        if code not in _OPCODES:
            raise pickle.UnpicklingError("an opcode that torch does not write" if code else "it ends too early")
        name, n_bytes, n_taken, n_pushed = _OPCODES[code]
        size = NUMBER_PARTS if name in _NUMBERS else 1
        if n_bytes >= 0:
            content = code + stream.read(n_bytes) if n_bytes else code
        elif n_bytes == _LINE:
            content = code + _lines(stream, 2 if name == "GLOBAL" else 1)
        else:
            content, length = _counted(stream, code, _COUNTS[n_bytes])
            if length > (MAX_KEY_INTEGER_BYTES if name in _NUMBERS else MAX_KEY_TEXT_BYTES):
                size = MAX_KEY_PARTS + 1
        if name != "FRAME":
            kept += content
        if len(kept) > MAX_PICKLE_BYTES:
            raise pickle.UnpicklingError("it is too long; pickle it with protocol 4")
        if name in _PUTS:
            index = len(memo) if name == "MEMOIZE" else int.from_bytes(content[1:], "little")
            if index > place:
                raise pickle.UnpicklingError("an index of its memo beyond all values")
            memo[index] = stack[-1]
            continue
        if name in _GETS:
            stack.append(memo[int.from_bytes(content[1:], "little")])
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "POP":
            (marks if marks and marks[-1] == len(stack) else stack).pop()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name == "STOP":
            return bytes(kept)
        else:
            start = marks.pop() if n_taken is None else len(stack) - n_taken
            taken = stack[start:]
            if name in _NUMBERS and len(content) > MAX_INTEGER_BYTES:
                raise pickle.UnpicklingError("a whole number of many digits")
            if name in _KEYS and max(taken[_KEYS[name]], default=0) > MAX_KEY_PARTS:
                raise pickle.UnpicklingError("a key of many parts, or a long one")
            if name in ("REDUCE", "NEWOBJ") and made not in _TUPLES:
                raise pickle.UnpicklingError("the same arguments again")
            if name in _TUPLES or name == "FROZENSET":
                size = min(1 + sum(taken), MAX_KEY_PARTS + 1)
            elif name in _CALLS:
                size = max(taken)
            elif taken:
                size = taken[0]
            stack[start:] = [size] * n_pushed
        made = name
    raise pickle.UnpicklingError(f"more than {MAX_OPCODES:,} opcodes")


def _lines(stream: BinaryIO, count: int) -> bytes:
    """Read the lines of an argument."""
    lines = [stream.readline(MAX_LINE_BYTES) for _ in range(count)]
    if not all(line.endswith(b"\n") for line in lines):
        raise EOFError("a long line, or it ends too early")
    return b"".join(lines)


def _counted(stream: BinaryIO, code: bytes, width: int) -> tuple[bytes, int]:
    """Read an opcode of counted bytes; return it and their count."""
    count = stream.read(width)
    length = int.from_bytes(count, "little")
    content = stream.read(length) if length <= MAX_PICKLE_BYTES else b""
    if len(content) < length:
        raise EOFError("it ends too early, or holds too long a text; pickle it with protocol 4")
    return code + count + content, length
