"""The sizes of the family: the published parameter counts to the unit, and the weights a model starts with."""

from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from toposcope.errors import ToposcopeError
from toposcope.family import SIZES, ModelSize, build

PUBLISHED = {"tiny-3k": 2_936, "small-7k": 7_408, "med-21k": 20_640, "large-46k": 46_368, "xl-97k": 97_200}

OTHERS = [
    ModelSize(hidden=1, layers=1, heads=1, vocabulary=1, context=1),
    ModelSize(hidden=12, layers=4, heads=3),
    ModelSize(hidden=20, layers=2, heads=5, vocabulary=300, context=7),
]


def n_trainable(size: str | ModelSize) -> int:
    """`parameters` tells a shared tensor once."""
    return sum(p.numel() for p in build(size).parameters())


def weights(size: str | ModelSize, seed: int) -> dict[str, Tensor]:
    return dict(build(size, seed=seed).state_dict())


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_the_family_is_the_published_one() -> None:
    assert list(SIZES) == list(PUBLISHED)


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_published_parameter_counts(name: str, count: int) -> None:
    assert SIZES[name].n_parameters == count
    assert n_trainable(name) == count


@pytest.mark.parametrize("size", OTHERS, ids=str)
def test_other_sizes_by_their_dials(size: ModelSize) -> None:
    assert n_trainable(size) == size.n_parameters
    model = build(size)
    tokens = torch.zeros(2, size.context, dtype=torch.long)
    assert model(tokens).shape == (2, size.context, size.vocabulary)


def test_a_bigger_dial_makes_a_bigger_model() -> None:
    base = ModelSize(hidden=8, layers=2, heads=2)
    for dial, value in {"hidden": 10, "layers": 3, "vocabulary": 129, "context": 129}.items():
        assert msgspec.structs.replace(base, **{dial: value}).n_parameters > base.n_parameters
    # Heads share one width between them.
    assert msgspec.structs.replace(base, heads=4).n_parameters == base.n_parameters


@pytest.mark.parametrize(
    ("dials", "words"),
    [
        ({"hidden": 0, "layers": 1, "heads": 1}, ["hidden", "0", "at least 1"]),
        ({"hidden": 8, "layers": -1, "heads": 1}, ["layers", "-1", "at least 1"]),
        ({"hidden": 8, "layers": 1, "heads": 0}, ["heads", "0", "at least 1"]),
        ({"hidden": 8, "layers": 1, "heads": 1, "vocabulary": 0}, ["vocabulary", "at least 1"]),
        ({"hidden": 8, "layers": 1, "heads": 1, "context": 0}, ["context", "at least 1"]),
        ({"hidden": 8, "layers": 1, "heads": 3}, ["hidden = 8", "heads = 3"]),
    ],
)
def test_bad_dials_are_refused_by_name(dials: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        ModelSize(**dials)
    assert all(word in str(caught.value) for word in words)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ToposcopeError) as caught:
        build("huge-1t")
    assert "'huge-1t'" in str(caught.value)
    assert all(name in str(caught.value) for name in PUBLISHED)


def test_the_same_seed_gives_the_same_weights() -> None:
    assert same(weights("small-7k", seed=5), weights("small-7k", seed=5))
    assert not same(weights("small-7k", seed=5), weights("small-7k", seed=6))


def test_building_neither_reads_nor_moves_the_global_generator() -> None:
    torch.manual_seed(1)
    first = weights("small-7k", seed=5)
    torch.manual_seed(2)
    torch.randn(7)
    assert same(first, weights("small-7k", seed=5))


def test_initial_weights_are_small_and_normal() -> None:
    model = build("xl-97k", seed=1)
    matrices = [p.detach().flatten() for p in model.parameters() if p.ndim == 2]
    drawn = torch.cat(matrices).double()
    # 95,000 draws: the standard errors are 0.00007 for the mean and 0.00005 for the deviation.
    assert abs(float(drawn.mean())) < 4e-4
    assert abs(float(drawn.std()) - 0.02) < 3e-4
    # The fourth moment of a normal law is three; a uniform one has 1.8.
    assert abs(float(((drawn / drawn.std()) ** 4).mean()) - 3) < 0.15
    for matrix in matrices:
        assert abs(float(matrix.std()) - 0.02) < 0.002


def test_initial_biases_are_zero_and_norms_are_one() -> None:
    for name, parameter in build("med-21k").named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.ndim == 1:
            assert bool((parameter == 1).all()), name
