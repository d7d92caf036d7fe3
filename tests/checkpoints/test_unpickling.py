"""A pickle is data: whatever one can be made to say, nothing is executed, and no few bytes take all memory or time."""

import contextlib
import io
import os
import pickle
import resource
import struct
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from small_checkpoints import family_weights, refused

from toposcope.checkpoints import Checkpoint, series
from toposcope.checkpoints.sources import CheckpointError
from toposcope.checkpoints.unpickling import TENSOR_NAMES, load


def text(value: str) -> bytes:
    stored = value.encode("utf-8", "surrogatepass")
    return pickle.BINUNICODE + struct.pack("<I", len(stored)) + stored


def named(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def called(function: bytes, *arguments: bytes) -> bytes:
    return function + pickle.MARK + b"".join(arguments) + pickle.TUPLE + pickle.REDUCE


def weight_in(record: bytes, count: bytes) -> bytes:
    parts = (text("storage"), named("torch", "FloatStorage"), record, text("cpu"), count)
    storage = pickle.MARK + b"".join(parts) + pickle.TUPLE + pickle.BINPERSID
    tensor = called(REBUILD, storage, b"K\x00", b"K\x02K\x02\x86", b"K\x02K\x01\x86", b"\x89", pickle.NONE)
    return pickle.EMPTY_DICT + text("weight") + tensor + pickle.SETITEM


def doubled(times: int, opcode: bytes) -> bytes:
    """Something that holds the same thing twice, which holds the same thing twice, and so on."""
    made = pickle.EMPTY_TUPLE if opcode == pickle.TUPLE else pickle.EMPTY_LIST
    for k in range(times):
        both = pickle.BINPUT + bytes([k % 200]) + pickle.POP + pickle.MARK + 2 * (pickle.BINGET + bytes([k % 200]))
        made += both + (pickle.TUPLE if opcode == pickle.TUPLE else pickle.LIST)
    return made


MARK = "echo boom > marker"
SYSTEM = named("os", "system")
REBUILD = named("torch._utils", "_rebuild_tensor_v2")
BY = text(MARK) + pickle.TUPLE1
EXECUTE: dict[str, bytes] = {
    "os.system": called(SYSTEM, text(MARK)),
    "posix.system": called(named("posix", "system"), text(MARK)),
    "builtins.eval": called(named("builtins", "eval"), text("open('marker', 'w')")),
    "builtins.exec of Python 2": called(named("__builtin__", "exec"), text("open('marker', 'w')")),
    "getattr": called(called(named("builtins", "getattr"), named("os", "path"), text("os")), text(MARK)),
    "a dotted name": b"\x80\x04" + text("os") + text("path.os.system") + pickle.STACK_GLOBAL + BY + pickle.REDUCE,
    "a dotted name of torch": called(named("torch", "serialization.os.system"), text(MARK)),
    "torch.load": called(named("torch", "load"), text("other.pt")),
    "an attribute of a name that is known": called(named("collections", "OrderedDict.__init__.__globals__")),
    "an instance": pickle.MARK + text(MARK) + pickle.INST + b"os\nsystem\n",
    "an object": pickle.MARK + SYSTEM + text(MARK) + pickle.OBJ,
    "new": named("subprocess", "Popen") + BY + pickle.NEWOBJ,
    "new with keywords": named("subprocess", "Popen") + BY + pickle.EMPTY_DICT + pickle.NEWOBJ_EX,
    "an import": named("importlib", "import_module"),
    "a name from the memo": text("os") + b"q\x00" + text("system") + b"q\x01" + b"h\x00h\x01" + pickle.STACK_GLOBAL,
    "beside weights": b"}(" + text("model") + b"}" + text("x") + called(SYSTEM, text(MARK)) + pickle.SETITEMS,
    "in a rebuilt tensor": called(REBUILD, called(SYSTEM, text(MARK))),
}
STORAGE = named("torch", "FloatStorage")
STATE = pickle.EMPTY_DICT + pickle.MARK + text("update") + text("x") + pickle.SETITEMS + pickle.BUILD
FROM_TYPE = named("torch._tensor", "_rebuild_from_type_v2")
STRANGE: dict[str, bytes] = {
    "state of a class": named("__main__", "A") + STATE,
    "state of a function": REBUILD + STATE,
    "state of a storage": STORAGE + STATE,
    "a call of text": called(text("x"), text("y")),
    "an extension": pickle.EXT1 + b"\x01",
    "a buffer outside": pickle.NEXT_BUFFER,
    "keywords": named("__main__", "A") + b")}" + pickle.NEWOBJ_EX,
    "an object elsewhere": text("x") + pickle.BINPERSID,
    "a storage of no kind": pickle.MARK + 5 * text("storage") + pickle.TUPLE + pickle.BINPERSID,
    "a storage of no name": weight_in(b"K\x00", b"K\x04"),
    "a storage of no count": weight_in(text("0"), text("4")),
    "a tensor in a tensor": called(FROM_TYPE, FROM_TYPE, b"N", b")", b"N"),
    "a parameter that is a tuple": called(named("torch._utils", "_rebuild_parameter"), b"K\x01\x85"),
    "a negative shape": called(REBUILD, STORAGE, b"K\x00", b"J\xff\xff\xff\xff\x85", b"K\x01\x85"),
    "strides too many": called(REBUILD, STORAGE, b"K\x00", b")", b"K\x01\x85"),
    "a long shape": called(REBUILD, STORAGE, b"K\x00", b"(" + 100 * b"K\x01" + b"t", b"(" + 100 * b"K\x01" + b"t"),
    "an empty stack": pickle.REDUCE,
    "a memo that is empty": pickle.BINGET + b"\x07",
    "a key that cannot be one": pickle.EMPTY_DICT + pickle.EMPTY_LIST + pickle.NONE + pickle.SETITEM,
    "protocol 200": pickle.PROTO + b"\xc8" + pickle.NONE,
}
TWINS = [b"\x8a\x09" + (k * (2**61 - 1)).to_bytes(9, "little") for k in range(8)]  # numbers of one hash
AS_KEY = pickle.NONE + pickle.SETITEM
HUGE: dict[str, bytes] = {
    "a place in the memo": pickle.NONE + pickle.LONG_BINPUT + b"\xff\xff\xff\x07",
    "a byte array": pickle.BYTEARRAY8 + struct.pack("<Q", 1 << 40),
    "bytes": pickle.BINBYTES8 + struct.pack("<Q", 1 << 40),
    "text": pickle.BINUNICODE8 + struct.pack("<Q", 1 << 40),
    "a number": pickle.LONG4 + struct.pack("<i", (1 << 31) - 1),
    "a number in digits": b"I" + 4000 * b"9" + b"\n",
    "a number of many bits": pickle.EMPTY_DICT + pickle.LONG4 + struct.pack("<i", 500) + 500 * b"\x01" + AS_KEY,
    "lists in lists": 60_000 * pickle.EMPTY_LIST + 59_999 * pickle.APPEND,
    "tuples in tuples": pickle.EMPTY_TUPLE + 100_000 * pickle.TUPLE1,
    "a key of tuples in tuples": pickle.EMPTY_DICT + pickle.EMPTY_TUPLE + 1_000_000 * pickle.TUPLE1 + AS_KEY,
    "such a key, its parts given no state": b"})" + 300_000 * b"\x85Nb" + AS_KEY,
    "such a key, its parts given no items": b"})" + 300_000 * b"\x85(u" + AS_KEY,
    "keys of numbers of one hash": b"}("
    + b"".join(b"(" + b"".join(TWINS[k >> 3 * i & 7] for i in range(5)) + b"tN" for k in range(30_000))
    + b"u",
    "a long text as a key": b"}(" + 2 * (text("a" * 1_000_000) + b"N") + b"u",
    "a key of doubled tuples": pickle.EMPTY_DICT + doubled(9, pickle.TUPLE) + AS_KEY,
    "a key of many parts, often": pickle.EMPTY_DICT
    + (b"(" + 50_000 * b"N" + b"tq\x00" + AS_KEY)
    + 50_000 * (b"h\x00" + AS_KEY),
    "a dictionary of such keys": pickle.MARK + doubled(100, pickle.TUPLE) + pickle.NONE + pickle.DICT,
    "a set of such": pickle.EMPTY_SET + pickle.MARK + doubled(9, pickle.TUPLE) + pickle.ADDITEMS,
    "a frozen set of such": pickle.MARK + doubled(9, pickle.TUPLE) + pickle.FROZENSET,
    "whole numbers of one hash": b"}("
    + b"".join(b"\x8a\x0a" + (k * (2**61 - 1)).to_bytes(10, "little") + b"N" for k in range(9, 40_000))
    + b"u",
    "a list of lists": b"(" + 1_000_000 * b"]" + b"l",
    "batches of lists": b"]" + 1000 * (b"(" + 1000 * b"]" + b"e"),
    "a dictionary made of such": called(named("collections", "OrderedDict"), doubled(100, pickle.LIST)),
    "doubled lists": doubled(200, pickle.LIST),
    "a shape of doubled tuples": called(named("torch", "Size"), doubled(100, pickle.TUPLE)),
    "arguments again and again": named("a", "A")
    + b"q\x00("
    + 20_000 * b"N"
    + b"tq\x01("
    + 20_000 * b"h\x00h\x01R"
    + b"l",
    "a million classes": b"(" + b"".join(b"c__main__\nC%d\n" % k for k in range(1_000_000)) + b"l",
    "itself": pickle.EMPTY_DICT + b"q\x00" + text("model") + b"h\x00" + pickle.SETITEM,
    "marks": 100_000 * pickle.MARK,
}


def zipped(content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a/data.pkl", content)
        archive.writestr("a/data/0", bytes(64))
    return made.getvalue()


def legacy(content: bytes) -> bytes:
    start = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}]
    return b"".join(pickle.dumps(part, protocol=2) for part in start) + content + pickle.dumps([], protocol=2)


PLACES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "zip": ("step_2.pt", zipped),
    "before torch 1.6": ("step_2.pt", legacy),
    "a plain pickle": ("step_2.bin", lambda content: pickle.PROTO + b"\x02" + content),
    "a shard": ("step_2/pytorch_model-00001-of-00001.bin", zipped),
    ".metadata": ("step_2/.metadata", lambda content: content),
}
every_place = pytest.mark.parametrize("place", PLACES)


def plant(folder: Path, place: str, content: bytes) -> Path:
    name, wrapped = PLACES[place]
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(wrapped(content + pickle.STOP))
    return path


@contextlib.contextmanager
def little_memory(megabytes: int = 300) -> Iterator[None]:
    """Expect the most memory in use to grow little."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < megabytes * 1024


def assert_harmless(folder: Path, place: str, content: bytes, *words: str) -> None:
    """One line, nothing executed, and the other checkpoints of the series open."""
    for step in (1, 3):
        torch.save({"model": family_weights()}, folder / f"step_{step}.pt")
    before = sorted(folder.iterdir())
    path = plant(folder, place, content)
    first, bad, last = series(folder)
    with little_memory(), refused(path, *words):
        bad.layers()
    assert len(first.layers()) == len(last.layers()) > 0
    assert set(folder.iterdir()) - set(before) == {folder / path.relative_to(folder).parts[0]}


@every_place
@pytest.mark.parametrize("bomb", EXECUTE)
def test_nothing_is_executed(bomb: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named = place != "a plain pickle" and bomb not in ("an instance", "new with keywords")  # refused by their opcodes
    assert_harmless(tmp_path, place, EXECUTE[bomb], *(["nothing was executed"] if named else []))
    assert not Path("marker").exists()


@every_place
def test_what_a_list_of_names_does_not_hold_is_not_executed_either(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("toposcope.checkpoints.unpickling._is_attack", lambda *_: False)
    for bomb in EXECUTE.values():
        path = plant(tmp_path, place, bomb)
        with contextlib.suppress(CheckpointError):
            Checkpoint(path if path.parent == tmp_path else path.parent, 1).layers()
    assert not Path("marker").exists()


def test_the_bombs_are_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for bomb in ("os.system", "an instance", "an object", "a dotted name", "in a rebuilt tensor"):
        with contextlib.suppress(Exception):
            pickle.loads(EXECUTE[bomb] + pickle.STOP)  # noqa: S301 - this is what is meant to be seen
        assert Path("marker").exists(), bomb
        os.unlink("marker")  # noqa: PTH108


@pytest.mark.parametrize("place", ["zip", ".metadata"])
@pytest.mark.parametrize("content", STRANGE.values(), ids=STRANGE)
def test_what_torch_would_not_write(content: bytes, place: str, tmp_path: Path) -> None:
    assert_harmless(tmp_path, place, content)


@pytest.mark.parametrize("place", ["zip", ".metadata"])
@pytest.mark.parametrize("what", HUGE)
def test_little_is_used(what: str, place: str, tmp_path: Path) -> None:
    path, before = plant(tmp_path, place, HUGE[what]), time.process_time()
    with little_memory(), refused(path):
        Checkpoint(path if place == "zip" else path.parent, 1).layers()
    assert time.process_time() - before < 30  # seconds: what any hostile input may take


@examples(200)
@given(
    st.lists(
        st.sampled_from([bytes([code]) for code in range(256)])
        | st.sampled_from([named(*key) for key in TENSOR_NAMES])
        | st.sampled_from([text("a"), b"K\x01", b"K\x05\x85", *STRANGE.values()])
        | st.binary(max_size=4),
        max_size=40,
    )
)
def test_any_pickle_gives_an_object_or_one_line(parts: list[bytes]) -> None:
    try:
        load(io.BytesIO(b"".join(parts) + pickle.STOP), "step_1.pt", TENSOR_NAMES)
    except CheckpointError as problem:
        message = str(problem)
        assert message.splitlines() == [message]
        assert message.startswith("step_1.pt: ")
        assert len(message) < 400
