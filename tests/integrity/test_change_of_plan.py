"""Layouts that change at some step and stay: one note there, and no word on the checkpoints before or after."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from property_examples import repeated
from sick_series import Series, Training, Weights, checks, faults_of, seen

from toposcope.integrity import diagnose

STEPS = [0, *range(100, 2100, 100)]
EMBEDDING, HEAD = "gpt_neox.embed_in.weight", "embed_out.weight"
MATRIX = "gpt_neox.layers.0.mlp.dense_h_to_4h.weight"


@cache
def plain() -> Series:
    return Training(seed=5, steps=STEPS).weights()


def larger(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor in the corner of a larger one, as an extended vocabulary or a wider layer has it."""
    new = 0.02 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    new[tuple(slice(0, n) for n in tensor.shape)] = tensor
    return new


def vocabulary(weights: Weights) -> Weights:
    return weights | {n: larger(weights[n], (112, 32)) for n in (EMBEDDING, HEAD)}


def wider(weights: Weights) -> Weights:
    rows = {EMBEDDING: 96, HEAD: 96}
    return {n: larger(t, tuple(k if k == rows.get(n) else 3 * k // 2 for k in t.shape)) for n, t in weights.items()}


def deeper(weights: Weights) -> Weights:
    """A copy of the first layer behind it, which renumbers the second."""
    one, two, three = (f"layers.{k}." for k in range(3))
    moved = {n.replace(two, three): t for n, t in weights.items()}
    return moved | {n.replace(one, two): t.clone() for n, t in weights.items() if one in n}


def narrower(weights: Weights) -> Weights:
    return {n: t.to(torch.bfloat16) for n, t in weights.items()}


CHANGES: dict[str, tuple[Callable[[Weights], Weights], str]] = {
    "vocabulary": (vocabulary, "2 of 28 tensors (embed_out.weight, gpt_neox.embed_in.weight) of another shape"),
    "width": (wider, "of another shape"),
    "depth": (deeper, "appear"),
    "dtype": (narrower, "from float32 to bfloat16"),
    "tied": (lambda w: {n: t for n, t in w.items() if n != HEAD}, f"{HEAD} are gone"),
}


def from_step(series: Series, change: Callable[[Weights], Weights], begin: int) -> Series:
    return {step: change(weights) if step >= begin else weights for step, weights in series.items()}


@pytest.mark.parametrize("begin", [STEPS[2], STEPS[10], STEPS[-2]])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_stays_is_one_note_where_it_happens(name: str, begin: int) -> None:
    change, words = CHANGES[name]
    (finding,) = diagnose(seen(from_step(plain(), change, begin)))
    assert (finding.check, finding.severity, finding.steps) == ("change of plan", "note", (begin,))
    assert words in finding.message


def test_an_untied_head() -> None:
    series = {s: w if s >= STEPS[8] else {n: t for n, t in w.items() if n != HEAD} for s, w in plain().items()}
    (finding,) = diagnose(seen(series))
    assert (finding.check, finding.steps, finding.layer) == ("change of plan", (STEPS[8],), HEAD)


@pytest.mark.parametrize(("first", "second"), [("vocabulary", "dtype"), ("dtype", "depth"), ("width", "dtype")])
def test_two_changes_are_two_notes(first: str, second: str) -> None:
    series = from_step(from_step(plain(), CHANGES[first][0], STEPS[6]), CHANGES[second][0], STEPS[14])
    assert checks(diagnose(seen(series))) == [("change of plan", "note", (step,)) for step in (STEPS[6], STEPS[14])]


@pytest.mark.parametrize("steps", [(STEPS[0],), (STEPS[7], STEPS[8]), (STEPS[4], STEPS[9]), (STEPS[-1],)])
def test_a_layout_that_comes_and_goes_is_a_fault_there(steps: tuple[int, ...]) -> None:
    series = {s: w | ({MATRIX: w[MATRIX][:-1]} if s in steps else {}) for s, w in plain().items()}
    assert faults_of(series) == [("shape", steps, MATRIX)]
    without = {s: {n: t for n, t in w.items() if s not in steps or n != MATRIX} for s, w in plain().items()}
    assert faults_of(without) == [("tensors", steps, MATRIX)]


def test_a_wrong_checkpoint_next_to_a_change() -> None:
    series = from_step(plain(), vocabulary, STEPS[10])
    series[STEPS[15]] = plain()[STEPS[15]]
    assert checks(diagnose(seen(series))) == [
        ("shape", "fault", (STEPS[15],)),
        ("change of plan", "note", (STEPS[10],)),
    ]


@pytest.mark.parametrize("begin", [STEPS[5], STEPS[15]])
def test_values_are_judged_on_either_side_of_a_change(begin: int) -> None:
    """Also of tensors that most checkpoints hold in another shape."""
    series = from_step(plain(), wider, begin)
    for step, name in ((STEPS[2], HEAD), (STEPS[18], EMBEDDING)):
        bad = series[step][name].clone()
        bad[3, 4] = 1e4
        series[step] = series[step] | {name: bad}
    assert {found[:2] for found in faults_of(series)} == {("outlier", (STEPS[2],)), ("outlier", (STEPS[18],))}


@pytest.mark.parametrize(
    ("dtype", "severity"), [(torch.bfloat16, "note"), (torch.float16, "note"), (torch.float64, "fault")]
)
def test_the_last_checkpoint_may_be_released_in_fewer_bits(dtype: torch.dtype, severity: str) -> None:
    series = plain() | {STEPS[-1]: {n: t.to(dtype) for n, t in plain()[STEPS[-1]].items()}}
    assert checks(diagnose(seen(series))) == [("dtype", severity, (STEPS[-1],))]


def test_what_is_saved_at_the_change_before_any_update() -> None:
    series = dict(plain())
    series[STEPS[10]] = series[STEPS[9]]
    series = from_step(series, vocabulary, STEPS[10])
    assert checks(diagnose(seen(series))) == [("change of plan", "note", (STEPS[10],))]


def test_random_layouts_are_blamed_where_they_are_rare() -> None:
    rng = np.random.default_rng(0)
    for _ in repeated(range(5), 2):
        wrong = sorted(int(s) for s in rng.choice(STEPS[2:-2], 3, replace=False))
        series = {s: narrower(w) if s in wrong else w for s, w in plain().items()}
        assert [found[:2] for found in faults_of(series) if found[0] == "dtype"] == [("dtype", tuple(wrong))]
