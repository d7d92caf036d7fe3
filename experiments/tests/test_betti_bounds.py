"""Bounds of Betti numbers: the theorem by hand, and formats by chains that SymPy differentiates."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.family.model import build
from toposcope.family.run import SIZES, ModelSize
from toposcope_experiments.betti_bounds.betti_bounds import BettiBound, PfaffianFormat, betti_bound
from toposcope_experiments.betti_bounds.network_formats import mlp_format, transformer_format

P = 2**61 - 1
TINY = ModelSize(hidden=2, layers=1, heads=1, vocabulary=2, context=2)


@st.composite
def formats(draw: st.DrawFn) -> PfaffianFormat:
    length = draw(st.integers(0, 40))
    return PfaffianFormat(draw(st.integers(1, 9)), draw(st.integers(1, 6)), draw(st.integers(1, 9)), length)


@examples(60)
@given(formats())
def test_the_bound_is_that_of_whole_numbers_and_grows_with_each_argument(form: PfaffianFormat) -> None:
    n, k, alpha = form.n, form.length, form.alpha if form.length else 0
    degree = max(alpha + form.beta - 1, 1)
    exact = 2 ** (k * (k - 1) // 2) * degree**n * (n * (degree - 1) + min(n, k) * alpha + 1) ** k
    found = betti_bound(form)
    assert found.digits == len(str(exact))
    assert found.log == pytest.approx(math.log(exact), rel=1e-13)
    assert found.log10 == pytest.approx(math.log10(exact), rel=1e-13)
    for name in ("n", "alpha", "beta", "length"):
        larger = dataclasses.replace(form, **{name: getattr(form, name) + 1})
        assert betti_bound(larger).log >= found.log


def test_bounds_by_hand() -> None:
    assert betti_bound(PfaffianFormat(3, 0, 2, 0)) == BettiBound(0.0, 0.0, 1)  # a paraboloid: one minimum
    assert betti_bound(PfaffianFormat(2, 0, 4, 0)).log == pytest.approx(math.log(9))  # (x^2 - 1)^2 + (y^2 - 1)^2
    assert betti_bound(PfaffianFormat(1, 1, 1, 1)).log == pytest.approx(math.log(2))  # e^x, and a parabola
    # one unit, one sample: (tanh(w x + b) - y)^2 with the tanh as last layer has alpha 2 and beta 2
    assert betti_bound(PfaffianFormat(2, 2, 2, 1)).log == pytest.approx(math.log(3**2 * 7))
    assert betti_bound(PfaffianFormat(1, 0, 11, 0)).digits == 2  # exactly 10


def test_gpt_2_overflows_nothing() -> None:
    form = transformer_format(layers=12, width=768, heads=12, context=1024, vocabulary=50257, tokens=10**9)
    assert form.n == 124_439_808
    found = betti_bound(form)
    assert math.isfinite(found.log)
    assert found.digits > 10**27
    assert found.digits == pytest.approx(found.log10, rel=1e-12)


@pytest.mark.parametrize("name", SIZES)
def test_the_family_has_as_many_variables_as_parameters(name: str) -> None:
    size = SIZES[name]
    form = of_size(size, 1000)
    assert form.n == size.n_parameters
    assert betti_bound(form).digits > 10**10


def of_size(size: ModelSize, tokens: int | Sequence[int], **options: bool) -> PfaffianFormat:
    return transformer_format(
        layers=size.layers, width=size.hidden, heads=size.heads, context=size.context,
        vocabulary=size.vocabulary, tokens=tokens, **options,
    )  # fmt: skip


def test_windows() -> None:
    assert of_size(SIZES["tiny-3k"], 300) == of_size(SIZES["tiny-3k"], [128, 128, 44])
    assert of_size(SIZES["tiny-3k"], 128).length > of_size(SIZES["tiny-3k"], [64, 64]).length
    with pytest.raises(ToposcopeError, match="windows of 1 to 128 tokens"):
        of_size(SIZES["tiny-3k"], [129])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"activation": "relu"}, "it has a kink.*Choose from sigmoid, tanh, gelu"),
        ({"activation": "swish"}, "choose from sigmoid, tanh, gelu"),
        ({"loss": "hinge"}, "choose from squared_error, cross_entropy"),
        ({"loss": "cross_entropy"}, "two outputs"),
        ({"widths": [3]}, "names no layer"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ToposcopeError, match=rf"\A[^\n]*{words}[^\n]*\Z"):
        mlp_format(**{**MLP, **options})


MLP: dict[str, Any] = {"widths": [2, 3, 1], "samples": 2}
GPT: dict[str, Any] = {"layers": 1, "width": 8, "heads": 1, "context": 128, "vocabulary": 128, "tokens": 1000}
NO_COUNTS = (None, 0, -1, True, math.nan, 2.0, "23", b"23", {2: 3}, [None], [[2, 3], 1], [2, True], np.ones((2, 2, 2)))
NO_FLAGS = (None, 2, math.nan, "no", [True])
NO_NAMES = (None, 3, ["tanh"], np.array(["tanh", "gelu"]))


@pytest.mark.parametrize(
    ("function", "usual", "name", "values"),
    [
        *((mlp_format, MLP, name, NO_COUNTS) for name in MLP),
        *((transformer_format, GPT, name, NO_COUNTS) for name in GPT),
        *((mlp_format, MLP, name, NO_NAMES) for name in ("activation", "loss", "last")),
        *(
            (PfaffianFormat, dict.fromkeys(("n", "alpha", "beta", "length"), 2), name, NO_COUNTS)
            for name in ("n", "alpha")
        ),
        (mlp_format, MLP, "bias", NO_FLAGS),
        *((transformer_format, GPT, name, NO_FLAGS) for name in ("gain", "bias")),
        (lambda form: betti_bound(form), {}, "form", (None, 3, (1, 2, 2, 1))),
        (transformer_format, GPT, "layers", (10**9, 10**400)),
    ],
)
def test_wrong_values_are_refused_by_name(
    function: Callable[..., object], usual: dict[str, Any], name: str, values: tuple[object, ...]
) -> None:
    for value in values:
        with pytest.raises(ToposcopeError, match=rf"\A{name}\b[^\n]*\Z"):
            function(**{**usual, name: value})


def test_huge_sizes_are_counted_or_refused() -> None:
    assert transformer_format(**{**GPT, "tokens": 10**30}).length > 10**30
    assert betti_bound(mlp_format([10**20, 1], samples=1)).digits == 1  # a paraboloid, of however many weights
    with pytest.raises(
        ToposcopeError, match=r"\Aform: its bound has some 10\^\d+ digits, beyond those that are counted"
    ):
        betti_bound(mlp_format([2, 10**40, 1], samples=1))


class Chain:
    """A Pfaffian chain: each function with its definition, by the variables and the functions before it."""

    def __init__(self) -> None:
        self.sp = pytest.importorskip("sympy")
        self.variables: list[Any] = []
        self.functions: list[Any] = []
        self.definitions: dict[Any, tuple[Any, list[tuple[Any, Any]]]] = {}

    def weights(self, *shape: int) -> Any:
        made = [self.sp.Symbol(f"w{len(self.variables) + k}") for k in range(math.prod(shape))]
        self.variables += made
        return np.array(made, dtype=object).reshape(shape)

    def add(self, definition: Any, *rules: Callable[[Any], tuple[Any, Any]]) -> Any:
        """Append a function; by the rules its derivative becomes a polynomial in it and earlier ones."""
        y = self.sp.Symbol(f"y{len(self.functions)}")
        self.functions.append(y)
        self.definitions[y] = definition, [(definition, y), *(rule(y) for rule in rules)]
        return y

    def named(self, polynomials: Any) -> Any:
        """Give polynomials names, so that expressions stay short; they are no functions of the chain."""
        names = []
        for polynomial in polynomials:
            names.append(self.sp.Symbol(f"p{len(self.definitions)}"))
            self.definitions[names[-1]] = polynomial, []
        return np.array(names)

    def format(self, loss: Any) -> PfaffianFormat:
        """Differentiate everything, check that what comes out are polynomials, and return the largest degrees.

        But for bad luck, a degree is that on a random line through 0 modulo a large prime, and the largest of all
        partial derivatives that of the derivative in a random direction.
        """
        sp, t, rng = self.sp, self.sp.Symbol("t"), np.random.default_rng(0)
        one = sp.Poly(1, t, modulus=P)
        line = {s: sp.Poly(int(rng.integers(1, P)) * t, t, modulus=P) for s in (*self.variables, *self.functions)}
        slopes = {variable: one * int(rng.integers(1, P)) for variable in self.variables}

        def on_line(node: Any) -> Any:
            if node.is_Rational:
                return one * (int(node.p) * pow(int(node.q), -1, P))
            if node.is_number:
                return one * int(rng.integers(1, P))
            if node.is_Symbol:
                assert node in slopes, "a function of the chain that comes later"
                return line[node]
            parts = [on_line(part) for part in node.args[: 1 if node.is_Pow else None]]
            if node.is_Pow:
                assert node.exp.is_Integer, f"{node} is no part of a polynomial"
                assert node.exp > 0, f"{node} is no part of a polynomial"
                return parts[0] ** int(node.exp)
            assert node.is_Add or node.is_Mul, f"{node} is no part of a polynomial"
            return sum(parts[1:], parts[0]) if node.is_Add else math.prod(parts[1:], start=parts[0])

        for name, (definition, rules) in self.definitions.items():
            if name not in line:
                line[name] = on_line(definition)
            slopes[name] = 0 * one
            for symbol in definition.free_symbols:
                slope = sp.diff(definition, symbol)
                for what, by in rules:
                    slope = slope.subs(what, by)
                slopes[name] += on_line(slope) * slopes[symbol]
        alpha = max((int(slopes[y].degree()) for y in self.functions), default=0)
        return PfaffianFormat(len(self.variables), alpha, int(on_line(loss).degree()), len(self.functions))

    def value(self, loss: Any, point: Sequence[float]) -> float:
        """Evaluate the definitions one after the other, then the loss."""
        known = dict(zip(self.variables, point, strict=True))
        for name, (definition, _) in self.definitions.items():
            known[name] = float(definition.subs({s: known[s] for s in definition.free_symbols}))
        return float(loss.subs(known))

    def activated(self, z: Any, activation: str) -> Any:
        sp = self.sp
        if activation == "tanh":
            return self.add(sp.tanh(z))
        if activation == "sigmoid":
            return self.add(1 / (1 + sp.exp(-z)), lambda y: (sp.exp(-z) * y, 1 - y))
        bell, root = sp.exp(-(z**2) / 2), sp.sqrt(2 * sp.pi)
        density = self.add(bell / root, lambda y: (bell, y * root))
        return z * self.add((1 + sp.erf(z / sp.sqrt(2))) / 2, lambda _: (bell, density * root))

    def minus_log(self, s: Any, z: Any) -> Any:
        """The logarithm of a sigmoid, its sign changed."""
        power = self.sp.exp(-z)
        return self.add(self.sp.log(1 + power), lambda _: (1 / (1 + power), s), lambda _: (power * s, 1 - s))

    def softmax(self, row: Sequence[Any]) -> tuple[Any, Any]:
        """The exponentials, and the reciprocal of their sum."""
        powers = np.array([self.add(self.sp.exp(z)) for z in row])
        return powers, self.add(1 / sum(powers))

    def cross_entropy(self, row: Sequence[Any], target: int) -> Any:
        powers, reciprocal = self.softmax(row)
        return self.add(self.sp.log(sum(powers)), lambda _: (1 / sum(powers), reciprocal)) - row[target]

    def normalised(self, x: Any, gain: Any = 1, bias: Any = 0) -> Any:
        sp, centred = self.sp, x - sum(x) / len(x)
        y = self.add((sum(centred**2) / len(x) + sp.Rational(1, 10**5)) ** sp.Rational(-1, 2))
        return centred * y * gain + bias


def mlp(
    widths: list[int], samples: int, activation: str, loss: str, last: str, *, skip: bool = False, l2: bool = False
) -> PfaffianFormat:
    chain = Chain()
    sp = chain.sp
    layers = [(chain.weights(b, a), chain.weights(b)) for a, b in pairwise(widths)]
    total = sum(v**2 for v in chain.variables) if l2 else sp.Integer(0)
    for k in range(samples):
        y = np.array([sp.Integer(3 * k + 2 * i + 1) for i in range(widths[0])])
        for depth, (W, b) in enumerate(layers[:-1]):
            out = np.array([chain.activated(z, activation) for z in W @ y + b])
            y = out + y if skip and depth else out
        W, b = layers[-1]
        z = W @ y + b
        outputs = [chain.activated(each, "sigmoid") for each in z] if last == "sigmoid" else z
        if loss == "squared_error":
            total += sum((y - k - 7) ** 2 for y in outputs)
        elif last == "linear":
            total += chain.cross_entropy(z, k % len(z))
        else:
            total += sum(chain.minus_log(s, each) + each / 3 for s, each in zip(outputs, z, strict=True))
    return chain.format(total)


def gpt(gain: bool, bias: bool) -> tuple[Chain, Any]:
    """The family's model of width 2 on two tokens, its variables in the order of the parameters of `GPT`."""
    chain = Chain()

    def vector(n: int, *, is_there: bool = bias) -> Any:
        return chain.weights(n) if is_there else np.zeros(n, dtype=int)

    def norm() -> tuple[Any, Any]:
        return (chain.weights(2), vector(2)) if gain else (1, 0)

    E, places = chain.weights(2, 2), chain.weights(2, 2)
    first = norm()
    qkv, proj = (chain.weights(6, 2), vector(6)), (chain.weights(2, 2), vector(2))
    second = norm()
    up, down = (chain.weights(8, 2), vector(8)), (chain.weights(2, 8), vector(2))
    final = norm()
    tokens, targets = (0, 1), (1, 1)
    states, keys, total = [], [], chain.sp.Integer(0)
    for place, token in enumerate(tokens):
        x = E[token] + places[place]
        q, k, v = np.split(chain.named(qkv[0] @ chain.normalised(x, *first) + qkv[1]), 3)
        keys.append((k, v))
        powers, reciprocal = chain.softmax([q @ k / chain.sp.sqrt(2) for k, _ in keys])
        x += proj[0] @ (reciprocal * sum(p * v for p, (_, v) in zip(powers, keys, strict=True))) + proj[1]
        x = chain.named(x)
        inside = chain.named(up[0] @ chain.normalised(x, *second) + up[1])
        x += down[0] @ np.array([chain.activated(z, "gelu") for z in inside]) + down[1]
        states.append(chain.named(x))
    for x, target in zip(states, targets, strict=True):
        total += chain.cross_entropy(chain.named(E @ chain.normalised(x, *final)), target)
    return chain, total


MLPS = [
    ([2, 1], "tanh", "squared_error", "linear"),
    ([2, 2], "tanh", "cross_entropy", "linear"),
    ([2, 1], "tanh", "cross_entropy", "sigmoid"),
    ([1, 2, 2, 2, 1], "tanh", "squared_error", "linear"),
    ([2, 2, 2], "sigmoid", "squared_error", "sigmoid"),
    ([1, 2, 2, 2], "sigmoid", "cross_entropy", "linear"),
    ([2, 2, 2], "tanh", "cross_entropy", "sigmoid"),
    ([2, 2, 1], "gelu", "squared_error", "linear"),
    ([1, 2, 2, 2], "gelu", "cross_entropy", "linear"),
]


@pytest.mark.parametrize("case", MLPS, ids=str)
def test_the_chain_of_a_perceptron_has_the_format(case: tuple[list[int], Any, Any, Any]) -> None:
    widths, activation, loss, last = case
    assert mlp_format(widths, samples=2, activation=activation, loss=loss, last=last) == mlp(
        widths, 2, activation, loss, last
    )


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_penalties_and_skip_connections_leave_the_format(activation: Any) -> None:
    expected = mlp_format([1, 2, 2, 1], samples=2, activation=activation)
    assert mlp([1, 2, 2, 1], 2, activation, "squared_error", "linear", skip=True, l2=True) == expected


@pytest.mark.parametrize(("gain", "bias"), [(True, True), (False, False)])
def test_the_chain_of_a_transformer_has_the_format(gain: bool, bias: bool) -> None:
    chain, loss = gpt(gain, bias)
    assert chain.format(loss) == of_size(TINY, 2, gain=gain, bias=bias)


def test_the_chain_is_that_of_the_model_of_the_family() -> None:
    chain, loss = gpt(gain=True, bias=True)
    model = build(TINY, seed=1, initial_scale=30.0).double()
    names = [name for name, _ in model.named_parameters()]
    order = ("token_emb", "pos_emb", "layers.0.ln1", "layers.0.attn", "layers.0.ln2", "layers.0.mlp", "ln_f")
    assert [name for part in order for name in names if name.startswith(part)] == names
    point = torch.cat([parameter.flatten() for parameter in model.parameters()]).tolist()
    assert chain.value(loss, point) / 2 == pytest.approx(model.loss(torch.tensor([[0, 1, 1]])).item(), rel=1e-12)
