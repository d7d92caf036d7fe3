"""The loss as a function of the weights: sums over tokens, whatever the batches; its Hessian by double backward."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from function_loss import as_loss
from once_differentiable import cube
from small_models import SIZE, characters, family_model, save, some_lines
from tiny_models import CONTEXT, byte_tokenizer, made, opened, saved
from torch import Tensor, nn
from torch.nn import functional

from toposcope.checkpoints import Layer
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.errors import ToposcopeError
from toposcope.family.model import build
from toposcope.models import Origin, TokenSequence, load_model, token_losses
from toposcope.models import summed_loss as module
from toposcope.models.family_model import FamilyModel
from toposcope.models.hessian_products import HessianProduct
from toposcope.models.summed_loss import Block, text_loss
from toposcope.models.texts import passage
from toposcope.models.tokenizers import CharacterTokenizer
from toposcope.probes.needs import RunContext, needs
from toposcope.probes.needs.inputs import _other_names

CPU = torch.device("cpu")
LENGTHS = (30, 30, 30, 17, 17, 5, 2)
FLOAT64 = torch.float64


def sequences(vocabulary: int = 128) -> list[TokenSequence]:
    rng = np.random.default_rng(0)
    return [TokenSequence(tuple(map(int, rng.integers(0, vocabulary, n))), 2 if n == 5 else 0) for n in LENGTHS]


def of_family() -> Any:
    return FamilyModel(build(SIZE, seed=3).double(), "family", CPU)


def of_transformers() -> Any:
    pytest.importorskip("transformers")
    from toposcope.models.transformers_model import TransformersModel

    return TransformersModel(made("gpt_neox", dtype=FLOAT64, attention_dropout=0.5, hidden_dropout=0.5), "neox", CPU)


every_model = pytest.mark.parametrize("make", [of_family, of_transformers])


def plain_loss(model: Any, read: list[TokenSequence]) -> Tensor:
    """The mean over tokens, one sequence at a time, through the model's own parameters."""
    losses = []
    for sequence in read:
        logits = model.logits(torch.tensor([sequence.ids]))[0, :-1]
        each = functional.cross_entropy(logits, torch.tensor(sequence.ids[1:]), reduction="none")
        losses.append(each[max(0, sequence.n_prefix - 1) :])
    return torch.cat(losses).mean()


@every_model
def test_unequal_batches_and_token_counts_are_exact(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = make(), sequences()
    model.module.train()  # what is made of it drops nothing out all the same
    monkeypatch.setattr(module, "PIECE_BYTES", 1)
    alone = text_loss(model, read, FLOAT64)
    monkeypatch.setattr(module, "PIECE_BYTES", 1 << 40)
    together = text_loss(model, read, FLOAT64)
    assert [len(piece) for piece in together.pieces] == [3, 2, 1, 1]
    assert [len(piece) for piece in alone.pieces] == [1] * len(read)
    model.module.eval()
    expected = plain_loss(model, read)
    expected.backward()  # type: ignore[no-untyped-call]
    gradient = torch.cat([p.grad.flatten() for p in model.module.parameters()])
    for loss in (alone, together):
        assert loss.n_tokens == sum(LENGTHS) - len(LENGTHS) - 1
        assert loss.value(loss.point) == pytest.approx(expected.item(), rel=1e-12, abs=0)
        value, found = loss.gradient(loss.point)
        assert value == pytest.approx(expected.item(), rel=1e-12, abs=0)
        torch.testing.assert_close(found, gradient, rtol=0, atol=1e-12)
    losses = token_losses(model, read)
    assert together.value(together.point) == pytest.approx(losses.total / losses.n_tokens, rel=1e-12, abs=0)


@every_model
def test_a_hessian_product_is_that_of_the_whole_text(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = make(), sequences()
    monkeypatch.setattr(module, "PIECE_BYTES", 1 << 20)
    loss = text_loss(model, read, FLOAT64)
    vector = torch.from_numpy(np.random.default_rng(1).normal(size=len(loss.point)))
    product = HessianProduct(loss, loss.point)
    found = product(vector)
    assert product.method == "double backward"
    torch.testing.assert_close(found, product(vector), rtol=0, atol=0)
    monkeypatch.setattr("toposcope.models.hessian_products.RETAINED_BYTES", 0)
    torch.testing.assert_close(HessianProduct(loss, loss.point)(vector), found, rtol=0, atol=0)
    ahead, behind = (loss.gradient(loss.point + sign * 2e-6 * vector)[1] for sign in (1, -1))
    difference = (ahead - behind) / 4e-6
    assert float((found - difference).norm() / found.norm()) < 1e-5
    # symmetric, and each block is that of the whole
    other = torch.from_numpy(np.random.default_rng(2).normal(size=len(loss.point)))
    assert float(other @ found) == pytest.approx(float(vector @ product(other)), rel=1e-10)
    for name, block in list(loss.blocks.items())[:4]:
        padded = torch.zeros_like(vector)
        padded[block.start : block.stop] = vector[block.start : block.stop]
        own = product.of_block(name)(vector[block.start : block.stop])
        torch.testing.assert_close(own, product(padded)[block.start : block.stop], rtol=0, atol=1e-13)


def test_some_sequences_are_a_loss_of_their_own() -> None:
    model, read = of_family(), sequences()
    loss = text_loss(model, read, FLOAT64)
    some = loss.on([5, 0, 3])
    chosen = [read[5], read[0], read[3]]
    assert some.n_tokens == 29 + 16 + 3
    assert some.value(loss.point) == pytest.approx(plain_loss(model, chosen).item(), rel=1e-12, abs=0)
    twice = loss.on([5, 0, 0])
    assert twice.value(loss.point) == pytest.approx(plain_loss(model, [read[5], read[0], read[0]]).item(), rel=1e-12)
    with pytest.raises(ToposcopeError, match="no sequences"):
        loss.on([])


def test_a_tied_head_counts_once(tmp_path: Any) -> None:
    checkpoint = save(family_model(), tmp_path)
    loss = text_loss(load_model(checkpoint, Origin()), sequences(), FLOAT64)
    assert len(loss.point) == sum(p.numel() for p in family_model().parameters())
    assert "head.weight" not in loss.blocks
    assert loss.block("head.weight") == loss.block("token_emb.weight") == Block(0, 128 * 24, (128, 24))
    # the gradient is that through both uses
    model = FamilyModel(family_model(), "family", CPU)
    plain_loss(model, sequences()).backward()  # type: ignore[no-untyped-call]
    expected = model.module.token_emb.weight.grad
    assert expected is not None
    torch.testing.assert_close(loss.gradient(loss.point)[1][: 128 * 24], expected.flatten(), rtol=0, atol=1e-12)


def test_the_vector_of_a_padding_token_has_a_derivative() -> None:
    """PyTorch gives it none, though the loss depends on it where the text holds the token, as a beginning say."""
    pytest.importorskip("transformers")
    from toposcope.models.transformers_model import TransformersModel

    model = TransformersModel(made("llama", dtype=FLOAT64, pad_token_id=0), "llama", CPU)
    assert model.module.get_input_embeddings().padding_idx == 0
    loss = text_loss(model, [TokenSequence((0, 5, 6, 7), 0), TokenSequence((0, 9, 4), 0)], FLOAT64)
    row = slice(loss.block("model.embed_tokens.weight").start, loss.block("model.embed_tokens.weight").start + 16)
    direction = torch.zeros_like(loss.point)
    direction[row] = 1.0
    after, before = (loss.value(loss.point + sign * 1e-3 * direction) for sign in (1, -1))
    slope = float(loss.gradient(loss.point)[1] @ direction)
    assert abs(slope) > 1e-5
    assert slope == pytest.approx((after - before) / 2e-3, rel=1e-2)
    assert model.module.get_input_embeddings().padding_idx == 0  # the model itself is left as it is


def test_the_need_reads_the_text_as_language_modelling_does(tmp_path: Any) -> None:
    model, text = family_model(dtype=torch.float32), some_lines()
    checkpoint = save(model, tmp_path)
    provide = needs()["text_loss"].provide
    load = provide(checkpoint, RunContext(Origin(), lambda: text, "key"))
    windows = passage(text, CharacterTokenizer(), 32).sequences
    everything = load(10**6, 32)
    losses = token_losses(FamilyModel(model, "family", CPU), windows)
    assert everything.n_tokens == losses.n_tokens == len(characters(text)) - 1
    assert everything.value(everything.point) == pytest.approx(losses.total / losses.n_tokens, rel=1e-5)
    some = load(4, 10**6, dtype=FLOAT64)
    assert some.point.dtype == FLOAT64
    assert len(some.counts) == 4
    assert needs()["text_loss"].reads_text


def test_a_model_of_transformers_has_the_names_of_its_checkpoint(tmp_path: Any) -> None:
    pytest.importorskip("transformers")
    saved(tmp_path)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    checkpoint, origin = opened(tmp_path)
    loss = needs()["text_loss"].provide(checkpoint, RunContext(origin, some_lines, "key"))(3, CONTEXT)
    assert loss.point.dtype == torch.float32
    for layer in checkpoint.analysed():
        block = loss.block(layer.name)
        torch.testing.assert_close(
            loss.point[block.start : block.stop].view(block.shape), torch.from_numpy(layer.read())
        )
    with pytest.raises(ToposcopeError, match="no parameter nothing"):
        loss.block("nothing")


def test_renamed_layers_of_equal_weights_are_told_apart_by_the_ends_of_their_names() -> None:
    blocks = {f"model.h.{k}.{part}": Block(4 * k + 8 * i, 4 * k + 8 * i + 4, (2, 2))
              for i, part in enumerate(("up", "down")) for k in range(2)}  # fmt: skip
    loss = as_loss(lambda w: w.sum(), torch.zeros(16), blocks)

    def names_of(*layers: str) -> dict[str, str]:
        made = [Layer(name, "other", False, "memory", in_memory(name, torch.zeros(2, 2))) for name in layers]
        return _other_names(SimpleNamespace(analysed=lambda: made), loss)  # type: ignore[arg-type]

    assert names_of("h.0.up", "h.1.up", "h.1.down") == {n: f"model.{n}" for n in ("h.0.up", "h.1.up", "h.1.down")}
    assert names_of("other") == {}  # no name is better than the wrong one


def test_filters_are_the_incoming_weights_of_neurons() -> None:
    pytest.importorskip("transformers")
    from toposcope.models.transformers_model import TransformersModel

    model = made("gpt2")
    loss = text_loss(TransformersModel(model, "gpt2", CPU), sequences())
    norms = loss.filter_norms(loss.point)
    for name, columns in (("transformer.h.0.mlp.c_fc.weight", True), ("transformer.wte.weight", False)):
        block, weight = loss.block(name), dict(model.named_parameters())[name].detach()
        expected = weight.norm(dim=0 if columns else 1, keepdim=True).expand_as(weight)
        torch.testing.assert_close(norms[block.start : block.stop].view(block.shape), expected)
    bias = loss.block("transformer.h.0.mlp.c_fc.bias")
    assert not norms[bias.start : bias.stop].any()


@pytest.mark.parametrize(("dtype", "tolerance"), [(FLOAT64, 1e-8), (torch.float32, 1e-2)])
def test_without_a_second_derivative_differences_show_their_error(dtype: torch.dtype, tolerance: float) -> None:
    point = torch.linspace(-1, 2, 12, dtype=dtype)
    mix = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 12))).to(dtype)
    loss = as_loss(lambda w: cube(torch.sin(mix @ w)).sum(), point)
    exact = as_loss(lambda w: (torch.sin(mix @ w) ** 3).sum(), point)
    by_difference, by_backward = HessianProduct(loss, point), HessianProduct(exact, point)
    vector = torch.from_numpy(np.random.default_rng(1).normal(size=12))
    vector /= vector.norm()
    found, expected = by_difference(vector), by_backward(vector)
    assert (by_difference.method, by_backward.method) == ("finite differences", "double backward")
    wrong = float((found - expected).norm())
    assert 0 < wrong <= 3 * by_difference.error
    assert wrong < tolerance * float(expected.norm())
    assert by_backward.error == 0


def test_what_is_linear_in_the_weights_has_no_curvature() -> None:
    loss = as_loss(lambda w: w.sum(), torch.ones(3))
    assert HessianProduct(loss, loss.point)(torch.ones(3)).tolist() == [0, 0, 0]


def test_other_errors_are_not_taken_for_a_missing_derivative() -> None:
    loss = as_loss(nn.Identity(), torch.ones(3))
    with pytest.raises(RuntimeError, match="scalar"):
        HessianProduct(loss, loss.point)(torch.ones(3))


def test_weights_out_of_range_are_named() -> None:
    loss = as_loss(lambda w: w.sum(), torch.tensor([torch.nan]))
    with pytest.raises(ToposcopeError, match="function: the loss is nan"):
        loss.value_at_checkpoint()
