"""The model against definitions written out by hand, and the published sizes and initial weights."""

import math

import pytest
import torch
from torch import Tensor

from toposcope.errors import ToposcopeError
from toposcope.family import GPT, SIZES, ModelSize, build
from toposcope.family.model import Attention

PUBLISHED = {"tiny-3k": 2_936, "small-7k": 7_408, "med-21k": 20_640, "large-46k": 46_368, "xl-97k": 97_200}
# An attention head narrower than what the CPU kernel likes, and a wider one.
LIVELY = [
    ModelSize(hidden=12, layers=2, heads=3, context=20),
    ModelSize(hidden=40, layers=1, heads=2, vocabulary=30, context=7),
]


def random_tokens(size: ModelSize, batch: int, time: int) -> Tensor:
    return torch.randint(0, size.vocabulary, (batch, time), generator=torch.Generator().manual_seed(0))


def lively(size: ModelSize) -> GPT:
    """A model whose weights are large enough for attention to be far from even, and whose biases are not zero."""
    model = build(size, seed=1)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model.double()


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
@pytest.mark.parametrize("size", LIVELY, ids=str)
def test_logits_and_loss_are_those_of_the_formulas(size: ModelSize) -> None:
    model = lively(size)
    tokens = random_tokens(size, 3, size.context)
    logits = model(tokens)
    torch.testing.assert_close(logits, logits_by_hand(model, tokens), rtol=1e-9, atol=1e-9)
    each = [-torch.log_softmax(logits[b, t], -1)[tokens[b, t + 1]] for b in range(3) for t in range(size.context - 1)]
    torch.testing.assert_close(model.loss(tokens), torch.stack(each).mean())
    # Tokens as the corpus stores them.
    assert torch.equal(model.loss(tokens), model.loss(tokens.to(torch.uint8)))


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_and_counts_are_those_of_the_published_checkpoints(name: str) -> None:
    assert list(SIZES) == list(PUBLISHED)
    size, model = SIZES[name], build(name)
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
    assert {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()} == expected
    assert sum(p.numel() for p in model.parameters()) == size.n_parameters == PUBLISHED[name]
    assert model.head.weight is model.token_emb.weight


@pytest.mark.parametrize("size", [*LIVELY, ModelSize(hidden=1, layers=1, heads=1, vocabulary=1, context=1)], ids=str)
def test_the_number_of_parameters_of_other_sizes(size: ModelSize) -> None:
    assert sum(p.numel() for p in build(size).parameters()) == size.n_parameters


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ToposcopeError) as caught:
        build("huge-1t")
    assert all(name in str(caught.value) for name in ("'huge-1t'", *PUBLISHED))


def test_the_seed_alone_decides_the_weights() -> None:
    torch.manual_seed(1)
    first = build("small-7k", seed=5).state_dict()
    torch.manual_seed(2)
    again, other = (build("small-7k", seed=seed).state_dict() for seed in (5, 6))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["token_emb.weight"], other["token_emb.weight"])


def test_initial_weights_are_small_and_normal_biases_zero_and_norms_one() -> None:
    parameters = dict(build("xl-97k", seed=1).named_parameters())
    matrices = [p.detach().flatten() for p in parameters.values() if p.ndim == 2]
    drawn = torch.cat(matrices).double()
    # 95,000 draws: the standard errors are 0.00007 for the mean and 0.00005 for the deviation.
    assert abs(float(drawn.mean())) < 4e-4
    assert abs(float(drawn.std()) - 0.02) < 3e-4
    # The fourth moment of a normal law is three; a uniform one has 1.8.
    assert abs(float(((drawn / drawn.std()) ** 4).mean()) - 3) < 0.15
    for matrix in matrices:
        assert abs(float(matrix.std()) - 0.02) < 0.002
    for name, parameter in parameters.items():
        if parameter.ndim == 1:
            assert bool((parameter == (0 if name.endswith("bias") else 1)).all()), name
