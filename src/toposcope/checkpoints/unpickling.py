"""Pickles read as data: known names stand for inert objects, every other name is refused, nothing is executed."""

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar, cast

import msgspec

from toposcope.checkpoints.formats.dtypes import DTYPES
from toposcope.checkpoints.sources import CheckpointError

Names = Mapping[tuple[str, str], Any]

MAX_PICKLE_BYTES = 1 << 28
"""A hundred times the pickle of the largest models, which holds no numbers."""
MAX_LINE_BYTES = 1 << 16
MAX_DIMENSIONS = 64
"""Of a tensor, as in torch."""
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
    """Stands for an object whose class does not matter: accepts any state and ignores it."""

    def __new__(cls, *_: Any, **__: Any) -> "Placeholder":  # noqa: D102
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __setstate__(self, _: Any) -> None:
        pass

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def append(self, _: Any) -> None:
        """Ignore an item."""

    def extend(self, _: Any) -> None:
        """Ignore items."""


class _Dictionary(OrderedDict[Any, Any]):
    """An ordered dictionary that ignores attributes."""

    def __init__(self) -> None:
        super().__init__()

    def __setstate__(self, _: Any) -> None:
        pass


def natural_numbers(values: Any = ()) -> tuple[int, ...]:
    """Return the shape, offsets or strides that a pickle holds; ValueError for anything else."""
    if type(values) not in SEQUENCES or len(values) > MAX_DIMENSIONS:
        raise ValueError("not a shape")
    for value in values:
        if type(value) is not int or value < 0:
            raise ValueError("a shape of other than natural numbers")
    return tuple(values)


def _tensor(storage: Any, dtype: Any, offset: Any, shape: Any, strides: Any, metadata: Any) -> StoredTensor:
    if not isinstance(storage, StoredStorage) or dtype not in DTYPES:
        raise ValueError("a tensor without a storage or a dtype of torch")
    if isinstance(metadata, Mapping) and (metadata.get("conj") or metadata.get("neg")):
        raise ValueError("a tensor that is a lazy conjugate or negative")
    shape, strides, (offset,) = natural_numbers(shape), natural_numbers(strides), natural_numbers([offset])
    if len(shape) != len(strides):
        raise ValueError("a tensor whose strides do not fit its shape")
    return StoredTensor(storage, dtype, offset, shape, strides)


def _rebuild(
    storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any = None, _hooks: Any = None, metadata: Any = None
) -> StoredTensor:
    return _tensor(storage, getattr(storage, "dtype", None), offset, shape, strides, metadata)


def _rebuild_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any, _hooks: Any, dtype: Any, metadata: Any = None
) -> StoredTensor:
    return _tensor(storage, dtype, offset, shape, strides, metadata)


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _rebuild_from_type(rebuild: Any, _type: Any, arguments: Any, _state: Any) -> Any:
    if rebuild is _rebuild_from_type:
        raise ValueError("a tensor within a tensor")
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
_PATHS = ["Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"]
_BUILTINS = [
    *("set", "frozenset", "complex", "slice", "bytearray", "list", "dict", "tuple", "range", "xrange"),
    *("int", "long", "float", "str", "unicode", "bool", "bytes", "object"),
]
_IGNORED = {
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
"""What trainers save beside the weights, and what is ignored."""

TENSOR_NAMES: Names = {
    ("collections", "OrderedDict"): _Dictionary,
    ("torch._utils", "_rebuild_tensor"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_v3,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    ("torch.nn.parameter", "Parameter"): _parameter,
    ("torch", "Size"): natural_numbers,
    **{("torch", name): StoredStorage(name, dtype, 0) for name, dtype in STORAGES.items()},
    ("torch.storage", "UntypedStorage"): StoredStorage("UntypedStorage", "", 0),
    **{("torch", name): name for name in DTYPES},
    **{(module, name): Placeholder for module, names in _IGNORED.items() for name in names},
}
"""Names that the pickle of a saved model may hold, and what each stands for."""


def load(stream: BinaryIO, location: str, names: Names, persistent: Callable[[Any], Any] | None = None) -> Any:
    """Unpickle, with inert objects for the known names; any other name is refused.

    Parameters
    ----------
    stream : binary file
        Left at the end of the pickle.
    location : str
        For messages.
    names : mapping
        What stands for each (module, name).
    persistent : callable, optional
        What stands for objects that are stored elsewhere.

    Raises
    ------
    CheckpointError
        Of kind ``unsafe`` for an unknown name, ``damaged`` for anything that is not a pickle.
    """
    bounded = stream if isinstance(stream, io.BytesIO) else cast(BinaryIO, _BoundedStream(stream))
    try:
        return _Unpickler(bounded, location, names, persistent).load()
    except CheckpointError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise CheckpointError(
            f"{location}: damaged: its pickle cannot be read ({reason!a}); fetch or save it again", "damaged"
        ) from error


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


class _Unpickler(pickle._Unpickler):
    """The standard library's unpickler in Python, its opcodes guarded.

    The one in C cannot be used: a few bytes make it allocate gigabytes (an index of its memo) or hash a key of nested
    tuples forever, and its opcodes cannot be replaced.
    """

    # Members of the base class that its stubs leave out.
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    def __init__(
        self, stream: BinaryIO, location: str, names: Names, persistent: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(stream)
        self._location, self._names, self._persistent = location, names, persistent

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._names[module, name]
        except KeyError:
            raise CheckpointError(
                f"{self._location}: holds a pickled object other than tensors ({f'{module}.{name}'[:120]!a}); nothing "
                "was executed. Save its state_dict() alone",
                "unsafe",
            ) from None

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
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def _set_items(self) -> None:
        self._update(self.pop_mark())

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
        self.stack[-1].update(zip(keys, items[1::2], strict=True))

    def _set(self) -> None:
        self.append(Placeholder())

    def _add_items(self) -> None:
        self.pop_mark()

    def _frozen_set(self) -> None:
        self.pop_mark()
        self.append(Placeholder())

    def _refuse(self) -> None:
        raise pickle.UnpicklingError("an opcode that torch does not write")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = pickle._Unpickler.dispatch | {
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
