"""Pickles read as data: every name stands for an inert object, so that nothing is imported or executed.

Names that rebuild tensors stand for functions of this module; any other class or function is a `Placeholder`, which
keeps what it was given. Names that only an attack uses are refused, for the sake of a clear message.
"""

import io
import pickle
import struct
from collections import ChainMap, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar, cast

import msgspec

from toposcope.checkpoints.formats.dtypes import DTYPES
from toposcope.checkpoints.sources.source import CheckpointError, damaged
from toposcope.checkpoints.tuning import MIN_DEFERRED_BYTES, MIN_DEFERRED_TEXT

Names = Mapping[tuple[str, str], Any]
Unknown = dict[str, None]  # names of other classes
Persistent = Callable[[Any], Any] | None  # what stands for an object outside the pickle
MAX_PICKLE_BYTES = 1 << 28  # a hundred times the pickle of the largest models, which holds no numbers
MAX_LINE_BYTES = 1 << 16
MAX_KEY_BITS = 128  # of a whole number that is a key; one of thousands of digits cannot be shown
MAX_NESTED = 50_000  # lists and dictionaries that are open at once, or within one another
MAX_UNKNOWN = 32  # distinct names of other classes that are recorded
MAX_ARGUMENTS = 32  # of a function that rebuilds a tensor
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


class Placeholder(dict[Any, Any]):
    """Stands for a class, function or object, never imported or called; holds the items that the pickle sets."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, *arguments: Any, **_: Any) -> None:
        super().__init__()
        self.name = ""
        self.arguments: tuple[Any, ...] = arguments
        self.state: Mapping[Any, Any] = _STATELESS

    def __call__(self, *arguments: Any, **_: Any) -> "Placeholder":
        """Return an object of this class."""
        return placeholder(self.name, *arguments)

    def __setstate__(self, state: Any) -> None:
        # Attributes come alone, or before those of __slots__. They are not copied: a pickle can set them many times.
        parts = state if type(state) is tuple and len(state) == 2 else (state,)
        attributes = [part for part in parts if isinstance(part, dict)]
        if attributes:
            self.state = attributes[0] if len(attributes) == 1 else ChainMap(*reversed(attributes))

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def append(self, _: Any) -> None:
        """Ignore an item."""

    def extend(self, _: Any) -> None:
        """Ignore items."""


_STATELESS: Mapping[Any, Any] = MappingProxyType({})


def placeholder(name: str, *arguments: Any) -> Placeholder:
    """Return a placeholder of a name."""
    made = Placeholder(*arguments)
    made.name = name
    return made


class Deferred(msgspec.Struct, frozen=True, gc=False):
    """Bytes of the pickled file that were not read: where they begin and end, and whether they are UTF-8 text."""

    start: int
    stop: int
    is_text: bool


class _Dictionary(OrderedDict[Any, Any]):
    """An ordered dictionary that ignores attributes."""

    def __setstate__(self, _: Any) -> None:
        pass


def _dictionary(*pairs: Any) -> "_Dictionary | Placeholder":
    """Return an ordered dictionary, which Python 2 makes of a list of pairs."""
    return placeholder("", *pairs) if pairs else _Dictionary()


def natural_numbers(values: Any = ()) -> tuple[int, ...]:
    """Return the shape, offsets or strides that a pickle holds; ValueError for anything else."""
    if type(values) not in SEQUENCES or len(values) > MAX_DIMENSIONS:
        raise ValueError("not a shape")
    for value in values:
        if type(value) is not int or value < 0:
            raise ValueError("a shape of other than natural numbers")
    return tuple(values)


_Tensor = StoredTensor | Placeholder


def _tensor(storage: Any, dtype: Any, offset: Any, shape: Any, strides: Any, metadata: Any) -> _Tensor:
    if isinstance(storage, Placeholder):
        return placeholder(f"tensor of a {storage.name or 'storage of another kind'}")
    if not isinstance(storage, StoredStorage) or not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError("a tensor without a storage or a dtype of torch")
    if isinstance(metadata, dict) and (metadata.get("conj") or metadata.get("neg")):
        return placeholder("lazy conjugate or negative")
    shape, strides, (offset,) = natural_numbers(shape), natural_numbers(strides), natural_numbers([offset])
    if len(shape) != len(strides):
        raise ValueError("a tensor whose strides do not fit its shape")
    return StoredTensor(storage, dtype, offset, shape, strides)


def _rebuild(
    storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any = None, _hooks: Any = None, metadata: Any = None
) -> _Tensor:
    return _tensor(storage, getattr(storage, "dtype", None), offset, shape, strides, metadata)


def _rebuild_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any, _hooks: Any, dtype: Any, metadata: Any = None
) -> _Tensor:
    return _tensor(storage, dtype, offset, shape, strides, metadata)


def _rebuild_from_type(rebuild: Any, _type: Any, arguments: Any, _state: Any) -> Any:
    if rebuild is _rebuild_from_type:
        raise ValueError("a tensor within a tensor")
    rebuilt = rebuild(*arguments)
    if isinstance(rebuilt, Placeholder) and isinstance(_type, Placeholder) and _type.name:
        return placeholder(_type.name, rebuilt)
    return rebuilt


def _data(data: Any, *_: Any) -> Any:
    return data


def _instance(kind: Any = None, *arguments: Any) -> Placeholder:
    """Return an object of a class, as ``copyreg`` makes it."""
    return placeholder(kind.name if isinstance(kind, Placeholder) else "", *arguments)


_OTHER_TENSORS = {
    "_rebuild_qtensor": "quantised tensor",
    **dict.fromkeys(("_rebuild_sparse_tensor", "_rebuild_sparse_csr_tensor"), "sparse tensor"),
    "_rebuild_nested_tensor": "nested tensor",
    "_rebuild_meta_tensor_no_storage": "tensor of the meta device, without numbers",
    "_rebuild_wrapper_subclass": "tensor of another class",
    "_rebuild_device_tensor_from_numpy": "tensor of another device",
    "_rebuild_device_tensor_from_cpu_tensor": "tensor of another device",
    "_rebuild_xla_tensor": "tensor of another device",
}
STORAGES = {
    **{"DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16"},
    **{"LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8"},
    **{"ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64"},
    **{"ComplexDoubleStorage": "complex128", "QInt8Storage": "int8", "QUInt8Storage": "uint8"},
    **{"QInt32Storage": "int32", "UntypedStorage": ""},
}
_PATHS = ["Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"]
_BUILTINS = """
set frozenset complex slice bytearray list dict tuple range xrange int long float str unicode bool bytes object
""".split()
_IGNORED: dict[str, Sequence[str]] = {
    "argparse": ["Namespace"],
    "builtins": _BUILTINS,
    "__builtin__": _BUILTINS,
    "collections": ["defaultdict", "Counter", "deque"],
    "datetime": ["datetime", "timedelta", "date", "timezone"],
    "_codecs": ["encode"],
    "pathlib": _PATHS,
    "pathlib._local": _PATHS,
    "torch": ["Tensor", "device", "Generator", "strided", "contiguous_format", "channels_last", "preserve_format"],
    "torch.serialization": ["_get_layout"],
    "torch.torch_version": ["TorchVersion"],
    "numpy": ["dtype", "ndarray"],
    **dict.fromkeys(("numpy.core.multiarray", "numpy._core.multiarray"), ("scalar", "_reconstruct")),
    **dict.fromkeys(("numpy.core.numeric", "numpy._core.numeric"), ("_frombuffer",)),
    "torch.storage": ["_load_from_bytes"],
    **dict.fromkeys(("pytorch_lightning.utilities.parsing", "lightning.pytorch.utilities.parsing"), ("AttributeDict",)),
    **dict.fromkeys(("lightning.fabric.utilities.data", "lightning_fabric.utilities.data"), ("AttributeDict",)),
}
"""What trainers often save with the weights; such a name is no news."""
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
    # what rebuilds tensors that are not plain numbers
    **{("torch._utils", name): partial(placeholder, text) for name, text in _OTHER_TENSORS.items()},
    **{(module, name): _instance for module in ("copyreg", "copy_reg") for name in ("_reconstructor", "__newobj__")},
    **{(module, name): Placeholder for module, names in _IGNORED.items() for name in names},
}
"""Names that the pickle of a saved model may hold, and what each stands for; any other is a `Placeholder`."""
_ATTACK_MODULES = set(
    "os posix nt ntpath posixpath subprocess sys pty socket ctypes importlib runpy shutil webbrowser commands".split()
)
_ATTACK_FUNCTIONS = {
    "builtins": ["eval", "exec", "execfile", "compile", "open", "__import__", "input", "breakpoint", "globals"],
    "torch": ["load", "hub", "serialization.load"],
    "torch.serialization": ["load"],
    "pickle": ["load", "loads", "Unpickler"],
}
_ATTACK_MODULE_OF = {"__builtin__": "builtins", "_pickle": "pickle", "cPickle": "pickle"}


def _is_attack(module: str, name: str) -> bool:
    """Return whether a name has no use in a saved model but an attack; only the message depends on it."""
    functions = _ATTACK_FUNCTIONS.get(_ATTACK_MODULE_OF.get(module, module), ())
    if module.partition(".")[0] in _ATTACK_MODULES or name in functions:
        return True
    parts = name.split(".")
    return len(parts) > 1 and any(part in _ATTACK_MODULES or part.startswith("__") for part in parts)


def load(
    stream: BinaryIO,
    location: str,
    names: Names,
    persistent: Persistent = None,
    unknown: Unknown | None = None,
    *,
    deferring: bool = False,
) -> Any:
    """Unpickle, with an inert object for every name."""
    bounded = stream if isinstance(stream, io.BytesIO) else cast(BinaryIO, _BoundedStream(stream))
    kind = _DeferringUnpickler if deferring else _Unpickler
    try:
        return kind(bounded, location, names, persistent, {} if unknown is None else unknown).load()
    except CheckpointError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise damaged(location, f"its pickle cannot be read ({reason!a})") from error


def _called(kind: Any, arguments: Any) -> Any:
    """Return what a call stands for; arguments of a placeholder are not copied, as a pickle can repeat them cheaply."""
    if type(arguments) is not tuple:
        raise pickle.UnpicklingError("a call without arguments")
    if kind is Placeholder or isinstance(kind, Placeholder):
        made = placeholder(kind.name if isinstance(kind, Placeholder) else "")
        made.arguments = arguments
        return made
    if len(arguments) > MAX_ARGUMENTS:
        raise pickle.UnpicklingError("a call with too many arguments")
    return kind(*arguments)


class _BoundedStream:
    """A stream of which at most `MAX_PICKLE_BYTES` are read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._left = stream, MAX_PICKLE_BYTES

    def read(self, count: int) -> bytes:
        content = self._stream.read(min(count, self._left))
        self._left -= len(content)
        if len(content) < count:
            raise EOFError("it ends too early, or is too long")
        return content

    def readline(self) -> bytes:
        found = self._stream.readline(MAX_LINE_BYTES)
        self._left -= len(found)
        if self._left < 0 or not found.endswith(b"\n"):
            raise EOFError("a line does not end")
        return found

    def skip(self, count: int) -> tuple[int, int]:
        """Pass over bytes of the file, and return where they begin and end."""
        start = self._stream.tell()
        if count and not (self._stream.seek(start + count - 1) and self._stream.read(1)):
            raise EOFError("it ends too early")
        return start, start + count


class _Unpickler(pickle._Unpickler):
    """The standard library's unpickler in Python, its opcodes guarded.

    The one in C cannot be used: a few bytes make it allocate gigabytes (an index of its memo) or hash a key of nested
    tuples forever, and its opcodes cannot be replaced.
    """

    # Members of the base class that its stubs leave out.
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    read: Callable[[int], bytes]
    readline: Callable[[], bytes]

    def __init__(self, stream: Any, location: str, names: Names, persistent: Persistent, unknown: Unknown) -> None:
        # Texts of Python 2 may hold the bytes of an array.
        super().__init__(stream, encoding="latin1")
        self.stream: Any = stream
        self._location, self._names, self._persistent, self._unknown = location, names, persistent, unknown

    def load(self) -> Any:
        # The loop of the base class without its layer for frames, which takes a fifth of the time.
        self.read, self.readline = self.stream.read, self.stream.readline
        self.metastack: list[list[Any]] = []
        self.stack = []
        self.append = self.stack.append
        self.proto = 0
        read, dispatch = self.read, self.dispatch
        try:
            while True:
                opcode = read(1)
                if not opcode:
                    raise EOFError("it ends too early")
                dispatch[opcode[0]](self)
        except pickle._Stop as stop:  # type: ignore[attr-defined]
            return stop.value

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._names[module, name]
        except KeyError:
            pass
        full = f"{module}.{name}"
        full = full if full.isprintable() else ascii(full)[1:-1]
        if _is_attack(module, name):
            raise CheckpointError(
                f"{self._location}: its pickle names {full[:120]!a}, which no saved model needs but an attack does; "
                "nothing was executed. Save the model's state_dict() alone",
                "unsafe",
            )
        if len(self._unknown) < MAX_UNKNOWN:
            self._unknown[full] = None
        return placeholder(full)

    def persistent_load(self, reference: Any) -> Any:
        if self._persistent is None:
            raise pickle.UnpicklingError("it refers to objects outside the pickle")
        return self._persistent(reference)

    def _build(self) -> None:
        state, built = self.stack.pop(), self.stack[-1]
        if not hasattr(type(built), "__setstate__"):
            raise pickle.UnpicklingError("it sets the state of an object without one")
        built.__setstate__(state)

    def _set_item(self) -> None:
        value = self.stack.pop()
        self._update([self.stack.pop(), value])

    def _dictionary(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._update(items)

    def _update(self, items: Sequence[Any]) -> None:
        keys = items[::2]
        for key in keys:
            # Hashing tuples within tuples can take forever, or overflow the stack.
            if type(key) is tuple and any(type(part) is tuple for part in key):
                raise pickle.UnpicklingError("a key of tuples within tuples")
            if type(key) is int and key.bit_length() > MAX_KEY_BITS:
                raise pickle.UnpicklingError("a number of many digits as a key")
        self.stack[-1].update(zip(keys, items[1::2], strict=True))

    def _instantiate(self, kind: Any, arguments: list[Any]) -> None:
        self.append(_called(kind, tuple(arguments)))

    def _new(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = _called(self.stack[-1], arguments)

    def _new_with_keywords(self) -> None:
        self.stack.pop()
        self._new()

    def _add_items(self) -> None:
        items = self.pop_mark()
        # Not hashed, as a set would; a set is a placeholder made of a list.
        if isinstance(self.stack[-1], Placeholder):
            (members,) = self.stack[-1].arguments
            members.extend(items)

    def _frozen_set(self) -> None:
        items = self.pop_mark()  # which sets another list to append to
        self.append(Placeholder(items))

    def _frame(self) -> None:
        # Read through rather than ahead: what follows need not be in memory.
        self.read(8)

    def _byte_array(self) -> None:
        (count,) = struct.unpack("<Q", self.read(8))
        content = self.read(count)
        if len(content) < count:
            raise EOFError("it ends too early")
        self.append(content)

    def _open(self, opened: Any) -> None:
        if len(self.stack) > MAX_NESTED:
            raise pickle.UnpicklingError(f"{MAX_NESTED:,} lists or dictionaries within one another")
        self.append(opened)

    def _mark(self) -> None:
        if len(self.metastack) > MAX_NESTED:
            raise pickle.UnpicklingError(f"{MAX_NESTED:,} lists or dictionaries within one another")
        self.load_mark()  # type: ignore[attr-defined]

    def _refuse(self) -> None:
        raise pickle.UnpicklingError("an opcode that torch does not write")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = pickle._Unpickler.dispatch | {
        pickle.EMPTY_LIST[0]: lambda self: self._open([]),
        pickle.EMPTY_DICT[0]: lambda self: self._open({}),
        pickle.MARK[0]: _mark,
        pickle.BUILD[0]: _build,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: lambda self: self._update(self.pop_mark()),
        pickle.DICT[0]: _dictionary,
        pickle.EMPTY_SET[0]: lambda self: self.append(Placeholder([])),
        pickle.ADDITEMS[0]: _add_items,
        pickle.FROZENSET[0]: _frozen_set,
        pickle.REDUCE[0]: _new,
        pickle.NEWOBJ[0]: _new,
        pickle.NEWOBJ_EX[0]: _new_with_keywords,
        pickle.FRAME[0]: _frame,
        pickle.BYTEARRAY8[0]: _byte_array,
        **dict.fromkeys((pickle.EXT1[0], pickle.EXT2[0], pickle.EXT4[0]), _refuse),
    }


def _deferring(width: str, *, is_text: bool) -> Callable[["_DeferringUnpickler"], None]:
    """Return an opcode of bytes or a text whose length is stored in so many bytes."""

    def opcode(self: "_DeferringUnpickler") -> None:
        (count,) = struct.unpack(width, self.read(struct.calcsize(width)))
        if count >= (MIN_DEFERRED_TEXT if is_text else MIN_DEFERRED_BYTES):
            start, stop = self.stream.skip(count)
            self.append(Deferred(start, stop, is_text))
        else:
            content = self.read(count)
            self.append(content.decode("utf-8", "surrogatepass") if is_text else content)

    return opcode


class _DeferringUnpickler(_Unpickler):
    """Leaves long bytes and texts in the file, so that listing the arrays of a pickle does not read them."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = _Unpickler.dispatch | {
        pickle.SHORT_BINBYTES[0]: _deferring("<B", is_text=False),
        pickle.BINBYTES[0]: _deferring("<I", is_text=False),
        pickle.BINBYTES8[0]: _deferring("<Q", is_text=False),
        pickle.BYTEARRAY8[0]: _deferring("<Q", is_text=False),
        pickle.BINSTRING[0]: _deferring("<I", is_text=False),
        pickle.BINUNICODE[0]: _deferring("<I", is_text=True),
        pickle.BINUNICODE8[0]: _deferring("<Q", is_text=True),
    }
