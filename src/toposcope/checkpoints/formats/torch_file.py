"""One file written by ``torch.save``: a pickle, read as data, and the numbers of its tensors."""

import io
import zipfile
import zlib
from collections.abc import Collection, Mapping
from functools import lru_cache, partial
from typing import Any

from toposcope.checkpoints.formats import contents, rank_files
from toposcope.checkpoints.formats.counters import MAX_COUNTERS, stated_along
from toposcope.checkpoints.formats.entry import Listing, Unread
from toposcope.checkpoints.formats.pickles import (
    BIG_ENDIAN,
    MAGIC,
    NAMES,
    Data,
    Legacy,
    Opened,
    not_weights,
    storage_of,
)
from toposcope.checkpoints.formats.weight_names import PICKLES, TORCH, is_other, of_weights
from toposcope.checkpoints.sources.source import (
    Bytes,
    CheckpointError,
    Files,
    RangeStream,
    StoredFile,
    damaged,
    malformed,
    truncated,
    unsupported,
)
from toposcope.checkpoints.unpickling import MAX_PICKLE_BYTES, StoredStorage, StoredTensor, Unknown, load, name_of
from toposcope.wording import examples

LOCAL_HEADER_BYTES = 30
MAX_LISTED = 5
CHECKED_BYTES = 1 << 24  # of a record in memory at a time while its checksum is computed
MAX_READ_AHEAD = 1 << 15  # bytes of a record that are read together with its header
MAX_PARSED_BYTES = 1 << 16  # of a pickle that is kept once parsed
MAX_PADDING = 128  # bytes that torch may put between a record's header and its numbers
SIGNATURES = {"zip": b"PK\x03\x04", "pickle": b"\x80"}
_BEGINNINGS = {
    b"\x1f\x8b": "a file compressed by gzip; unpack it",
    b"(\xb5/\xfd": "a file compressed by zstd; unpack it",
    b"\x89HDF": "an HDF5 file; save the model's state_dict with torch.save",
    b"\x93NUMPY": "an array of NumPy; rename it to .npy",
    b"GGUF": "a GGUF file; name the checkpoint that it was made from",
    b"<": "a web page (HTML or XML), as servers send instead of a file that needs a login; fetch it again",
    b"{": "text (JSON)",
}
"""First bytes of other files that are found under the names of weights."""


def claims(names: Collection[str]) -> bool:
    """By the suffix of a single file that does not belong to the optimizer."""
    if len(names) != 1 or rank_files.claims(names):
        return False
    name = next(iter(names))
    return name.endswith((*TORCH, *PICKLES)) and not is_other(name)


def opened(_spec: str, files: Files) -> tuple[StoredFile, Opened]:
    """Open the one file, without reading the data of its tensors."""
    (file,) = files.values()
    return file, open_file(file)


def saved_fields(files: Files) -> Mapping[Any, Any]:
    """Return what a checkpoint of one torch file saves besides its tensors; nothing of other formats."""
    found = [file for name, file in of_weights(files).items() if name.endswith(TORCH)]
    return (contents.fields_of(_content(found[0], open_file(found[0]))) or {}) if len(found) == 1 else {}


def listing(file: StoredFile, saved: Opened, key: contents.Key = ()) -> Listing:
    """List the tensors of the model in what a file saves, or of the one under a key."""
    content = _content(file, saved)
    rank_files.refuse_rank(file, content)
    way = contents.resolved(content, key, file.location)
    inner = contents.descend(content, way, file.location)
    found = contents.contents_of(inner, way)
    if found.chosen is None:
        raise _no_choice(file, inner, found, saved.unknown)
    chosen = contents.descend(content, found.chosen, file.location)
    model = contents.model_of(chosen)
    if not model.has_matrix and model.has_unread:
        raise unsupported(
            file,
            f"its tensors are not plain numbers: {_some_unread(model)}; save plain ones (full_tensor(), dequantize(), "
            "to_dense(), torch.from_numpy())",
        )
    tensors = model.tensors
    if isinstance(content, Mapping) and "pytorch-lightning_version" in content:
        tensors = contents.without_attribute(tensors)
    entries = (saved.entry(name, tensor) for name, tensor in tensors.items())
    stated = stated_along(content, found.chosen, partial(_counter, saved))
    beside = {name: Unread("a matrix next to the model", numbers) for name, numbers in found.left.items()}
    return Listing(entries, _notes(found, model, chosen, saved.unknown), stated, beside | model.unread)


def within(file: StoredFile, saved: Opened, key: contents.Key = ()) -> contents.Inside:
    """Return the models in what a file saves, and the counters that it states."""
    content = _content(file, saved)
    key = contents.resolved(content, key, file.location)
    found = contents.contents_of(contents.descend(content, key, file.location), key)
    read = partial(_counter, saved)
    way = key if found.chosen is None else found.chosen
    return contents.Inside(key, stated_along(content, way, read), found)


def _counter(saved: Opened, tensor: StoredTensor) -> Any:
    """Return the value of a small tensor, None of a large one."""
    entry = saved.entry("counter", tensor)
    return entry.whole().tolist() if entry.n_bytes <= MAX_COUNTERS else None


def open_file(file: StoredFile) -> Opened:
    """Return a file as what it is, by its first bytes."""
    begin = file.read(0, min(32, file.size)).tobytes()
    if begin.startswith(SIGNATURES["zip"]):
        return Archive(file)
    if begin.startswith(SIGNATURES["pickle"]):
        if MAGIC.to_bytes(10, "little") in begin:
            return Legacy(file)
        raise unsupported(
            file,
            "a pickle that torch.save did not write, which is not read; load it and save its arrays with numpy.savez, "
            "or its tensors with torch.save",
        )
    if len(begin) < 4:
        raise truncated(file, f"a file of {file.size} bytes")
    what = next((text for start, text in _BEGINNINGS.items() if begin.lstrip().startswith(start)), "")
    if begin[8:9] == b"{" and not what:
        what = "a safetensors file; rename it to .safetensors"
    if what:
        raise unsupported(file, f"not a torch file; it begins as {what}")
    raise malformed(
        file,
        f"damaged, or not a torch file: it begins with {begin[:8]!r}; fetch or save it again",
    )


def check(file: StoredFile, *, only_weights: bool) -> None:
    """Compare what a file holds with its checksums; a file from before torch 1.6 has none."""
    if file.read(0, min(4, file.size)).tobytes() == SIGNATURES["zip"]:
        Archive(file).check(only_weights=only_weights)


def _content(file: StoredFile, saved: Opened) -> Any:
    """Return the object in a file, unless it has so many values that they cannot all be looked at."""
    content = saved.content
    if not contents.can_be_searched(content):
        raise not_weights(file, "more values within one another, or the same again and again, than a model has")
    return content


def _no_choice(file: StoredFile, content: Any, found: contents.Contents, unknown: Unknown) -> CheckpointError:
    """Return why no model is read, and the keys that there are."""
    if found.others:
        names = ", ".join(ascii(contents.text_of(way)[:60]) for way in found.others[:MAX_LISTED])
        what = f"{len(found.others)} models, none under a usual name: {names}"
        first = f"{file.location}:{contents.text_of(found.others[0])[:60]}"
        fix = "if they are the steps of a run, save each in a file of its own, such as step_100.pt"
        return unsupported(file, f"holds {what}; choose one with {first}; {fix}")
    keys = contents.fields_of(content) or {}
    if "param_groups" in keys:
        return unsupported(file, "holds the state of an optimizer, not a model; name the model's file")
    there = ", ".join(ascii(str(name)[:40]) for name in [*keys][:6]) or "no dictionary of tensors"
    if unknown:
        classes = ", ".join(ascii(name[:40]) for name in [*unknown][:2])
        there += f", and objects of other classes ({classes}), of which nothing was executed"
    return unsupported(
        file,
        f"no tensors at the top level or under {', '.join(contents.WEIGHT_KEYS)}; there is {there}. Save the model's "
        "state_dict() under one of these names",
    )


def _notes(found: contents.Contents, model: contents.Model, chosen: Any, unknown: Unknown) -> list[str]:
    """Return what was chosen and what was left unread, a remark each."""
    notes = []
    if found.others:
        names = [contents.text_of(other)[:60] for other in found.others]
        notes.append(
            f"also holds {examples(names, MAX_LISTED)}; to read one, add its key to the path, as in :{names[0]}"
        )
    if found.left:
        notes.append(f"next to the model, left unread: {examples([name[:60] for name in found.left], MAX_LISTED)}")
    if model.unread:
        notes.append(f"{len(model.unread)} values other than plain tensors left unread: {_some_unread(model)}")
    if contents.is_module(chosen):
        notes.append(f"a whole module was saved ({name_of(chosen)[:80]}); its parameters and buffers are read")
    elif unknown:
        notes.append(f"objects of other classes left unread: {examples([name[:80] for name in unknown], MAX_LISTED)}")
    return [note if note.isprintable() else ascii(note) for note in notes]


def _some_unread(model: contents.Model) -> str:
    return examples([f"{name[:60]} ({value.what[:60]})" for name, value in model.unread.items()], MAX_LISTED)


@lru_cache(maxsize=8)
def _parsed(content: bytes) -> tuple[Any, Unknown]:
    """Return what a pickle holds and names; the checkpoints of a series often have the same, asked for twice each."""
    unknown: Unknown = {}
    return load(io.BytesIO(content), "", NAMES, storage_of, unknown), unknown


class Archive(Opened):
    """The zip archive of one ``torch.save``."""

    def __init__(self, file: StoredFile, start: int = 0, stop: int | None = None) -> None:
        super().__init__(file)
        self._start = start
        # The directory at the end lists as many records as there are tensors.
        ahead = 1 << 16 if stop is None else 1 << 12
        try:
            with zipfile.ZipFile(io.BufferedReader(RangeStream(file, start, stop), ahead)) as archive:
                listed = archive.infolist()
            self._records = {info.filename.partition("/")[2]: info for info in listed}
            if reason := self._foreign(len(listed)):
                raise unsupported(file, reason)
            # With torch.serialization.set_crc32_options(False) all of them are 0.
            self._has_checksums = any(info.CRC for info in listed)
            if "byteorder" in self._records and self._whole("byteorder") != b"little":
                raise unsupported(file, BIG_ENDIAN)
            self.pickle = self._whole("data.pkl")
        except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError, ValueError) as error:
            raise truncated(file, "the directory at its end cannot be read") from error

    @property
    def content(self) -> Any:
        """The saved object, not to be changed; if it is large, parsed anew each time rather than kept in memory."""
        try:
            parsed = _parsed if len(self.pickle) <= MAX_PARSED_BYTES else _parsed.__wrapped__
            content, unknown = parsed(self.pickle)
        except CheckpointError:
            return load(io.BytesIO(self.pickle), self.file.location, NAMES, storage_of)
        self.unknown |= unknown
        return content

    def _foreign(self, count: int) -> str:
        """Return why it is no archive of ``torch.save``, or an empty text."""
        if "data.pkl" not in self._records:
            return "a zip archive without data.pkl, which torch.save does not write; name a file of torch.save"
        if "constants.pkl" in self._records:
            return "a TorchScript program; save its state_dict() with torch.save"
        if any(info.compress_type != zipfile.ZIP_STORED for info in self._records.values()):
            return "its records are compressed, which torch never does; save it with torch.save"
        size = self._records["data.pkl"].file_size
        if size > MAX_PICKLE_BYTES:
            return f"its data.pkl would be {size} bytes long, too many for names alone; save the state_dict of tensors"
        return "it holds two records of the same name; save it again" if len(self._records) < count else ""

    def _whole(self, record: str) -> bytes:
        content = self._data(self._records[record], 0, self._records[record].file_size).tobytes()
        if self._has_checksums and zlib.crc32(content) != self._records[record].CRC:
            raise zipfile.BadZipFile
        return content

    def check(self, *, only_weights: bool) -> None:
        """Compare records with their CRC-32."""
        names = list(self._records) if self._has_checksums else []
        if only_weights:
            needed = {f"data/{tensor.storage.record}" for tensor in contents.model_tensors(self.content).values()}
            names = [name for name in names if name in needed]
        for name in names:
            info, crc = self._records[name], 0
            for start in range(0, info.file_size, CHECKED_BYTES):
                crc = zlib.crc32(self._data(info, start, min(start + CHECKED_BYTES, info.file_size)).data, crc)
            if crc != info.CRC:
                raise damaged(self.file, f"the bytes of its record {name[:80]!r} do not match their CRC-32")

    def place(self, storage: StoredStorage) -> tuple[int, Data]:  # noqa: D102
        info = self._records[f"data/{storage.record}"]
        return info.file_size, partial(self._data, info)

    def _data(self, info: zipfile.ZipInfo, start: int, stop: int) -> Bytes:
        """Read bytes of a record's numbers, which begin after a header of variable length."""
        at = self._start + info.header_offset
        ahead = len(info.filename) + MAX_PADDING + stop if stop <= MAX_READ_AHEAD else 0
        read = self.file.read(at, min(at + LOCAL_HEADER_BYTES + ahead, self.file.size))
        header = read[:LOCAL_HEADER_BYTES].tobytes()
        if not header.startswith(SIGNATURES["zip"]):
            raise not_weights(self.file, f"its record {info.filename[:80]!r} is not where its end says")
        begin = LOCAL_HEADER_BYTES + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        if begin + stop <= len(read):
            return read[begin + start : begin + stop]
        return self.file.read(at + begin + start, at + begin + stop)
