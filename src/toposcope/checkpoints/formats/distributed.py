"""A folder of torch.distributed.checkpoint: ``.metadata``, a pickle that locates the chunks of tensors.

FSDP and tensor parallelism write a tensor as chunks, each an archive of ``torch.save`` in some ``.distcp`` file. Rows
are put together from their chunks without a process group.
"""

import io
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats.contents import WEIGHT_KEYS, model_tensors, without_attribute
from toposcope.checkpoints.formats.dtypes import DTYPES, itemsize
from toposcope.checkpoints.formats.entry import Entry, slice_of
from toposcope.checkpoints.formats.pickles import MAX_EXPANDED_BYTES
from toposcope.checkpoints.formats.torch_file import Archive
from toposcope.checkpoints.formats.weight_names import WHOLE_OR_INDEX, is_file_name
from toposcope.checkpoints.sources.source import CheckpointError, Files, StoredFile, damaged, incomplete, truncated
from toposcope.checkpoints.unpickling import (
    MAX_PICKLE_BYTES,
    TENSOR_NAMES,
    Names,
    Placeholder,
    StoredStorage,
    StoredTensor,
    load,
    natural_numbers,
)

METADATA = ".metadata"
OTHER_PREFIXES = ("optim", "scheduler", "lr_scheduler", "dataloader", "train_state", "rng", "rank")
"""Prefixes of names that do not belong to the model, where only names distinguish them."""
MEGATRON_META = ("common.pt", "metadata.json")  # files that Megatron-Core writes into the folder
LIGHTNING_META = "meta.pt"  # a file that Lightning writes into the folder
_ALL_LAYERS = re.compile(r"(.*(?:^|\.)layers)\.(?!\d)(.+)")
MAX_LAYERS = 1 << 12
_Chunk = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes
_Part = tuple[tuple[int, ...], tuple[int, ...], Callable[[], Entry]]  # the same, and what opens the stored tensor, once


class _Properties(Placeholder):
    """The properties of a tensor, which torch pickles as a tuple that begins with the dtype."""

    __slots__ = ("dtype",)
    dtype: Any

    def __setstate__(self, state: Any) -> None:
        self.dtype = state[0]


_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed._shard.checkpoint.metadata")
NAMES: Names = {**TENSOR_NAMES, **{(module, "TensorProperties"): _Properties for module in _MODULES}}
"""What stands for names in the pickle of ``.metadata``; any other is a record with its fields."""


def _field(record: Any, name: str) -> Any:
    return record.state.get(name) if isinstance(record, Placeholder) else None


def claims(names: Collection[str]) -> bool:
    """By one ``.metadata``, here or one folder deeper, without a file of whole weights."""
    return _folder(names) is not None and not any(name in names for name in WHOLE_OR_INDEX)


def _folder(names: Collection[str]) -> str | None:
    """Return the prefix of the folder that holds the model, if there is one."""
    if METADATA in names:
        return ""
    inner = {name.removesuffix(METADATA) for name in names if name.endswith(f"/{METADATA}") and name.count("/") == 1}
    models = [prefix for prefix in inner if not prefix.startswith(OTHER_PREFIXES)]
    return models[0] if len(models) == 1 else None


def entries(spec: str, files: Files) -> list[Entry]:
    """List the model's tensors from ``.metadata`` alone, without those of the optimizer."""
    folder = _folder(files) or ""
    inside = {name.removeprefix(folder): file for name, file in files.items() if name.startswith(folder)}
    file = inside[METADATA]
    if file.size > MAX_PICKLE_BYTES:
        raise damaged(file, f"{file.size} bytes are too many for metadata")
    content = load(io.BytesIO(file.read(0, file.size).tobytes()), file.location, NAMES)
    try:
        stored = _Stored(file, inside, content)
        listed = [stored.entry(name, fqn) for name, fqn in stored.model().items()]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise damaged(file, f"torch does not write this ({str(error)[:120]!a})") from error
    if not listed:
        raise damaged(file, f"no tensors at the top level or under {', '.join(WEIGHT_KEYS)}")
    return [layer for entry in listed for layer in _layers_of(entry)] if _is_megatron(inside) else listed


def _is_megatron(files: Files) -> bool:
    return all(name in files for name in MEGATRON_META)


def _layers_of(entry: Entry) -> list[Entry]:
    """Return the layers of a tensor in which Megatron-Core stacks that of all layers, each under its own name."""
    match = _ALL_LAYERS.fullmatch(entry.name)
    if match is None or len(entry.shape) < 2 or entry.shape[0] > MAX_LAYERS:
        return [entry]
    return [slice_of(entry, k, f"{match[1]}.{k}.{match[2]}") for k in range(entry.shape[0])]


def _opened(file: StoredFile, start: int, stop: int, sizes: tuple[int, ...], dtype: str) -> Entry:
    """Return the stored tensor of a chunk."""
    where = f"the chunk at byte {start}"
    if file.read(start, min(start + 4, stop)).tobytes() != b"PK\x03\x04":
        raise damaged(file, f"{where} is not an archive of torch.save")
    archive = Archive(file, start, stop)
    content = archive.content
    if not isinstance(content, StoredTensor):
        raise damaged(file, f"{where} holds no tensor")
    entry = archive.entry("chunk", content)
    if (entry.shape, entry.dtype) != (sizes, dtype):
        holds, says = f"{entry.dtype} {list(entry.shape)}", f"{dtype} {list(sizes)}"
        raise damaged(file, f"{where} holds {holds}, but {METADATA} says {says}")
    return entry


class _Stored:
    """The content of a ``.metadata`` file, checked as far as it is used."""

    def __init__(self, file: StoredFile, files: Files, content: Any) -> None:
        self._file, self._files = file, files
        tensors = _field(content, "state_dict_metadata")
        if not isinstance(tensors, Mapping):
            raise damaged(file, "not the metadata of torch.distributed.checkpoint")
        self._tensors: dict[str, Any] = {
            name: record
            for name, record in tensors.items()
            if isinstance(name, str) and _field(record, "chunks") is not None
        }
        # Megatron-Core saves one flat dictionary.
        self._paths = None if _is_megatron(files) else _field(content, "planner_data")
        self._places: dict[tuple[str, tuple[int, ...]], Any] = {
            (_field(index, "fqn"), natural_numbers(_field(index, "offset"))): place
            for index, place in _field(content, "storage_data").items()
            if _field(index, "offset") is not None
        }

    def model(self) -> dict[str, str]:
        """Return the names under which the model's tensors are stored, by their own names."""
        paths = self._paths if isinstance(self._paths, Mapping) else {}
        nested: dict[str, Any] = {}
        for fqn in self._tensors:
            path = paths.get(fqn)
            within = nested
            *outer, name = path if isinstance(path, list | tuple) and path else self._path_from_name(fqn)
            for part in outer:
                if not isinstance(part, str | int):
                    raise ValueError(f"{fqn[:80]} has no valid path")
                within = within.setdefault(str(part), {})
            # Stand-ins for tensors, so that the model is found as in a file of torch.save.
            within[name] = StoredTensor(StoredStorage(fqn, "", 0), "", 0, (), ())
        weights = {name: stored.storage.record for name, stored in model_tensors(nested).items()}
        meta = self._files.get(LIGHTNING_META)
        is_lightning = meta is not None and b"pytorch-lightning_version" in Archive(meta).pickle
        return without_attribute(weights) if is_lightning else weights

    def _path_from_name(self, fqn: str) -> list[str]:
        """Return the path to a tensor without planner data: by the part of its name before the first dot."""
        first, _, rest = fqn.partition(".")
        if first.startswith(OTHER_PREFIXES):
            return [first, rest]
        others = any(name.startswith(OTHER_PREFIXES) for name in self._tensors)
        return [first, rest] if others and first in WEIGHT_KEYS and rest else [fqn]

    def entry(self, name: str, fqn: str) -> Entry:
        """Return a tensor whose chunks are complete."""
        record = self._tensors[fqn]
        shape, dtype = natural_numbers(_field(record, "size")), _field(record, "properties").dtype
        if dtype not in DTYPES:
            raise ValueError(f"{fqn[:80]} has an unknown dtype")
        listed = [[natural_numbers(_field(c, name)) for name in ("offsets", "sizes")] for c in _field(record, "chunks")]
        chunks = [(offsets, sizes) for offsets, sizes in listed if 0 not in sizes]
        _check_chunks(self._file, fqn, shape, chunks)
        parts = [(offsets, sizes, self._part(fqn, offsets, sizes, dtype)) for offsets, sizes in chunks]
        return Entry(name, shape, dtype, partial(_read, shape, dtype, parts))

    def _part(self, fqn: str, offsets: tuple[int, ...], sizes: tuple[int, ...], dtype: str) -> Callable[[], Entry]:
        """Return what opens a chunk, whose place in a file is checked now."""
        place = self._places.get((fqn, offsets))
        if place is None:
            where = f"{self._file.location}: names no file for {fqn[:80]!r} at {list(offsets)}"
            raise CheckpointError(f"{where}; save the checkpoint again", "index")
        name = _field(place, "relative_path")
        if not isinstance(name, str) or not is_file_name(name):
            shown = ascii(name[:80]) if isinstance(name, str) else type(name).__name__
            raise CheckpointError(f"{self._file.location}: names a file outside its folder, or none: {shown}", "unsafe")
        if name not in self._files:
            folder = self._file.location.removesuffix(METADATA)
            raise incomplete(f"{folder}{name}", f"missing; {METADATA} names this file. Fetch it again")
        file = self._files[name]
        start, length = natural_numbers([_field(place, "offset"), _field(place, "length")])
        if start + length > file.size:
            raise truncated(file, f"it ends at byte {file.size}, {start + length} are needed")
        if math.prod(sizes) * itemsize(dtype) > max(length, MAX_EXPANDED_BYTES):
            raise damaged(self._file, f"{fqn[:80]!r} has chunks larger than the {length} bytes that hold them")
        return cache(partial(_opened, file, start, start + length, sizes, dtype))


def _check_chunks(file: StoredFile, fqn: str, shape: tuple[int, ...], chunks: Sequence[_Chunk]) -> None:
    """Refuse chunks that do not make up a tensor exactly; every writer cuts an axis at the same places throughout."""
    volume = sum(math.prod(sizes) for _, sizes in chunks)
    is_grid = all(len(offsets) == len(sizes) == len(shape) for offsets, sizes in chunks)
    is_grid = is_grid and len({offsets for offsets, _ in chunks}) == len(chunks)
    for axis, extent in enumerate(shape if is_grid else ()):
        ends = dict(pairwise(sorted({extent, *(offsets[axis] for offsets, _ in chunks)})))
        is_grid = is_grid and all(offsets[axis] + sizes[axis] == ends.get(offsets[axis]) for offsets, sizes in chunks)
    if not is_grid or volume != math.prod(shape):
        cover = f"its {len(chunks)} chunks of {volume} numbers are no grid that covers {list(shape)} exactly"
        raise CheckpointError(f"{file.location}: {fqn[:80]!r} is not whole: {cover}; save it again", "index")


def _read(shape: tuple[int, ...], dtype: str, parts: Sequence[_Part], start: int, stop: int) -> NDArray[Any]:
    """Put rows together from the chunks they lie in."""
    if not shape:
        return parts[0][2]().whole()
    rows = np.empty((stop - start, *shape[1:]), DTYPES[dtype])
    for offsets, sizes, opened in parts:
        first, last = max(start, offsets[0]), min(stop, offsets[0] + sizes[0])
        if first < last:
            read = opened().read(first - offsets[0], last - offsets[0])
            if read.shape == rows.shape:
                return read
            others = (slice(at, at + size) for at, size in zip(offsets[1:], sizes[1:], strict=True))
            rows[(slice(first - start, last - start), *others)] = read
    return rows
