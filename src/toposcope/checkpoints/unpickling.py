"""Reading pickles as data: every name in them stands for something inert, and any other name is refused."""

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pickle import BINGET, BININT1, BINPUT, BINUNICODE, LONG_BINPUT, MARK, STOP
from typing import Any, BinaryIO, ClassVar, cast

import msgspec

from toposcope.checkpoints.sources import CheckpointError, StoredFile

Names = Mapping[tuple[str, str], Any]

LARGEST_PICKLE = 1 << 28
"""Bytes; the pickles of the largest models, which hold no numbers, are a hundredth of it."""
LONGEST_LINE = 1 << 16
MOST_DIMENSIONS = 64
"""As torch has it."""
SEQUENCES = (tuple, list)


class StoredStorage(msgspec.Struct, frozen=True, gc=False):
    """A run of numbers in an archive: its record, their format (empty if untyped: bytes) and their count."""

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


class Inert(dict[Any, Any]):
    """What stands for an object whose class does not matter here: it takes all it is given and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> "Inert":  # noqa: D102
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __setstate__(self, _: Any) -> None:
        pass

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def append(self, _: Any) -> None:
        """Take an item of what was a list."""

    def extend(self, _: Any) -> None:
        """Take items of what was a list."""


class _Dictionary(OrderedDict[Any, Any]):
    """A dictionary that takes no attributes, whatever the pickle would give it."""

    def __init__(self) -> None:
        super().__init__()

    def __setstate__(self, _: Any) -> None:
        pass


def whole_numbers(values: Any = ()) -> tuple[int, ...]:
    """Return a shape, offsets or strides that a pickle tells.

    Raises
    ------
    ValueError
        If they are none.
    """
    if type(values) not in SEQUENCES or len(values) > MOST_DIMENSIONS:
        raise ValueError("a shape that is none")
    for value in values:
        if type(value) is not int or value < 0:
            raise ValueError("a shape of other than whole numbers")
    return tuple(values)


def _tensor(storage: Any, dtype: Any, offset: Any, shape: Any, strides: Any, told: Any) -> StoredTensor:
    if not isinstance(storage, StoredStorage) or dtype not in DTYPES:
        raise ValueError("a tensor of no numbers that torch knows")
    if told is not None and isinstance(told, Mapping) and (told.get("conj") or told.get("neg")):
        raise ValueError("a tensor that is conjugated or negated when it is read")
    shape, strides, (offset,) = whole_numbers(shape), whole_numbers(strides), whole_numbers([offset])
    if len(shape) != len(strides):
        raise ValueError("a tensor with a stride too many or too few")
    return StoredTensor(storage, dtype, offset, shape, strides)


def _rebuild(
    storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any = None, _hooks: Any = None, told: Any = None
) -> StoredTensor:
    return _tensor(storage, getattr(storage, "dtype", None), offset, shape, strides, told)


def _rebuild_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any, _hooks: Any, dtype: Any, told: Any = None
) -> StoredTensor:
    return _tensor(storage, dtype, offset, shape, strides, told)


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _rebuild_from_type(rebuild: Any, _type: Any, arguments: Any, _state: Any) -> Any:
    if rebuild is _rebuild_from_type:
        raise ValueError("a tensor in a tensor")
    return rebuild(*arguments)


STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "",
}
DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "bool"),
    *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
)
_PATHS = ["Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"]
_BUILTINS = [
    *("set", "frozenset", "complex", "slice", "bytearray", "list", "dict", "tuple", "range", "xrange"),
    *("int", "long", "float", "str", "unicode", "bool", "bytes", "object"),
]
_HARMLESS = {
    "argparse": ["Namespace"],
    "builtins": _BUILTINS,
    "__builtin__": _BUILTINS,
    "copyreg": ["_reconstructor"],
    "copy_reg": ["_reconstructor"],
    "collections": ["defaultdict", "Counter", "deque"],
    "datetime": ["datetime", "timedelta", "date", "timezone"],
    "_codecs": ["encode"],
    "pathlib": _PATHS,
    "pathlib._local": _PATHS,
    "torch": ["Tensor", "device", "Generator", "strided", "contiguous_format", "channels_last", "preserve_format"],
    "torch.serialization": ["_get_layout"],
    "torch.torch_version": ["TorchVersion"],
    "numpy": ["dtype", "ndarray"],
    "numpy.core.multiarray": ["scalar", "_reconstruct"],
    "numpy._core.multiarray": ["scalar", "_reconstruct"],
    "numpy.core.numeric": ["_frombuffer"],
    "numpy._core.numeric": ["_frombuffer"],
    "pytorch_lightning.utilities.parsing": ["AttributeDict"],
    "lightning.pytorch.utilities.parsing": ["AttributeDict"],
    "lightning.fabric.utilities.data": ["AttributeDict"],
    "lightning_fabric.utilities.data": ["AttributeDict"],
}
"""What trainers save beside the weights, and what nothing is read from here."""

TENSORS: Names = {
    ("collections", "OrderedDict"): _Dictionary,
    ("torch._utils", "_rebuild_tensor"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_v3,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    ("torch.nn.parameter", "Parameter"): _parameter,
    ("torch", "Size"): whole_numbers,
    **{("torch", name): StoredStorage(name, dtype, 0) for name, dtype in STORAGES.items()},
    ("torch.storage", "UntypedStorage"): StoredStorage("UntypedStorage", "", 0),
    **{("torch", name): name for name in DTYPES},
    **{(module, name): Inert for module, names in _HARMLESS.items() for name in names},
}
"""What the pickle of a saved model may name, and what each name stands for here."""


def load(stream: BinaryIO, location: str, names: Names, persistent: Callable[[Any], Any] | None = None) -> Any:
    """Unpickle, with inert stand-ins for the names that are known and a refusal of every other.

    Parameters
    ----------
    stream : binary file
        It is left behind the pickle.
    location : str
        For messages.
    names : mapping
        What stands for each (module, name).
    persistent : callable, optional
        What stands for objects that are stored elsewhere.

    Raises
    ------
    CheckpointError
        ``unsafe`` for any other name, ``damaged`` for what is no pickle. Nothing is imported or executed.
    """
    # What is in memory already is as long as it is.
    bounded = stream if isinstance(stream, io.BytesIO) else cast(BinaryIO, _Bounded(stream))
    try:
        return _Unpickler(bounded, location, names, persistent).load()
    except CheckpointError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise CheckpointError(
            f"{location}: damaged: its pickle cannot be read ({reason!a}); fetch or save it again", "damaged"
        ) from error


class _Bounded:
    """A stream of which no more is read than a pickle may be long."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._left = stream, LARGEST_PICKLE

    def read(self, count: int) -> bytes:
        found = self._stream.read(min(count, self._left))
        self._left -= len(found)
        if len(found) < count:
            raise EOFError("it ends too early, or is too long")
        return found

    def readline(self) -> bytes:
        found = self._stream.readline(LONGEST_LINE)
        self._left -= len(found)
        if self._left < 0 or not found.endswith(b"\n"):
            raise EOFError("a line does not end")
        return found


class _Unpickler(pickle._Unpickler):
    """Python's own unpickler, in Python: the one in C can be made to allocate any amount of memory by a few bytes."""

    # Of the base class; its stubs leave them out.
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    memo: dict[int, Any]

    def __init__(
        self, stream: BinaryIO, location: str, names: Names, persistent: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(stream)
        self._stream = stream
        self._location, self._names, self._persistent = location, names, persistent

    def load(self) -> Any:
        """Read one pickle; the opcodes of which the pickles of torch mostly consist without a call for each.

        What a frame says is passed over: it tells how much to read ahead.
        """
        self.read, self.readline = self._stream.read, self._stream.readline
        self.metastack, self.stack = [], []
        self.append = self.stack.append
        read, dispatch, memo = self.read, self.dispatch, self.memo
        while opcode := read(1):
            if opcode == BINPUT:
                memo[read(1)[0]] = self.stack[-1]
            elif opcode == BININT1:
                self.append(read(1)[0])
            elif opcode == BINGET:
                self.append(memo[read(1)[0]])
            elif opcode == LONG_BINPUT:
                memo[int.from_bytes(read(4), "little")] = self.stack[-1]
            elif opcode == BINUNICODE:
                self.append(str(read(int.from_bytes(read(4), "little")), "utf-8", "surrogatepass"))
            elif opcode == MARK:
                self.metastack.append(self.stack)
                self.stack = []
                self.append = self.stack.append
            elif opcode == STOP:
                return self.stack.pop()
            else:
                dispatch[opcode[0]](self)
        raise EOFError("it ends too early")

    def _pass_over_frame(self) -> None:
        self.read(8)

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._names[module, name]
        except KeyError:
            raise CheckpointError(
                f"{self._location}: holds a pickled object other than tensors ({f'{module}.{name}'[:120]!a}); nothing "
                "was executed. Save its state_dict() alone",
                "unsafe",
            ) from None

    def persistent_load(self, told: Any) -> Any:
        if self._persistent is None:
            raise pickle.UnpicklingError("it points to objects outside")
        return self._persistent(told)

    # What an opcode does to objects is written out where more than the stand-ins are meant to suffer could come of it.

    def _build(self) -> None:
        state, built = self.stack.pop(), self.stack[-1]
        if not hasattr(type(built), "__setstate__"):
            raise pickle.UnpicklingError("it changes what has no state")
        built.__setstate__(state)

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._put([key, value])

    def _set_items(self) -> None:
        self._put(self.pop_mark())

    def _dictionary(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._put(items)

    def _put(self, items: Sequence[Any]) -> None:
        keys = items[::2]
        for key in keys:
            # The hash of tuples in tuples may take forever, or more stack than there is.
            if type(key) is tuple and any(type(part) is tuple for part in key):
                raise pickle.UnpicklingError("a key of tuples in tuples")
        self.stack[-1].update(zip(keys, items[1::2], strict=True))

    def _set(self) -> None:
        self.append(Inert())

    def _add_items(self) -> None:
        self.pop_mark()

    def _frozen_set(self) -> None:
        self.pop_mark()
        self.append(Inert())

    def _refuse(self) -> None:
        raise pickle.UnpicklingError("it uses what torch does not write")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = pickle._Unpickler.dispatch | {
        pickle.FRAME[0]: _pass_over_frame,
        pickle.BUILD[0]: _build,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
        pickle.DICT[0]: _dictionary,
        pickle.EMPTY_SET[0]: _set,
        pickle.ADDITEMS[0]: _add_items,
        pickle.FROZENSET[0]: _frozen_set,
        pickle.BYTEARRAY8[0]: _refuse,
        pickle.EXT1[0]: _refuse,
        pickle.EXT2[0]: _refuse,
        pickle.EXT4[0]: _refuse,
    }


class Stream(io.RawIOBase):
    """A stored file as Python's libraries read one; wrap it in `io.BufferedReader`.

    Parameters
    ----------
    file : StoredFile
    start, stop : int
        The part that is seen.
    """

    def __init__(self, file: StoredFile, start: int = 0, stop: int | None = None) -> None:
        super().__init__()
        self._file, self._start = file, start
        self._length = (file.size if stop is None else stop) - start
        self._at = 0

    def readable(self) -> bool:  # noqa: D102
        return True

    def seekable(self) -> bool:  # noqa: D102
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:  # noqa: D102
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if self._at < 0:
            raise OSError(22, "seek before the beginning")
        return self._at

    def readinto(self, buffer: Any) -> int:  # noqa: D102
        count = max(0, min(len(buffer), self._length - self._at))
        if count:
            begin = self._start + self._at
            buffer[:count] = self._file.read(begin, begin + count).tobytes()
            self._at += count
        return count
