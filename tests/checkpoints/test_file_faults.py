"""Headers, indices and files that lie: each one line, beside the safetensors library as the oracle."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from sharded_checkpoints import write_sharded
from small_checkpoints import (
    WRITERS,
    Writer,
    assert_refused,
    every_format,
    family_weights,
    model_folder,
    random_weights,
    refused,
)
from stored_tensors import tensor_of
from torch import Tensor

from toposcope.checkpoints import Checkpoint, series
from toposcope.checkpoints.sources import CheckpointError

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.int64, torch.int32, torch.int16),
    *(torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
]


def bits(tensor: Tensor) -> tuple[Any, ...]:
    stored = tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tuple(tensor.shape), stored


def problem_of(path: Path, *words: str, at: Path | None = None) -> str:
    """The kind of problem that a checkpoint has, once its message was looked at."""
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(path, 1).content_hash()
    problem: CheckpointError = caught.value
    assert_refused(problem, at or path, *words)
    return problem.kind


def raw(path: Path, header: Any, body: bytes = b"", length: int | None = None) -> Path:
    """A safetensors file, its header as it is told."""
    told = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(told) if length is None else length) + told + body)
    return path


def told(shape: Any = (2, 2), offsets: Any = (0, 16), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


# safetensors


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = torch.Size(shape).numel() * dtype.itemsize
    stored = torch.frombuffer(bytearray(draw(st.binary(min_size=count, max_size=count)) + b"\0"), dtype=torch.uint8)
    stored = stored[:count].clone()
    return ((stored % 2).bool() if dtype == torch.bool else stored.view(dtype)).view(shape)


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)


@pytest.mark.slow
@examples(100)
@given(state=st.dictionaries(NAMES.filter(lambda n: n != "__metadata__"), tensors(), max_size=5), data=st.data())
def test_any_safetensors_file(
    state: dict[str, Tensor], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    save_file(state, path, metadata={"format": "pt"})
    found = {entry.name: entry for entry in Checkpoint(path, 1).entries}
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert bits(tensor_of(found[name])) == bits(tensor)
        if tensor.dim():
            start = data.draw(st.integers(0, len(tensor)))
            stop = data.draw(st.integers(start, len(tensor)))
            assert bits(tensor_of(found[name], start, stop)) == bits(tensor[start:stop])


@pytest.mark.slow
@examples(400)
@given(data=st.data())
def test_any_damage_is_refused_or_read_as_the_library_reads_it(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    save_file(random_weights({"a.weight": (3, 2), "b": (4,), "c": ()}), path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[at] = data.draw(st.sampled_from(b'0123456789,:[]{}"F\\-.eE ') | st.integers(0, 255))
        else:
            content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    path.write_bytes(content)
    try:
        found = {entry.name: bits(tensor_of(entry)) for entry in Checkpoint(path, 1).entries}
    except CheckpointError as problem:
        assert_refused(problem, path)
        return
    assert found == {name: bits(tensor) for name, tensor in load_file(path).items()}


HEADERS: dict[str, Any] = {
    "overlapping": {"a": told(), "b": told(offsets=(8, 24))},
    "the same bytes": {"a": told(), "b": told()},
    "a gap": {"a": told(), "b": told(offsets=(20, 36))},
    "a gap at the beginning": {"a": told(offsets=(4, 20))},
    "backwards": {"a": told(offsets=(16, 0))},
    "negative offsets": {"a": told(offsets=(-16, 0))},
    "a negative shape": {"a": told(shape=(-2, -2))},
    "a shape of nothing": {"a": told(shape=(0, 4))},
    "a huge shape": {"a": told(shape=(1 << 62, 1 << 62))},
    "a huger shape": {"a": told(shape=60 * [1 << 62])},
    "a shape that wraps to 16": {"a": told(shape=(1 << 62, 1 << 2, 1, 4))},
    "very many dimensions": {"a": told(shape=100_000 * [1])},
    "a shape of halves": {"a": told(shape=(2.5, 2))},
    "a shape of text": {"a": told(shape="ab")},
    "offsets beyond 64 bits": {"a": told(offsets=(0, 1 << 70))},
    "a number of 10,000 digits": b'{"a": {"dtype": "F32", "shape": [' + 10_000 * b"9" + b'], "data_offsets": [0, 16]}}',
    "three offsets": {"a": told(offsets=(0, 16, 32))},
    "no dtype": {"a": {"shape": (2, 2), "data_offsets": (0, 16)}},
    "a dtype of another size": {"a": told(dtype="F64")},
    "a dtype of numbers": {"a": told(dtype=3)},
    "an odd count of 4-bit numbers": {"a": told((2, 3), (0, 3), "F4"), "b": told((13,), (3, 16), "U8")},
    "a dtype that torch does not have": {"a": told(dtype="F6_E2M3", offsets=(0, 3)), "b": told((0, 0), (3, 3))},
    "a name twice": f'{{"a": {json.dumps(told())}, "a": {json.dumps(told(offsets=(16, 32)))}}}'.encode(),
    "no list": [],
    "null": None,
    "text": "abc",
    "nothing": b"",
    "not UTF-8": b'{"a\xff": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}',
    "a lone surrogate": b'{"a\\ud800": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}',
    "a name of two lines": {"a\nb": told()},
    "deep": b'{"a": ' + 100_000 * b"[" + 100_000 * b"]" + b"}",
    "deep dictionaries": 100_000 * b'{"a":',
    "a name without end": b'{"' + 100_000 * b"a",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_headers_that_lie(header: Any, tmp_path: Path) -> None:
    path = raw(tmp_path / "step_2.safetensors", header, bytes(16))
    save_file(family_weights(), tmp_path / "step_1.safetensors")
    first, bad = series(tmp_path)
    with refused(path):
        bad.content_hash()
    assert first.layers()


def test_tensors_of_nothing(tmp_path: Path) -> None:
    for shape in ((0, 1 << 62), (1 << 62, 0)):
        path = raw(tmp_path / "step_1.safetensors", {"a": told(shape=shape, offsets=(0, 0))})
        found = Checkpoint(path, 1)
        assert found.layers() == []
        assert len(found.entries[0].content_hash()) == 64


@pytest.mark.parametrize("length", [1 << 60, (1 << 64) - 1, 1 << 63, 200, 0])
def test_headers_of_another_length_than_declared(length: int, tmp_path: Path) -> None:
    path = raw(tmp_path / "step_1.safetensors", {"a": told()}, bytes(16), length)
    assert problem_of(path) == ("truncated" if length == 200 else "damaged")


def test_a_header_longer_than_any(tmp_path: Path) -> None:
    path = raw(tmp_path / "step_1.safetensors", {}, b"", 1 << 30)
    with path.open("r+b") as file:
        file.truncate(1 << 31)
    assert problem_of(path, "header would be") == "damaged"


def test_packed_numbers_have_the_shape_torch_gives_them(tmp_path: Path) -> None:
    path = raw(tmp_path / "1.safetensors", {"a": told(shape=(2, 4), dtype="F4", offsets=(0, 4))}, bytes(4))
    (entry,) = Checkpoint(path, 1).entries
    try:
        with safe_open(path, framework="pt") as file:
            assert tuple(file.get_tensor("a").shape) == entry.shape
    except (SafetensorError, AttributeError):
        assert entry.shape == (2, 2)
    assert tensor_of(entry).dtype == torch.float4_e2m1fn_x2
    assert Checkpoint(path, 1).layers() == []


# The index of shards


def indexed(folder: Path, change: Callable[[dict[str, Any]], None], suffix: str = ".safetensors") -> tuple[Path, Path]:
    path = model_folder(suffix, n_shards=2)(folder, 1, family_weights())
    (file,) = path.glob("*.index.json")
    index = json.loads(file.read_bytes())
    change(index)
    file.write_text(json.dumps(index))
    return path, file


NAMES_ELSEWHERE = ["../x", "/etc/passwd", "a/b", "./x", "a\0b", "..", ".", "", "a\\b", "a\nb", "x" * 300, "\ud800", 1]


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
@pytest.mark.parametrize("name", NAMES_ELSEWHERE, ids=ascii)
def test_an_index_that_leads_elsewhere(name: Any, suffix: str, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "a"):  # the file is there and would be a good shard
        place.mkdir(exist_ok=True)
        save_file(family_weights(), place / "x")
    folder, file = indexed(tmp_path, lambda index: index["weight_map"].update({"head.weight": name}), suffix)
    kinds = ["damaged", "unsafe"] if name == "\ud800" else ["damaged"] if name == 1 else ["unsafe"]
    assert problem_of(folder, at=file) in kinds


@pytest.mark.parametrize(
    "index", ["", "{", "[]", "null", "3", "{}", '{"weight_map": []}', '{"weight_map": {"a": {}}}', "\0"]
)
def test_a_broken_index_is_named(index: str, tmp_path: Path) -> None:
    folder, file = indexed(tmp_path, lambda _: None)
    file.write_text(index)
    assert problem_of(folder, "not a shard index", at=file) == "damaged"


def test_an_index_and_shards_that_disagree(tmp_path: Path) -> None:
    def missing(index: dict[str, Any]) -> None:
        index["weight_map"]["head.weight"] = "model-00003-of-00002.safetensors"

    def stray(index: dict[str, Any]) -> None:
        del index["weight_map"]["head.weight"]

    def promised(index: dict[str, Any]) -> None:
        index["weight_map"]["layers.2.head.weight"] = index["weight_map"]["head.weight"]

    def swapped(index: dict[str, Any]) -> None:
        first, second = sorted(set(index["weight_map"].values()))
        index["weight_map"]["head.weight"] = first if index["weight_map"]["head.weight"] == second else second

    for change, kind in ((missing, "missing shard"), (stray, "index"), (swapped, "index"), (promised, "index")):
        (tmp_path / change.__name__).mkdir()
        folder, _ = indexed(tmp_path / change.__name__, change)
        assert problem_of(folder, *([] if change is missing else ["head.weight"])) == kind


# Files that change or end


@every_format
def test_truncated_anywhere(write: Writer, tmp_path: Path) -> None:
    path = write(tmp_path, 1, family_weights())
    files = [file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    expected = Checkpoint(path, 1).content_hash()
    for file in files:
        whole = file.read_bytes()
        for cut in (0, 1, 3, *range(31, len(whole), len(whole) // 5 + 1), len(whole) - 1):
            file.write_bytes(whole[:cut])
            try:
                assert Checkpoint(path, 1).content_hash() == expected  # not a file of the weights
            except CheckpointError as problem:
                assert_refused(problem, file.parent)
        file.write_bytes(whole)


@every_format
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("replaced", "changed"),
        ("rewritten", "changed"),
        ("removed", "unreachable"),
        ("cut while it is read", "truncated"),
    ],
)
def test_a_file_that_changes_after_it_was_listed(
    how: str, kind: str, write: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, 1, family_weights())
    layers, read = Checkpoint(path, 1).layers(), os.read
    if how == "cut while it is read":
        monkeypatch.setattr(os, "read", lambda file, count: read(file, count - 1))
    for file in [file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]:
        content = file.read_bytes()
        if how == "removed":
            file.unlink()
        if kind != "changed":
            continue
        new = file.with_name("new.tmp") if how == "replaced" else file
        new.write_bytes(content)
        os.utime(new, ns=(10**9, 10**9))
        if new is not file:
            new.replace(file)
    for layer in layers:
        with pytest.raises(CheckpointError) as caught:
            layer.read()
        assert caught.value.kind == kind
        assert_refused(caught.value, path, layer.name)


def test_one_bad_checkpoint_does_not_spoil_the_others(tmp_path: Path) -> None:
    for step, write in enumerate(WRITERS.values()):
        write(tmp_path, step, family_weights())
    write_sharded(tmp_path / "step-1000", family_weights(), {})
    (tmp_path / "step-1000" / "__0_0.distcp").unlink()
    (tmp_path / "step_2000.safetensors").write_bytes(b"x")
    found = series(tmp_path)
    assert len(found) == len(WRITERS) + 2
    assert len({checkpoint.content_hash() for checkpoint in found[:-2]}) == 1
    for checkpoint in found[-2:]:
        with refused(Path(checkpoint.location)):
            checkpoint.layers()
