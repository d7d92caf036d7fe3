"""The model against definitions written out by hand."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from toposcope.family import GPT, SIZES, ModelSize, build
from toposcope.family.model import Attention

SIZE = ModelSize(hidden=12, layers=2, heads=3, context=20)


def random_tokens(batch: int, time: int, seed: int = 0) -> Tensor:
    return torch.randint(0, SIZE.vocabulary, (batch, time), generator=torch.Generator().manual_seed(seed))


def lively(size: ModelSize = SIZE) -> GPT:
    """A model whose weights are large enough for attention to be far from even, and whose biases are not zero."""
    model = build(size, seed=1)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model


def attention_by_hand(attention: Attention, x: Tensor) -> Tensor:
    """softmax(QK' / sqrt(d)) V head by head, position by position, over what came before."""
    batch, time, hidden = x.shape
    width = hidden // attention.heads
    qkv = x @ attention.qkv.weight.T + attention.qkv.bias
    query, key, value = qkv[..., :hidden], qkv[..., hidden : 2 * hidden], qkv[..., 2 * hidden :]
    mixed = torch.zeros_like(x)
    for head in range(attention.heads):
        columns = slice(head * width, (head + 1) * width)
        for b in range(batch):
            for t in range(time):
                scores = key[b, : t + 1, columns] @ query[b, t, columns] / math.sqrt(width)
                mixed[b, t, columns] = torch.softmax(scores, dim=0) @ value[b, : t + 1, columns]
    return mixed @ attention.proj.weight.T + attention.proj.bias


def norm_by_hand(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * weight + bias


def logits_by_hand(model: GPT, tokens: Tensor) -> Tensor:
    """The whole model from its tensors by name."""
    w = dict(model.state_dict())
    x = w["token_emb.weight"][tokens] + w["pos_emb.weight"][: tokens.shape[1]]
    for i, block in enumerate(model.layers):
        at = f"layers.{i}."
        assert isinstance(block.attn, Attention)
        x = x + attention_by_hand(block.attn, norm_by_hand(x, w[at + "ln1.weight"], w[at + "ln1.bias"]))
        inner = norm_by_hand(x, w[at + "ln2.weight"], w[at + "ln2.bias"]) @ w[at + "mlp.fc1.weight"].T
        inner = inner + w[at + "mlp.fc1.bias"]
        inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
        x = x + inner @ w[at + "mlp.fc2.weight"].T + w[at + "mlp.fc2.bias"]
    logits: Tensor = norm_by_hand(x, w["ln_f.weight"], w["ln_f.bias"]) @ w["token_emb.weight"].T
    return logits


@torch.no_grad()
def test_attention_is_masked_softmax() -> None:
    attention = lively().double().layers[0].attn
    assert isinstance(attention, Attention)
    x = torch.randn(2, 11, SIZE.hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(attention(x), attention_by_hand(attention, x), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_logits_are_those_of_the_formulas() -> None:
    model = lively().double()
    tokens = random_tokens(2, 9)
    torch.testing.assert_close(model(tokens), logits_by_hand(model, tokens), rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("changed", [1, 7, 19])
def test_a_later_token_changes_nothing_before_it(changed: int) -> None:
    model = lively()
    tokens = random_tokens(3, SIZE.context)
    other = tokens.clone()
    other[:, changed:] = (other[:, changed:] + 1) % SIZE.vocabulary
    before, after = model(tokens), model(other)
    assert torch.equal(before[:, :changed], after[:, :changed])
    assert not torch.equal(before[:, changed:], after[:, changed:])


@torch.no_grad()
def test_an_earlier_token_changes_what_follows() -> None:
    model = lively()
    tokens = random_tokens(1, SIZE.context)
    other = tokens.clone()
    other[:, 0] = (other[:, 0] + 1) % SIZE.vocabulary
    assert bool((model(tokens) != model(other)).any(-1).all())


@torch.no_grad()
def test_order_matters() -> None:
    # Without positions the last logits would be the same for any order of what came before.
    model = lively()
    tokens = random_tokens(1, 10)
    shuffled = torch.cat([tokens[:, :9].flip(1), tokens[:, 9:]], dim=1)
    assert not torch.allclose(model(tokens)[:, -1], model(shuffled)[:, -1])


@torch.no_grad()
def test_sequences_of_a_batch_do_not_mix() -> None:
    model = lively()
    tokens = random_tokens(4, SIZE.context)
    torch.testing.assert_close(model(tokens)[2:3], model(tokens[2:3]))


def test_the_head_is_the_embedding() -> None:
    model = build("small-7k")
    assert model.head.weight is model.token_emb.weight
    assert {"head.weight", "head.bias"}.isdisjoint(dict(model.named_parameters()))
    model.loss(torch.zeros(1, 5, dtype=torch.long)).backward()  # type: ignore[no-untyped-call]
    assert model.head.weight.grad is not None
    # Rows of tokens that never came in have a gradient too: through the head alone.
    assert bool(model.head.weight.grad[1:].any())


@pytest.mark.parametrize("name", SIZES)
def test_names_are_those_of_the_published_checkpoints(name: str) -> None:
    size = SIZES[name]
    modules = {
        "ln1": (size.hidden,),
        "attn.qkv": (3 * size.hidden, size.hidden),
        "attn.proj": (size.hidden, size.hidden),
        "ln2": (size.hidden,),
        "mlp.fc1": (4 * size.hidden, size.hidden),
        "mlp.fc2": (size.hidden, 4 * size.hidden),
    }
    expected: dict[str, tuple[int, ...]] = {
        "token_emb.weight": (size.vocabulary, size.hidden),
        "pos_emb.weight": (size.context, size.hidden),
        "head.weight": (size.vocabulary, size.hidden),
        "ln_f.weight": (size.hidden,),
        "ln_f.bias": (size.hidden,),
    }
    for i in range(size.layers):
        for module, shape in modules.items():
            expected[f"layers.{i}.{module}.weight"] = shape
            expected[f"layers.{i}.{module}.bias"] = shape[:1]
    assert {key: tuple(tensor.shape) for key, tensor in build(name).state_dict().items()} == expected


@torch.no_grad()
def test_the_loss_is_the_mean_cross_entropy_of_the_next_token() -> None:
    model = lively().double()
    sequences = random_tokens(3, 8)
    logs = torch.log_softmax(model(sequences[:, :-1]), dim=-1)
    each = [-logs[b, t, sequences[b, t + 1]] for b in range(3) for t in range(7)]
    torch.testing.assert_close(model.loss(sequences), torch.stack(each).mean())


@torch.no_grad()
def test_the_loss_takes_tokens_as_the_corpus_stores_them() -> None:
    model = build("tiny-3k")
    sequences = random_tokens(2, 8)
    assert torch.equal(model.loss(sequences), model.loss(sequences.to(torch.uint8)))


@torch.no_grad()
def test_an_untrained_model_knows_nothing() -> None:
    model = build("med-21k")
    loss = float(model.loss(random_tokens(8, 129)))
    assert loss == pytest.approx(math.log(128), abs=0.05)
    assert functional.softmax(model(random_tokens(1, 4)), dim=-1).sum().item() == pytest.approx(4)
