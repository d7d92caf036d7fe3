"""What lies in a pickled file: objects of any class, whole modules, arrays, several models, series, steps."""

import argparse
import collections
import dataclasses
import datetime
import enum
import functools
import pickle
import random
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import OPTIMIZER, Weights, random_weights, refused
from stored_tensors import assert_holds, saved
from torch import nn

from toposcope.checkpoints import Checkpoint, series
from toposcope.checkpoints.formats.torch_file import open_file
from toposcope.checkpoints.sources import LocalSource
from toposcope.errors import ToposcopeError

WEIGHTS = random_weights({"embed.weight": (5, 4), "layers.0.fc.weight": (4, 4), "layers.0.fc.bias": (4,)})
OTHER = random_weights({"conv.weight": (3, 2), "conv.bias": (3,)}, seed=1)


def pickled(path: Path, content: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def content_of(path: Path) -> Any:
    (file,) = LocalSource(path).files().values()
    return open_file(file).content


def read(path: Path, *key: str | int) -> dict[str, np.ndarray]:
    return {entry.name: entry.whole() for entry in Checkpoint(path, 0, key=key).entries}


# Objects of any class


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class TrainingConfig:
    lr: float = 0.1
    path: Path = Path("x")


class Slotted:
    __slots__ = ("width",)

    def __init__(self) -> None:
        self.width = 3


class Point(NamedTuple):
    x: int
    y: int


class Items(dict[str, int]):
    pass


def function_of_a_script(width: int) -> None: ...


OBJECTS: list[Any] = [
    *(TrainingConfig(), types.SimpleNamespace(a=1), Colour.RED, functools.partial(function_of_a_script, 1)),
    *(Point(1, 2), Slotted(), Items(a=1), function_of_a_script, TrainingConfig, ValueError("x")),
    *(argparse.Namespace(path=Path("x")), np.float32(2), np.random.default_rng(0), np.arange(3)),
    *(np.array([{}, None], dtype=object), np.random.get_state(), torch.get_rng_state()),  # noqa: NPY002
    *(collections.Counter("aab"), collections.defaultdict(list, a=[1]), collections.deque([1]), {1, 2}, frozenset("a")),
    *(datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC), slice(1, 2), 1j, b"x" * 300, random.getstate()),
    *({(1, "a"): 2, (0.1, 0.01): 3, 2**63: 4}, {nn.Parameter(torch.ones(2, 3, 4, 5)): 5}),
    *(torch.device("cpu"), torch.bfloat16, torch.strided, torch.Size([2, 3]), torch.__version__),
    torch.optim.lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))]), 1),
]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_objects_of_other_classes_are_left_unread(protocol: int, zipped: bool, tmp_path: Path) -> None:
    content = {"model": WEIGHTS, "config": dict(enumerate(OBJECTS)), "list": OBJECTS}
    path = saved(tmp_path / "a.pt", content, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    assert_holds(Checkpoint(path, 0), WEIGHTS)


def test_the_classes_left_unread_are_named(tmp_path: Path) -> None:
    named = f"objects of other classes left unread: {__name__}.TrainingConfig"
    for config, expected in ((TrainingConfig(), [named]), ({"a": 1}, [])):
        (checkpoint,) = series(saved(tmp_path / "a.pt", {"model": WEIGHTS, "config": config}))
        assert [note for note in checkpoint.notes if "objects of other classes" in note] == expected


def test_the_state_of_an_object_can_be_read(tmp_path: Path) -> None:
    args = argparse.Namespace(tensor_model_parallel_size=2, names=["a"])
    for protocol in (2, 4):
        path = saved(tmp_path / "a.pt", {"args": args, "slots": Slotted(), "d": Items(a=1)}, pickle_protocol=protocol)
        content = content_of(path)
        assert content["args"].state == {"tensor_model_parallel_size": 2, "names": ["a"]}
        assert content["slots"].state["width"] == 3
        assert content["slots"].name.endswith("Slotted")
        assert content["d"] == content["d"]
        assert dict(content["d"]) == {"a": 1}


class Packed(torch.Tensor):
    """A tensor of another class, as torchao's are: its numbers lie in attributes."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> "Packed":
        return torch.Tensor._make_wrapper_subclass(cls, (numbers.shape[0], 2 * numbers.shape[1]))

    def __init__(self, numbers: torch.Tensor) -> None:
        self.numbers = numbers

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return args[0]


class Holder:
    def __init__(self) -> None:
        self.inner = {"a": torch.ones(7), "b": [torch.ones(2, 2)]}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("value", "numbers", "kind"),
    [
        (Packed(torch.ones(4, 3, dtype=torch.int8)), 24, "Packed"),
        (torch.quantize_per_tensor(torch.ones(5, 2), 0.1, 0, torch.qint8), 10, "quantised tensor"),
        (torch.eye(3).to_sparse(), 9, "sparse tensor"),
        (torch.ones(2, 2, device="meta"), 4, "meta tensor"),
        (torch.ones(6, dtype=torch.complex64).conj(), 6, "conjugate"),
        (Holder(), 11, "Holder"),
    ],
)
def test_values_that_are_no_plain_tensors_are_counted(value: Any, numbers: int, kind: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {"model": {**WEIGHTS, "odd": value}})
    (checkpoint,) = series(path)
    assert_holds(checkpoint, WEIGHTS)
    assert checkpoint.weights.coverage().total == sum(tensor.numel() for tensor in WEIGHTS.values()) + numbers
    assert kind in checkpoint.notes[0]
    if getattr(value, "ndim", 0) > 1 and kind != "sparse tensor":
        with refused(path, "odd", kind, "model.dequantize()"):
            checkpoint.analysed()
    with refused(saved(tmp_path / "b.pt", {"model": {"odd\x0b": value}}), "not plain numbers", "odd", kind):
        Checkpoint(tmp_path / "b.pt", 0).layers()


# Whole modules


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 4)) for _ in range(2)])
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.register_buffer("mask", torch.ones(2, 2), persistent=False)
        self.register_buffer("kept", torch.ones(2, 2))
        self.register_parameter("none", None)
        self.tied = self.head
        self.step = 7


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_whole_module_is_its_state(zipped: bool, protocol: int, tmp_path: Path) -> None:
    net = Net()
    for content in (net, {"model": net, "epoch": 3}, {"net": net, "optimizer": OPTIMIZER}):
        path = saved(tmp_path / "a.pt", content, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
        (checkpoint,) = series(path)
        assert_holds(checkpoint, net.state_dict())
        assert f"a whole module was saved ({__name__}.Net)" in " ".join(checkpoint.notes)
    assert_holds(series(saved(tmp_path / "b.pt", nn.DataParallel(net)))[0], net.state_dict())
    itself = nn.Sequential(nn.Linear(2, 2))
    itself._modules["own"] = itself
    assert sorted(read(saved(tmp_path / "c.pt", itself))) == ["0.bias", "0.weight"]


# Arrays


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


M, V = ones(3, 2), ones(3)
NESTED: dict[str, tuple[Any, str]] = {
    "Flax": ({"params": {"A": {"kernel": M, "bias": V}, "B": {"kernel": M}}}, "A.bias A.kernel B.kernel"),
    "Flax with its state": (
        {"step": 3, "params": {"params": {"A": {"kernel": M}}}, "opt_state": [{"m": M}]},
        "A.kernel",
    ),
    "Flax without a key": ({"model": {"A": {"kernel": M}}, "head": {"kernel": M}}, "head.kernel model.A.kernel"),
    "Haiku": ({"mlp/~/a": {"w": M, "b": V}, "mlp/~/b": {"w": M}}, "mlp.~.a.b mlp.~.a.w mlp.~.b.w"),
    "lists": ({"weights": [M, M], "biases": [V, V], "epoch": 3}, "biases.0 biases.1 weights.0 weights.1"),
    "a list": ([M, V, M], "0 1 2"),
    "a list of layers": ([{"W": M, "b": V}, {"W": M, "b": V}], "0.W 0.b 1.W 1.b"),
    "layers": ({"layers": [{"W": M, "b": V}, {"W": M, "b": V}]}, "layers.0.W layers.0.b layers.1.W layers.1.b"),
}


@pytest.mark.parametrize("what", NESTED)
def test_nested_parameters(what: str, tmp_path: Path) -> None:
    content, names = NESTED[what]
    found = read(saved(tmp_path / "params.pkl", content))
    assert " ".join(sorted(found)) == names
    assert {array.shape for array in found.values()} <= {M.shape, V.shape}


@pytest.mark.parametrize("made", [list, tuple, lambda tensors: [nn.Parameter(tensor) for tensor in tensors]])
def test_lists_of_tensors_are_named_by_number(made: Any, tmp_path: Path) -> None:
    found = read(saved(tmp_path / "params.pkl", made(WEIGHTS.values())))
    assert list(found) == ["0", "1", "2"]
    for array, tensor in zip(found.values(), WEIGHTS.values(), strict=True):
        assert np.array_equal(array, tensor.numpy())


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("name", ["a.pkl", "a.pickle", "a.pt"])
@pytest.mark.parametrize("content", [WEIGHTS, {"W": np.ones((40, 30))}, [1]])
def test_a_pickle_that_torch_did_not_write_is_refused(content: Any, name: str, protocol: int, tmp_path: Path) -> None:
    path = pickled(tmp_path / name, content, protocol)
    with refused(path, "a pickle that torch.save did not write", "numpy.savez", "torch.save"):
        Checkpoint(path, 0).layers()


def test_arrays_in_a_torch_file_are_named_and_not_read(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {"model": {"W": np.ones((40, 30)), "b": np.ones(30)}})
    with refused(path, "W (array of NumPy)", "torch.from_numpy()"):
        Checkpoint(path, 0).layers()
    (checkpoint,) = series(saved(tmp_path / "b.pt", {"model": WEIGHTS | {"W": np.ones((40, 30))}}))
    assert_holds(checkpoint, WEIGHTS)
    assert "W (array of NumPy)" in checkpoint.notes[0]


# Several models


def test_the_others_are_named_and_can_be_chosen(tmp_path: Path) -> None:
    content = {"model": WEIGHTS, "ema": {"shadow": OTHER, "decay": 0.9}, "optimizer": OPTIMIZER, "opt_g": OPTIMIZER}
    path = saved(tmp_path / "step_5.pt", {**content, "discriminator": nn.Linear(3, 2), "rng": [torch.ones(2, 2)]})
    (checkpoint,) = series(path)
    assert_holds(checkpoint, WEIGHTS)
    assert checkpoint.notes[0].startswith("also holds ema, discriminator; to read one, add its key")
    (ema,) = series(f"{path}:ema")
    assert_holds(ema, OTHER)
    assert (ema.location, ema.key, ema.step) == (f"{path}:ema", ("ema",), 5)
    assert repr(ema) == f"Checkpoint('{path}:ema', step=5)"
    assert series(ema.location)[0] == ema
    assert pickle.loads(pickle.dumps(ema)) == ema  # noqa: S301 - our own bytes
    assert sorted(e.name for e in series(f"{path}:discriminator")[0].entries) == ["bias", "weight"]
    assert_holds(series(f"file://{path}:ema")[0], OTHER)
    assert ema.content_hash() != checkpoint.content_hash()


def test_one_key_for_a_folder(tmp_path: Path) -> None:
    for step in (1, 2):
        saved(tmp_path / f"step_{step}.pt", {"state": {"model": WEIGHTS, "ema_model": OTHER}})
    for key in ("state.ema_model", "state"):
        found = series(f"{tmp_path}/:{key}")
        assert found.steps == [1, 2]
        assert found.spec == f"{tmp_path}:{key}"
        assert_holds(found[1], OTHER if "ema" in key else WEIGHTS)
    with refused(tmp_path / "step_1.pt", "no key 'ema'", "Choose from model, ema_model"):
        series(f"{tmp_path}:state.ema")[0].layers()


def test_a_key_that_is_not_there(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {"model": WEIGHTS, "ema": OTHER})
    with refused(path, "no key 'emma'", "did you mean 'ema'? Choose from model, ema"):
        series(f"{path}:emma")
    with pytest.raises(ToposcopeError, match="no such file"):
        series(f"{tmp_path}/gone.pt:ema")
    save_file(WEIGHTS, tmp_path / "a.safetensors")
    with refused(tmp_path / "a.safetensors", "holds one model", "leave out :ema"):
        series(f"{tmp_path}/a.safetensors:ema")
    saved(tmp_path / "a.pt:b.pt", OTHER)
    assert_holds(series(f"{path}:b.pt")[0], OTHER)


@pytest.mark.parametrize(
    "names", [("generator", "discriminator"), ("encoder", "decoder"), ("net_a", "net_b"), ("actor", "critic")]
)
@pytest.mark.parametrize("inner", ["", "state_dict"])
def test_several_without_a_usual_name_are_refused(names: tuple[str, str], inner: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", dict.fromkeys(names, {inner: WEIGHTS} if inner else WEIGHTS) | {"epoch": 1})
    with refused(path, "2 models", names[0], names[1], f"{path}:{names[0]}") as _:
        Checkpoint(path, 0).layers()
    assert_holds(series(f"{path}:{names[1]}")[0], WEIGHTS)


@pytest.mark.parametrize(
    ("content", "weights"),
    [
        ({"net": {"encoder.w": torch.ones(2, 2)}, "acc": 0.5}, {"encoder.w": torch.ones(2, 2)}),
        ({"a": {"b": {"state_dict": WEIGHTS}}}, WEIGHTS),
        ({"state": {"lr": torch.tensor(1.0)}, "net": WEIGHTS}, WEIGHTS),
        ({"confusion": torch.ones(4, 4), "net": WEIGHTS}, WEIGHTS),
        ({"weights": WEIGHTS}, WEIGHTS),
        (
            {"model": {"language_model": {"encoder": WEIGHTS}}},
            {f"language_model.encoder.{k}": W for k, W in WEIGHTS.items()},
        ),
        ({"epoch": 3, "loss": torch.tensor(1.5), "optimizer": {"a": torch.ones(2, 2)}, "model_ema": WEIGHTS}, WEIGHTS),
        ({"state_dict": WEIGHTS, "state_dict_ema": WEIGHTS, "opt_state": {"m": torch.ones(2, 2)}}, WEIGHTS),
        ({**WEIGHTS, "head": {"weight": torch.ones(2, 2)}}, WEIGHTS | {"head.weight": torch.ones(2, 2)}),
    ],
)
def test_where_the_one_model_is(content: Any, weights: Weights, tmp_path: Path) -> None:
    assert_holds(series(saved(tmp_path / "a.pt", content))[0], weights)


@pytest.mark.parametrize("key", ["model", "state_dict", "net"])
def test_matrices_next_to_the_model_are_named_and_counted(key: str, tmp_path: Path) -> None:
    (checkpoint,) = series(saved(tmp_path / "a.pt", {key: WEIGHTS, "gate": torch.ones(20, 4), "loss": torch.ones(3)}))
    assert_holds(checkpoint, WEIGHTS)
    assert checkpoint.notes[0] == "next to the model, left unread: gate"
    assert checkpoint.weights.coverage().total == sum(tensor.numel() for tensor in WEIGHTS.values()) + 80


def test_the_params_of_haiku_are_the_model(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"params/mlp/w": np.ones((3, 2)), "state/bn/mean": np.ones((1, 2))}
    np.savez(tmp_path / "a.npz", **arrays)
    assert list(read(tmp_path / "a.npz")) == ["mlp.w"]


def test_a_model_and_its_optimizer_in_a_tuple(tmp_path: Path) -> None:
    assert_holds(series(saved(tmp_path / "a.pt", (WEIGHTS, OPTIMIZER)))[0], WEIGHTS)
    with refused(saved(tmp_path / "a.pt", [WEIGHTS, OTHER]), "2 models", ":0"):
        Checkpoint(tmp_path / "a.pt", 0).layers()
    with refused(saved(tmp_path / "b.pt", OPTIMIZER), "state of an optimizer"):
        Checkpoint(tmp_path / "b.pt", 0).layers()


# Hostile files


def test_dictionaries_in_many_places_do_not_take_forever(tmp_path: Path) -> None:
    for leaf in ({"w": torch.ones(2, 2)}, {"step": 3}, {"w.x": torch.ones(2, 2)}):
        content: Any = leaf
        for _ in range(60):
            content = {"a": content, "b": content, "model": content}
        with refused(saved(tmp_path / "b.pt", content)):
            Checkpoint(tmp_path / "b.pt", 0).layers()
        assert series(tmp_path / "b.pt").steps == [0]
    looped: dict[str, Any] = {"w.x": torch.ones(2, 2)}
    looped["model"] = looped["ema"] = looped
    assert series(saved(tmp_path / "a.pt", looped)).steps == [0]
