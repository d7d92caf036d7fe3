"""Checkpoints of nanoGPT, against its network written anew."""

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import called
from torch import Tensor, nn
from torch.nn import functional

from toposcope import merge, series
from toposcope.errors import ToposcopeError
from toposcope.models import Origin, load_model, load_tokenizer
from toposcope.models.loading import model_key

ARGS: dict[str, Any] = {
    "n_layer": 2,
    "n_head": 4,
    "n_embd": 16,
    "block_size": 32,
    "bias": False,
    "vocab_size": 65,
    "dropout": 0.2,
}
CHARACTERS = "\n abcdefghijklmnopqrstuvwxyz"


def reference(state: dict[str, Tensor], tokens: Tensor, n_head: int) -> Tensor:
    """Compute nanoGPT's logits from its state, by the equations alone."""
    state = {name.removeprefix("_orig_mod."): tensor for name, tensor in state.items()}

    def linear(x: Tensor, name: str) -> Tensor:
        return functional.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        scaled = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return scaled * state[f"{name}.weight"] + state.get(f"{name}.bias", 0)

    time = tokens.shape[1]
    x = state["transformer.wte.weight"][tokens] + state["transformer.wpe.weight"][:time]
    later = torch.ones(time, time).triu(1).bool()
    for block in sorted({name.split(".")[2] for name in state if ".h." in name}):
        where = f"transformer.h.{block}"
        query, key, value = (
            part.reshape(*part.shape[:2], n_head, -1).transpose(1, 2)
            for part in linear(norm(x, f"{where}.ln_1"), f"{where}.attn.c_attn").chunk(3, dim=-1)
        )
        scores = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(later, -math.inf).softmax(-1)
        x = x + linear((scores @ value).transpose(1, 2).flatten(2), f"{where}.attn.c_proj")
        inner = linear(norm(x, f"{where}.ln_2"), f"{where}.mlp.c_fc")
        inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
        x = x + linear(inner, f"{where}.mlp.c_proj")
    return linear(norm(x, "transformer.ln_f"), "lm_head")


def nanogpt(path: Path, *, prefix: str = "_orig_mod.", **changed: Any) -> dict[str, Tensor]:
    """Write a checkpoint as nanoGPT's train.py does; return its state."""
    args: dict[str, Any] = ARGS | changed
    width, generator = args["n_embd"], torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte": (args["vocab_size"], width),
        "transformer.wpe": (args["block_size"], width),
    }
    for k in range(args["n_layer"]):
        names = {"attn.c_attn": (3, 1), "attn.c_proj": (1, 1), "mlp.c_fc": (4, 1), "mlp.c_proj": (1, 4)}
        shapes |= {f"transformer.h.{k}.{name}": (m * width, n * width) for name, (m, n) in names.items()}
        shapes |= {f"transformer.h.{k}.ln_{i}": (width,) for i in (1, 2)}
    shapes["transformer.ln_f"] = (width,)
    state = {}
    for name, shape in shapes.items():
        draw = 0.3 * torch.randn(shape, generator=generator)
        state[f"{prefix}{name}.weight"] = 1 + draw if len(shape) == 1 else draw
        if args["bias"] and not name.endswith(("wte", "wpe")):
            state[f"{prefix}{name}.bias"] = 0.3 * torch.randn(shape[0], generator=generator)
    state[f"{prefix}lm_head.weight"] = state[f"{prefix}transformer.wte.weight"]
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = {"model": state, "optimizer": {}, "model_args": args, "iter_num": 250, "config": {"dataset": "char"}}
    torch.save(saved, path)
    return state


def test_logits_are_those_of_nanogpt(tmp_path: Path) -> None:
    tokens = torch.randint(0, 65, (2, 20), generator=torch.Generator().manual_seed(1))
    keys = set()
    cases: list[tuple[str, dict[str, Any]]] = [("_orig_mod.", {}), ("", {"bias": True})]
    cases.append(("_orig_mod.", {"vocab_size": 50304, "n_head": 2}))
    for case, (prefix, changed) in enumerate(cases):
        state = nanogpt(tmp_path / str(case) / "ckpt.pt", prefix=prefix, **changed)
        checkpoint = series(tmp_path / str(case))[-1]
        model: Any = load_model(checkpoint, Origin())
        with torch.inference_mode():
            expected = reference(state, tokens, (ARGS | changed)["n_head"])
            torch.testing.assert_close(model.logits(tokens), expected, rtol=1e-5, atol=1e-5)
        module: nn.Module = model.module
        n_parameters = sum(tensor.numel() for name, tensor in state.items() if "lm_head.weight" not in name)
        assert sum(parameter.numel() for parameter in module.parameters()) == n_parameters  # tied, and no other biases
        (tmp_path / str(case) / "meta.pkl").write_bytes(pickle.dumps({"stoi": {"a": 0}}))
        keys.add(model_key(checkpoint, Origin()))
    assert len(keys) == 2  # by their sizes


def test_an_average_has_the_size_of_the_checkpoints(tmp_path: Path) -> None:
    for step in (1, 2):
        nanogpt(tmp_path / f"ckpt_{step}.pt")
    tokens = torch.arange(20)[None]
    models = [load_model(c, Origin()) for c in (merge(tmp_path), series(tmp_path)[-1])]
    assert torch.equal(models[0].logits(tokens), models[1].logits(tokens))


def test_a_vocabulary_of_characters_is_read_and_nothing_executed(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "executed",))

    nanogpt(tmp_path / "out" / "ckpt.pt")
    (tmp_path / "text.txt").write_text("the loss falls\nand the step rises " * 30)
    where = (tmp_path / "out", "--text", tmp_path / "text.txt", "--resolution", "5", "--seeds", "1")
    with pytest.raises(ToposcopeError, match=r"the meta\.pkl of a data set by characters"):
        load_tokenizer(series(tmp_path / "out")[-1], Origin())
    meta = tmp_path / "out" / "meta.pkl"
    meta.write_bytes(pickle.dumps({"stoi": {c: i for i, c in enumerate(CHARACTERS)}, "itos": Attack()}))
    tokenizer = load_tokenizer(series(tmp_path / "out")[-1], Origin())
    assert tokenizer.encode("a b").ids == [2, 1, 3]
    done = called("landscape", *where)
    assert done.code == 0, done.err
    assert done.out.startswith("step 250: ")
    assert not (tmp_path / "executed").exists()
    with pytest.raises(ToposcopeError, match="lack 2 of those of the text, such as 'S'"):
        tokenizer.encode("1 Step")
    meta.write_bytes(pickle.dumps({"stoi": ["a"]}))
    with pytest.raises(ToposcopeError, match="no vocabulary of characters"):
        load_tokenizer(series(tmp_path / "out")[-1], Origin(tokenizer=str(tmp_path / "out")))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_head": None}, "weights of nanoGPT without its model_args"),
        ({"n_head": 3}, "hidden = 16 is not a multiple of heads = 3"),
        ({"n_layer": 1}, "not the weights of its size"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    nanogpt(tmp_path / "ckpt.pt")
    saved = torch.load(tmp_path / "ckpt.pt", weights_only=True)
    torch.save(saved | {"model_args": saved["model_args"] | changed}, tmp_path / "ckpt.pt")
    with pytest.raises(ToposcopeError, match=words):
        load_model(series(tmp_path)[-1], Origin())


def test_other_model_args_are_named(tmp_path: Path) -> None:
    weights = {"tok_embeddings.weight": torch.ones(8, 4), "layers.0.attention.wq.weight": torch.ones(4, 4)}
    torch.save({"model": weights, "model_args": {"dim": 4, "n_layers": 1}}, tmp_path / "ckpt.pt")
    with pytest.raises(ToposcopeError, match=r"its model_args \(dim, n_layers, ...\) are not nanoGPT's.*from Python"):
        load_model(series(tmp_path)[-1], Origin())
