"""Checkpoints in a file for each rank are merged where they say how, and refused in words where they do not."""

import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parallel_ranks import write_llama, write_megatron, write_zero1, write_zero3
from property_examples import examples
from safetensors.torch import save_file
from sharded_checkpoints import write_sharded
from small_checkpoints import Weights, assert_refused, family_weights, random_weights, refused
from stored_tensors import tensor_of
from torch.distributed.checkpoint.metadata import Metadata

from toposcope.checkpoints import Checkpoint, series
from toposcope.checkpoints.formats import is_checkpoint
from toposcope.checkpoints.formats.rank_files import parts_of
from toposcope.checkpoints.sources import CheckpointError
from toposcope.errors import ToposcopeError


def assert_holds(folder: Path, weights: Weights) -> None:
    """The checkpoint has these tensors, whole and row by row."""
    found = {entry.name: entry for entry in Checkpoint(folder, 0).entries}
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        assert found[name].shape == tuple(tensor.shape)
        assert torch.equal(tensor_of(found[name]), tensor)
        for row in range(len(tensor) if tensor.dim() else 0):
            assert torch.equal(tensor_of(found[name], row, row + 1), tensor[row : row + 1])


def refusal(place: Path, *words: str, kind: str = "unsupported") -> None:
    """The checkpoint is refused in one line that names it and holds the words."""
    with pytest.raises(CheckpointError) as caught:
        _ = Checkpoint(place, 0).entries
    assert_refused(caught.value, place, *words)
    assert caught.value.kind == kind


# Megatron-LM


@examples(30)
@given(
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 4]),
    core=st.booleans(),
    version=st.sampled_from([0, 2.0, 3.0]),
    grouped=st.booleans(),
    swiglu=st.booleans(),
)
def test_ranks_of_megatron_are_merged(
    tmp_path_factory: pytest.TempPathFactory,
    tensor: int,
    pipeline: int,
    core: bool,
    version: float,
    grouped: bool,
    swiglu: bool,
) -> None:
    folder = tmp_path_factory.mktemp("run") / "iter_0001000"
    # Grouped queries came after version 0.
    groups: dict[str, Any] = {
        "num_query_groups": 2 if tensor < 4 else 4,
        "group_query_attention": grouped and bool(version),
    }
    options: dict[str, Any] = groups if grouped else {"num_query_groups": 1}
    weights = write_megatron(
        folder, tensor=tensor, pipeline=pipeline, core=core, version=version, swiglu=swiglu, **options
    )
    assert_holds(folder, weights)
    assert series(folder.parent).steps == [1000]


def test_the_copy_of_a_tied_embedding_is_left_out(tmp_path: Path) -> None:
    options: dict[str, Any] = {"core": True, "pipeline": 2, "untie_embeddings_and_output_weights": False}
    weights = write_megatron(tmp_path / "a", **options)
    del weights["output_layer.weight"]
    assert_holds(tmp_path / "a", weights)


@pytest.mark.parametrize("missing", ["ffn_hidden_size", "tensor_model_parallel_size", "padded_vocab_size"])
def test_ranks_whose_arguments_lack_a_size_are_refused(missing: str, tmp_path: Path) -> None:
    write_megatron(tmp_path / "a", drop=(missing,))
    refusal(tmp_path / "a", "mp_rank_00, mp_rank_01", missing, "convert.py")


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"ffn_hidden_size": 24}, "dense_h_to_4h"),
        ({"num_query_groups": 2, "group_query_attention": True}, "query_key_value"),
        ({"num_layers": 8}, "4 layers"),
        ({"padded_vocab_size": 32}, "word_embeddings"),
        ({"expert_model_parallel_size": 2}, "experts"),
        ({"swiglu": True}, "dense_h_to_4h"),
    ],
)
def test_arguments_that_contradict_the_shapes_are_refused(changed: dict[str, Any], word: str, tmp_path: Path) -> None:
    write_megatron(tmp_path / "a")
    for file in (tmp_path / "a").glob("*/*.pt"):
        content = torch.load(file, weights_only=False)
        vars(content["args"]).update(changed)
        torch.save(content, file)
    refusal(tmp_path / "a", word, "convert.py")


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a", tensor=2, pipeline=2)
    (tmp_path / "a" / "mp_rank_01_001" / "model_optim_rng.pt").unlink()
    refusal(tmp_path / "a", "mp_rank_01_001 missing", kind="missing shard")


def test_one_rank_is_never_the_model(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a")
    file = tmp_path / "a" / "mp_rank_00" / "model_optim_rng.pt"
    refusal(file, "one rank of several", "tensor_model_parallel_size 2")
    refusal(file.parent, "one rank of several")
    for place in (file, file.parent):
        with refused(place, "one of 2 ranks", str(tmp_path / "a")):
            series(place)


@pytest.mark.parametrize("change", ["unknown", "shape", "virtual"])
def test_what_has_no_certain_rule_is_refused(change: str, tmp_path: Path) -> None:
    write_megatron(tmp_path / "a")
    for k, file in enumerate(sorted((tmp_path / "a").glob("*/*.pt"))):
        content = torch.load(file, weights_only=False)
        encoder = content["model"]["language_model"]["encoder"]
        if change == "unknown":
            encoder["layers.0.mlp.adapter.weight"] = torch.zeros(4, 8)
        elif change == "shape":
            encoder["layers.0.input_layernorm.weight"] = torch.zeros(8 + k)
        else:
            content["model0"] = content["model1"] = content.pop("model")
        torch.save(content, file)
    words = {"unknown": "adapter", "shape": "different shapes", "virtual": "virtual pipeline"}
    refusal(tmp_path / "a", words[change], "convert.py")


def test_layers_stacked_by_megatron_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stacked = random_weights({"decoder.layers.mlp.linear_fc1.weight": (3, 6, 4), "decoder.layers.norm.weight": (3, 4)})
    other = random_weights({"embedding.word_embeddings.weight": (8, 4), "optimizer.state.exp_avg.x": (5,)})
    weights = stacked | other
    cuts = {"decoder.layers.mlp.linear_fc1.weight": ((1, 2), (3,), ()), "decoder.layers.norm.weight": ((1, 2), ())}
    write_sharded(tmp_path / "iter_10", weights, cuts, paths={name: (name,) for name in weights})
    as_megatron_core(tmp_path / "iter_10", monkeypatch)
    expected = {name: tensor for name, tensor in other.items() if "optimizer" not in name}
    for name, tensor in stacked.items():
        expected |= {name.replace("layers.", f"layers.{k}."): part for k, part in enumerate(tensor)}
    assert_holds(tmp_path / "iter_10", expected)


def as_megatron_core(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add what Megatron-Core writes, and give the metadata its class."""
    name = "megatron.core.dist_checkpointing.strategies.torch"
    for k in range(1, name.count(".") + 2):
        part = ".".join(name.split(".")[:k])
        monkeypatch.setitem(sys.modules, part, ModuleType(part))
    kind = type("MCoreMetadata", (Metadata,), {"__module__": name})
    monkeypatch.setattr(sys.modules[name], "MCoreMetadata", kind, raising=False)
    metadata = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301 - written above
    metadata.__class__ = kind
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    torch.save({"iteration": 10}, folder / "common.pt")


@pytest.mark.parametrize("value", [0, -1, 1 << 62, 2.0, "2", None, [2]])
def test_absurd_sizes_are_refused(value: object, tmp_path: Path) -> None:
    write_megatron(tmp_path / "a")
    for file in (tmp_path / "a").glob("*/*.pt"):
        content = torch.load(file, weights_only=False)
        content["args"].tensor_model_parallel_size = value
        torch.save(content, file)
    refusal(tmp_path / "a", "convert.py")


@examples(60)
@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), kind=st.sampled_from(["megatron", "zero3"]))
def test_a_damaged_rank_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, place: float, byte: int, kind: str
) -> None:
    folder = tmp_path_factory.mktemp("run") / "a"
    if kind == "megatron":
        write_megatron(folder, num_layers=4)
    else:
        write_zero3(folder, 2)
    file = sorted(folder.rglob("*.pt"))[1]
    content = bytearray(file.read_bytes())
    content[int(place * len(content))] ^= byte
    file.write_bytes(content)
    try:
        for entry in Checkpoint(folder, 0).entries:
            entry.whole()
    except ToposcopeError as error:
        assert_refused(error, folder)


# DeepSpeed


@examples(30)
@given(n_ranks=st.integers(1, 5), groups=st.integers(1, 3), frozen=st.booleans(), prefix=st.sampled_from(["", "bf16_"]))
def test_ranks_of_zero3_are_merged(
    tmp_path_factory: pytest.TempPathFactory, n_ranks: int, groups: int, frozen: bool, prefix: str
) -> None:
    folder = tmp_path_factory.mktemp("run") / "global_step100"
    fixed = random_weights({"vision.weight": (3, 4)}, seed=1) if frozen else {}
    assert_holds(folder, write_zero3(folder, n_ranks, groups, fixed, prefix))


def test_zero3_inside_the_folder_of_a_trainer(tmp_path: Path) -> None:
    weights = write_zero3(tmp_path / "checkpoint-100" / "global_step100", 2)
    (tmp_path / "checkpoint-100" / "config.json").write_text("{}")
    (tmp_path / "checkpoint-100" / "latest").write_text("global_step100")
    assert series(tmp_path).steps == [100]
    assert_holds(tmp_path / "checkpoint-100", weights)


@pytest.mark.parametrize("kind", ["model_states", "optim_states"])
def test_a_missing_rank_of_zero3(kind: str, tmp_path: Path) -> None:
    write_zero3(tmp_path / "a", 3)
    (tmp_path / "a" / f"zero_pp_rank_2_mp_rank_00_{kind}.pt").unlink()
    refusal(tmp_path / "a", "ranks 2 of 3 are missing", kind="missing shard")


def test_counts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_zero3(tmp_path / "a", 2)
    file = tmp_path / "a" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    content = torch.load(file)
    content["optimizer_state_dict"]["fp32_flat_groups"] = [torch.zeros(100)]
    torch.save(content, file)
    refusal(tmp_path / "a", "100 numbers", "zero_to_fp32.py")


def test_one_rank_of_zero3_is_never_the_model(tmp_path: Path) -> None:
    write_zero3(tmp_path / "a", 2)
    file = tmp_path / "a" / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    refusal(file, "one rank of ZeRO-3")
    other = file.rename(tmp_path / "weights.pt")
    content = torch.load(other)
    del content["module"]["mask"]
    torch.save(content, other)
    refusal(other, "empty", "zero_to_fp32.py")


@pytest.mark.parametrize(
    "place", ["global_step100", "checkpoint-100/global_step100", "epoch=0-step=100.ckpt/checkpoint"]
)
def test_zero1_holds_the_whole_module(place: str, tmp_path: Path) -> None:
    weights = write_zero1(tmp_path / place)
    (tmp_path / place.partition("/")[0] / "latest").write_text("global_step100")
    assert_holds(tmp_path / place.partition("/")[0], weights)
    assert series(tmp_path).steps == [100]


def test_model_parallel_ranks_of_deepspeed_are_refused(tmp_path: Path) -> None:
    write_zero1(tmp_path / "a", 2)
    refusal(tmp_path / "a", "2 model-parallel ranks", "ds_to_universal.py")
    refusal(tmp_path / "a" / "mp_rank_00_model_states.pt", "model-parallel ranks")
    (tmp_path / "a" / "mp_rank_01_model_states.pt").unlink()
    refusal(tmp_path / "a", "model-parallel ranks")


def test_pipeline_layers_of_deepspeed(tmp_path: Path) -> None:
    weights: Weights = {}
    for k in (0, 2, 10):
        layer = random_weights({"attention.dense.weight": (4, 4), "bias": (4,)}, seed=k)
        torch.save(layer, tmp_path / f"layer_{k:02d}-model_00-model_states.pt")
        weights |= {f"{k}.{name}": tensor for name, tensor in layer.items()}
    torch.save({"module": None, "mp_world_size": 1, "global_steps": 5}, tmp_path / "mp_rank_00_model_states.pt")
    assert_holds(tmp_path, weights)
    refusal(tmp_path / "layer_02-model_00-model_states.pt", "one pipeline layer")
    torch.save(layer, tmp_path / "layer_02-model_01-model_states.pt")
    refusal(tmp_path, "2 tensor-parallel ranks", "convert_neox_to_hf.py")


# Llama as Meta saves it


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("by_rows", [True, False])
def test_ranks_of_llama_are_merged(count: int, by_rows: bool, tmp_path: Path) -> None:
    assert_holds(tmp_path / "a", write_llama(tmp_path / "a", count, by_rows=by_rows))


def test_ranks_of_llama_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_llama(tmp_path / "a", 4, by_rows=True)
    (tmp_path / "a" / "consolidated.03.pth").unlink()
    refusal(tmp_path / "a", "params.json contradicts", "convert_llama_weights_to_hf.py")
    (tmp_path / "a" / "consolidated.01.pth").unlink()
    refusal(tmp_path / "a", "consolidated.01.pth is missing", kind="missing shard")
    write_llama(tmp_path / "b", 2, by_rows=True)
    (tmp_path / "b" / "params.json").unlink()
    refusal(tmp_path / "b", "no params.json", "convert_llama_weights_to_hf.py")


# Parts that cannot be merged


@pytest.mark.parametrize(
    "name",
    [
        "_flat_param",
        "_fsdp_wrapped_module._flat_param",
        "h.0._fsdp_wrapped_module.flat_param",
        "_fpw_module.flat_param_0",
    ],
)
def test_flat_parameters_are_refused(name: str, tmp_path: Path) -> None:
    torch.save({"model": {name: torch.zeros(50), "norm.weight": torch.ones(3)}}, tmp_path / "step_10.pt")
    refusal(tmp_path / "step_10.pt", "flat parameters of FSDP", "FULL_STATE_DICT")
    save_file({name: torch.zeros(50)}, tmp_path / "step_10.safetensors")
    refusal(tmp_path / "step_10.safetensors", "flat parameters of FSDP")


@pytest.mark.parametrize(
    "names",
    [
        ["model_rank0.pt", "model_rank1.pt"],
        ["rank_0.pt", "rank_1.pt", "rank_2.pt"],
        ["reshard-model_part-0.pt", "reshard-model_part-1.pt"],
        ["checkpoint_last-shard0.pt", "checkpoint_last-shard1.pt"],
        ["hf_model_0001_0.pt", "hf_model_0002_0.pt"],
    ],
)
def test_files_of_ranks_are_refused(names: list[str], tmp_path: Path) -> None:
    for name in [*names, "optimizer_rank0.pt"]:
        torch.save(family_weights(), tmp_path / name)
    assert sorted(parts_of(names)) == names
    with refused(tmp_path, str(len(names)), names[0]):
        _ = series(tmp_path)[0].entries


def test_ranks_of_several_steps_are_refused(tmp_path: Path) -> None:
    for step in (100, 200):
        for rank in (0, 1):
            torch.save(family_weights(), tmp_path / f"step_{step}_rank{rank}.pt")
    with refused(tmp_path, "step_100_rank0.pt", "ranks or parts"):
        series(tmp_path)


# Pointers of Git LFS

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 327657928\n"


@pytest.mark.parametrize("name", ["model.safetensors", "ckpt.pt", "pytorch_model.bin", "m.ckpt", "w.pkl"])
def test_a_pointer_is_called_that(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(POINTER)
    for place in (tmp_path / name, tmp_path):
        with refused(tmp_path, "Git LFS pointer", "327,657,928 bytes", "git lfs pull"):
            _ = series(place)[0].entries


def test_a_pointer_among_shards(tmp_path: Path) -> None:
    save_file(family_weights(), tmp_path / "model-00001-of-00002.safetensors")
    (tmp_path / "model-00002-of-00002.safetensors").write_text(POINTER)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00002-of-00002.safetensors"}}')
    refusal(tmp_path, "Git LFS pointer", "00002-of-00002")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_pointer_in_place_of_text(name: str, tmp_path: Path) -> None:
    # Only where no head is stored does the configuration say whether it is tied.
    weights = {name: tensor for name, tensor in family_weights().items() if name != "head.weight"}
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / name).write_text(POINTER)
    with refused(tmp_path / name, "Git LFS pointer"):
        series(tmp_path)[0].layers()


def test_no_two_formats_claim_the_same_files(tmp_path: Path) -> None:
    from toposcope.checkpoints.formats import _formats

    write_megatron(tmp_path / "a", tensor=1)
    write_megatron(tmp_path / "b", pipeline=2)
    write_zero3(tmp_path / "c", 1)
    write_zero1(tmp_path / "d")
    write_llama(tmp_path / "e", 1, by_rows=True)
    write_llama(tmp_path / "f", 2, by_rows=True)
    for folder in sorted(tmp_path.iterdir()):
        names = [str(file.relative_to(folder)) for file in folder.rglob("*.*")]
        assert is_checkpoint(names)
        assert sum(format.claims(names) for format in _formats()) == 1, folder
