"""Whatever ``torch.save`` writes is read bit for bit as ``torch.load`` gives it, rows at a time."""

import argparse
import hashlib
import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from small_checkpoints import OPTIMIZER, assert_refused, family_weights, random_weights, refused
from stored_tensors import tensor_of
from torch import Tensor, nn

from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.sources import CheckpointError

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e8m0fnu),
]


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def same(a: Tensor, b: Tensor) -> bool:
    """Equal in dtype, shape and every bit."""
    return (a.dtype, a.shape) == (b.dtype, b.shape) and bits(a) == bits(b)


def hash_of(tensor: Tensor) -> str:
    """What an entry's hash is meant to be: of dtype, shape and bytes, whatever the strides."""
    told = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    return hashlib.sha256(told.encode() + bits(tensor)).hexdigest()


def by_name(path: Path) -> dict[str, Entry]:
    return {entry.name: entry for entry in Checkpoint(path, 1).entries}


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any dtype, shape and view of a storage that may hold more."""
    dtype = draw(st.sampled_from(DTYPES))
    n = 16 * draw(st.integers(1, 8))
    numbers = torch.frombuffer(bytearray(draw(st.binary(min_size=n, max_size=n))), dtype=torch.uint8)
    numbers = (numbers % 2).bool() if dtype == torch.bool else numbers.view(dtype)
    if draw(st.booleans()):
        return numbers
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    strides = draw(st.lists(st.integers(0, 5), min_size=len(shape), max_size=len(shape)))
    span = 0 if 0 in shape else 1 + sum((k - 1) * s for k, s in zip(shape, strides, strict=True))
    if span > len(numbers):
        return numbers
    return numbers.as_strided(shape, strides, draw(st.integers(0, len(numbers) - span)))


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)


@pytest.mark.slow
@examples(150)
@given(state=st.dictionaries(NAMES, tensors(), min_size=1, max_size=5), zipped=st.booleans(), data=st.data())
def test_any_state_dict(
    state: dict[str, Tensor], zipped: bool, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.pt"
    # The newer dtypes have no storage of their own, and torch does not read them back from the older files.
    zipped = zipped or any(t.dtype.is_floating_point and t.dtype.itemsize == 1 for t in state.values())
    zipped = zipped or any(t.dtype in (torch.uint16, torch.uint32, torch.uint64) for t in state.values())
    torch.save({"weights": 1, "model": state}, path, _use_new_zipfile_serialization=zipped)
    expected = torch.load(path, weights_only=True)["model"]
    found = {entry.name: entry for entry in Checkpoint(path, 1).entries}
    if "_orig_mod" not in "".join(state):
        assert found.keys() == expected.keys()
    for name, entry in found.items():
        tensor = expected[name]
        assert (entry.dtype, entry.shape) == (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        assert same(tensor_of(entry), tensor)
        if tensor.dim():
            start = data.draw(st.integers(0, len(tensor)))
            stop = data.draw(st.integers(start, len(tensor)))
            assert same(tensor_of(entry, start, stop), tensor[start:stop])
        assert entry.content_hash() == hash_of(tensor)


def test_a_transposed_matrix_is_hashed_without_reading_it_over_and_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toposcope.checkpoints.formats.entry.BLOCK_BYTES", 1000)
    W = torch.randn(50, 40)
    torch.save({"t": W.T, "plain": W.T.contiguous(), "part": torch.randn(40, 90)[:, 20:70]}, tmp_path / "step_1.pt")
    found = by_name(tmp_path / "step_1.pt")
    assert not found["t"].sequential_rows
    assert found["part"].sequential_rows
    assert found["t"].content_hash() == found["plain"].content_hash()


def test_tied_weights_parameters_and_attributes(tmp_path: Path) -> None:
    W = nn.Parameter(torch.randn(4, 3))
    W.seen = True  # type: ignore[attr-defined]
    marked = torch.randn(2, 2)
    marked.origin = {"a": [1]}  # type: ignore[attr-defined]
    state: Any = OrderedDict(
        {"wte.weight": W, "lm_head.weight": W, "marked": marked, "buffer": nn.Buffer(torch.ones(3))}
    )
    state._metadata = {"": {"version": 1}}
    path = tmp_path / "step_1.pt"
    torch.save(state, path)
    found = by_name(path)
    assert same(tensor_of(found["wte.weight"]), W.detach())
    assert found["wte.weight"].content_hash() == found["lm_head.weight"].content_hash()
    assert same(tensor_of(found["marked"]), torch.Tensor(marked))
    assert same(tensor_of(found["buffer"]), torch.ones(3))
    assert sum(len(f.read_bytes()) for f in [path]) < 4000


def test_numbers_used_over_and_over(tmp_path: Path) -> None:
    path, few = tmp_path / "step_1.pt", torch.ones(1, 4).expand(1000, 4)
    torch.save({"w": few}, path)
    assert by_name(path)["w"].content_hash() == hash_of(few)
    for many in (torch.ones(1).expand(1 << 40, 4), torch.ones(64).as_strided((16384, 16384), (0, 0))):
        torch.save({"w": many}, path)
        with refused(path, "by repeating them"):
            Checkpoint(path, 1).layers()


@pytest.mark.parametrize("zipped", [True, False])
def test_masks_and_shared_layers_are_read(zipped: bool, tmp_path: Path) -> None:
    path, shared = tmp_path / "step_1.pt", torch.randn(2048, 2048)
    weights = {f"layers.{k}.w": shared for k in range(24)} | {"mask": torch.ones(1, 1).expand(2048, 2048)}
    torch.save(weights, path, _use_new_zipfile_serialization=zipped)
    layers = {layer.name: layer for layer in Checkpoint(path, 1).layers()}
    assert len(layers) == 24
    assert layers["layers.23.w"].shape == (2048, 2048)


def test_a_checkpoint_of_lightning(tmp_path: Path) -> None:
    weights = family_weights()
    content = {
        "pytorch-lightning_version": "2.5.0",
        "hyper_parameters": argparse.Namespace(lr=1e-3, path=Path("x"), betas=(0.9, 0.95)),
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_path": "", "best_k": {(1, 2): "x"}}},
        "loops": {"epoch": {"state": set(), "counts": [1, 2]}},
        "optimizer_states": [OPTIMIZER],
    }
    for names in (
        weights,
        {f"net.{k}": v for k, v in weights.items()},
        {f"net._orig_mod.{k}": v for k, v in weights.items()},
    ):
        torch.save(content | {"state_dict": names}, tmp_path / "epoch=0-step=1.ckpt")
        assert sorted(by_name(tmp_path / "epoch=0-step=1.ckpt")) == sorted(weights)
    two = {"net.weight": torch.ones(2, 2), "loss.weight": torch.ones(3)}
    torch.save(content | {"state_dict": two}, tmp_path / "epoch=0-step=1.ckpt")
    assert sorted(by_name(tmp_path / "epoch=0-step=1.ckpt")) == sorted(two)


def rewritten(path: Path, change: dict[str, bytes], **how: Any) -> Path:
    """An archive with other records, as Python's own library writes it."""
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    stem = next(iter(records)).partition("/")[0]
    records |= {f"{stem}/{name}": content for name, content in change.items()}
    with zipfile.ZipFile(path, "w", **how) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return path


def test_archives_torch_would_not_write(tmp_path: Path) -> None:
    path = tmp_path / "step_1.pt"
    torch.save(random_weights({"w": (8, 8)}), path)
    assert len(Checkpoint(rewritten(path, {}), 1).layers()) == 1
    for change, how, told in (
        ({"byteorder": b"big"}, {}, "big-endian"),
        ({"constants.pkl": b""}, {}, "TorchScript"),
        ({}, {"compression": zipfile.ZIP_DEFLATED}, "compressed"),
    ):
        with refused(rewritten(path, change, **how), told):
            Checkpoint(path, 1).layers()
        torch.save(random_weights({"w": (8, 8)}), path)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("step_1/data.pkl", pickle.dumps({}))
    with refused(path, "two records"):
        Checkpoint(path, 1).layers()


@examples(300)
@given(data=st.data(), zipped=st.booleans())
def test_any_damage_is_refused_or_does_not_matter(
    data: st.DataObject, zipped: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    buffer, weights = io.BytesIO(), random_weights({"a.weight": (3, 2), "b": (4,)})
    torch.save({"model": weights}, buffer, _use_new_zipfile_serialization=zipped)
    content = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.pt"
    path.write_bytes(content)
    try:
        found = {entry.name: tensor_of(entry) for entry in Checkpoint(path, 1).entries}
    except CheckpointError as problem:
        assert_refused(problem, path)
        return
    try:
        expected = torch.load(path, weights_only=True)["model"]
    except Exception:  # noqa: BLE001 - torch looks at more than is read here
        return
    # Of a record whose attributes make it a folder torch returns memory that nothing was read into.
    assert all(
        same(found[name], tensor) or (name in weights and same(found[name], weights[name]))
        for name, tensor in expected.items()
        if name in found
    )
