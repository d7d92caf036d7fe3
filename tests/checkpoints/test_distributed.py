"""torch.distributed.checkpoint without a process group: tensors from their chunks, beside torch's own loader."""

import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from ranks import on_ranks
from sharded_checkpoints import Cuts, write_sharded
from small_checkpoints import Weights, assert_refused, family_weights, random_weights
from stored_tensors import tensor_of
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.state_dict_saver import save

from toposcope.checkpoints import Checkpoint, series
from toposcope.checkpoints.formats import is_checkpoint
from toposcope.checkpoints.sources import CheckpointError


def of_torch(folder: Path) -> Any:
    """What torch's own conversion makes of a folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        dcp_to_torch_save(folder, folder.parent / "converted.pt")
    return torch.load(folder.parent / "converted.pt", weights_only=True)


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(
            found[name].contiguous().flatten().view(torch.uint8), tensor.contiguous().flatten().view(torch.uint8)
        )


SHAPES: dict[str, tuple[int, ...]] = {
    "rows.weight": (7, 6),
    "columns.weight": (7, 6),
    "both.weight": (8, 6),
    "whole.weight": (4, 4),
    "bias": (5,),
    "stack.weight": (3, 4, 5),
    "scalar": (),
    "none": (0, 3),
}
CUTS: dict[str, Cuts] = {
    "rows.weight": [[3], []],
    "columns.weight": [[], [2, 3]],
    "both.weight": [[4], [1, 4]],
    "bias": [[2, 5]],  # the last rank has nothing
    "stack.weight": [[1], [], [3]],
}


@pytest.mark.parametrize("one_file", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64], ids=str)
def test_chunks_along_any_axis(dtype: torch.dtype, one_file: bool, tmp_path: Path) -> None:
    weights = random_weights(SHAPES, dtype=dtype)
    folder = write_sharded(tmp_path / "step-10", weights, CUTS, single_file_per_rank=one_file)
    found = Checkpoint(folder, 10).tensors()
    assert_same(found, weights)
    assert_same(found, of_torch(folder)["model"])


@st.composite
def cut_tensors(draw: st.DrawFn) -> tuple[Tensor, Cuts]:
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    cuts = [draw(st.lists(st.integers(1, extent), max_size=3, unique=True)) for extent in shape]
    return torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))), cuts


@examples(40)
@given(cut=cut_tensors(), n_ranks=st.integers(1, 3), data=st.data())
def test_any_rows_of_any_cut(
    cut: tuple[Tensor, Cuts], n_ranks: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tensor, cuts = cut
    folder = write_sharded(tmp_path_factory.mktemp("cut"), {"w": tensor}, {"w": cuts}, n_ranks=n_ranks)
    (entry,) = Checkpoint(folder, 1).entries
    start = data.draw(st.integers(0, len(tensor)))
    stop = data.draw(st.integers(start, len(tensor)))
    assert torch.equal(tensor_of(entry, start, stop), tensor[start:stop])


def _shard_and_save(folder: Path) -> None:
    """What each of two processes does: shard as FSDP and tensor parallelism do, and save."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    places = {"rows.weight": Shard(0), "columns.weight": Shard(1), "whole.weight": Replicate(), "bias": Shard(0)}
    weights = {
        name: distribute_tensor(tensor, mesh, [places.get(name, Replicate())])
        for name, tensor in random_weights(SHAPES).items()
    }
    save({"model": weights, "optim": {"exp_avg": weights["rows.weight"]}}, checkpoint_id=folder)


@pytest.mark.slow
def test_two_processes_and_distributed_tensors(tmp_path: Path) -> None:
    folder = tmp_path / "step10" / "model_and_optim"
    on_ranks(_shard_and_save, 2, tmp_path, folder)
    (checkpoint,) = series(folder.parent)
    assert_same(checkpoint.tensors(), random_weights(SHAPES))
    assert_same(checkpoint.tensors(), of_torch(folder)["model"])


# Which tensors are the model's


def names_of(folder: Path, content: Mapping[str, Any]) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(dict(content), storage_writer=FileSystemWriter(folder), no_dist=True)
    return [entry.name for entry in Checkpoint(folder, 1).entries]


W = torch.ones(2, 2)
OPTIMIZER = {"state": {"layers.0.weight": {"exp_avg": W, "step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1}]}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"model": {"layers.0.weight": W}, "optim": OPTIMIZER}, ["layers.0.weight"]),
        ({"layers.0.weight": W, "optimizer": OPTIMIZER, "lr_scheduler": {"last": W}}, ["layers.0.weight"]),
        ({"app": {"model": {"model.layers.0.weight": W}, "optim": OPTIMIZER}}, ["model.layers.0.weight"]),
        ({"state": {"model": {"w": W}, "optimizers": {"Adam": OPTIMIZER}}, "rng": {"cpu": W}}, ["w"]),
        ({"state_dict": {"w": W}, "optimizer_0": OPTIMIZER, "dataloader": {"x": W}}, ["w"]),
        # A model whose own names begin with model., at the top level.
        ({"model.layers.0.weight": W, "lm_head.weight": W}, ["lm_head.weight", "model.layers.0.weight"]),
    ],
)
def test_only_the_model_is_taken(content: Mapping[str, Any], expected: list[str], tmp_path: Path) -> None:
    assert names_of(tmp_path / "step1", content) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["model.a.weight", "model.b.weight", "optim.state.a.weight.exp_avg"], ["a.weight", "b.weight"]),
        (["model.a.weight", "lm_head.weight"], ["lm_head.weight", "model.a.weight"]),
        (["a.weight", "optimizer.state.a.weight.exp_avg", "train_state"], ["a.weight"]),
    ],
)
def test_without_a_planner_names_tell(names: list[str], expected: list[str], tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "step1", dict.fromkeys(names, W), {}, paths={})
    assert [entry.name for entry in Checkpoint(folder, 1).entries] == expected


def test_the_names_of_files(tmp_path: Path) -> None:
    assert is_checkpoint([".metadata", "__0_0.distcp"])
    assert is_checkpoint(["pytorch_model_fsdp_0/.metadata", "optimizer_0/.metadata", "scheduler.pt"])
    assert not is_checkpoint(["optimizer_0/.metadata", "scheduler.pt"])
    assert not is_checkpoint(["step-1/.metadata", "step-2/.metadata"])
    assert not is_checkpoint(["a/b/.metadata", "a/b/__0_0.distcp"])
    # Whole weights beside, merged from the shards or saved at the end, come first.
    folder = write_sharded(tmp_path / "step-1", {"w": W}, {})
    torch.save({"w": 2 * W}, folder / "pytorch_model.bin")
    assert torch.equal(Checkpoint(folder, 1).tensors()["w"], 2 * W)


def test_layouts_of_series(tmp_path: Path) -> None:
    for step in (10, 20):
        write_sharded(tmp_path / "titan" / "checkpoint" / f"step-{step}", family_weights(step), {})
        write_sharded(tmp_path / "olmo" / f"step{step}" / "model_and_optim", family_weights(step), {})
        write_sharded(tmp_path / "hf" / f"checkpoint-{step}" / "pytorch_model_fsdp_0", family_weights(step), {})
        write_sharded(tmp_path / "hf" / f"checkpoint-{step}" / "optimizer_0", {"exp_avg": W}, {})
        write_sharded(tmp_path / "lightning" / f"epoch=0-step={step}.ckpt", family_weights(step), {})
        write_sharded(tmp_path / "composer" / f"ep0-ba{step}", family_weights(step), {})
    hashes = set()
    for folder in sorted(tmp_path.iterdir()):
        found = series(folder)
        assert found.steps == [10, 20]
        hashes.add(tuple(checkpoint.content_hash() for checkpoint in found))
    assert len(hashes) == 1


def test_layers_stacked_by_megatron_core(tmp_path: Path) -> None:
    stacked = random_weights({"decoder.layers.mlp.linear_fc1.weight": (3, 6, 4), "decoder.layers.norm.weight": (3, 4)})
    other = random_weights({"embedding.word_embeddings.weight": (8, 4), "optimizer.state.exp_avg.x": (5,)})
    weights = stacked | other
    cuts = {"decoder.layers.mlp.linear_fc1.weight": ((1, 2), (3,), ()), "decoder.layers.norm.weight": ((1, 2), ())}
    write_sharded(tmp_path / "iter_10", weights, cuts, paths={name: (name,) for name in weights})
    as_megatron_core(tmp_path / "iter_10")
    expected = {name: tensor for name, tensor in other.items() if "optimizer" not in name}
    for name, tensor in stacked.items():
        expected |= {name.replace("layers.", f"layers.{k}."): part for k, part in enumerate(tensor)}
    assert_same(Checkpoint(tmp_path / "iter_10", 10).tensors(), expected)


def as_megatron_core(folder: Path) -> None:
    """Add what Megatron-Core writes, and give the metadata a class of another name, as it does."""
    metadata = folder / ".metadata"
    content = metadata.read_bytes()
    assert content.count(b"\x08Metadata") == 1
    metadata.write_bytes(content.replace(b"\x08Metadata", b"\x08MCoreOne"))
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    torch.save({"iteration": 10}, folder / "common.pt")


# Damage


def changed(folder: Path, change: Callable[[Metadata], object]) -> Path:
    """Rewrite the metadata of a folder."""
    file = folder / ".metadata"
    metadata = pickle.loads(file.read_bytes())  # noqa: S301 - written by this test
    change(metadata)
    file.write_bytes(pickle.dumps(metadata))
    return folder


def sharded(folder: Path) -> Path:
    weights: Weights = random_weights({"head.weight": (6, 4)})
    return write_sharded(folder / "step1", weights, {"head.weight": [[3], []]})


def kind(folder: Path, *words: str, at: str = ".metadata") -> str:
    """The kind of problem that reading a folder meets, and the file and words in its message."""
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(folder, 1).content_hash()
    problem: CheckpointError = caught.value
    assert_refused(problem, folder / at, *words)
    return problem.kind


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "..", "", "a\0b", "a\\b", 3, ["x"]])
def test_a_name_that_leads_out_of_the_folder(name: Any, tmp_path: Path) -> None:
    def change(metadata: Metadata) -> None:
        for place in metadata.storage_data.values():
            place.relative_path = name

    assert kind(changed(sharded(tmp_path), change), "outside its folder") == "unsafe"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    (folder / "__1_0.distcp").unlink()
    assert kind(folder, "missing", at="__1_0.distcp") == "missing shard"


HEAD = "model.head.weight"


def tensor_in(metadata: Metadata) -> Any:
    return metadata.state_dict_metadata[HEAD]


WRONG: dict[str, Callable[[Metadata], object]] = {
    "a chunk is missing": lambda m: tensor_in(m).chunks.pop(),
    "a chunk comes twice": lambda m: tensor_in(m).chunks.append(tensor_in(m).chunks[0]),
    "a chunk outside": lambda m: setattr(tensor_in(m).chunks[1], "offsets", torch.Size([4, 0])),
    "longer": lambda m: setattr(tensor_in(m), "size", torch.Size([8, 4])),
    "huge": lambda m: setattr(tensor_in(m), "size", torch.Size([2**40, 2**20])),
    "of one axis": lambda m: setattr(tensor_in(m).chunks[1], "sizes", torch.Size([12])),
    "a chunk without a place": lambda m: m.storage_data.pop(MetadataIndex(HEAD, [3, 0])),
}


@pytest.mark.parametrize("what", WRONG)
def test_chunks_that_do_not_make_the_tensor(what: str, tmp_path: Path) -> None:
    assert kind(changed(sharded(tmp_path), WRONG[what]), "head.weight") == "index"


def test_chunks_of_another_shape_or_dtype_than_declared(tmp_path: Path) -> None:
    def other_dtype(metadata: Metadata) -> None:
        tensor_in(metadata).properties.dtype = torch.float16

    def other_place(metadata: Metadata) -> None:
        places = metadata.storage_data
        places[MetadataIndex(HEAD, [3, 0])].offset = 7

    assert kind(changed(sharded(tmp_path), other_dtype), "float16", at="__0_0.distcp") == "damaged"
    assert kind(changed(sharded(tmp_path / "b"), other_place), at="__1_0.distcp") == "truncated"


@pytest.mark.parametrize("content", [Metadata({}), {"a": 1}, None])
def test_metadata_without_content(content: Any, tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(content))
    assert kind(tmp_path) == "damaged"


def test_safetensors_in_distcp_are_refused(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "1", {"w": W}, {}, serialization_format=SerializationFormat.SAFETENSORS)
    assert kind(folder, "not an archive", at="__0_0.distcp") == "damaged"
