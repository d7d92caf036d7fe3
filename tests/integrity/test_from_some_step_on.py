"""Tensors that are wrong from some step on, and real trainings in which nothing is."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from property_examples import repeated
from sick_series import faults, faults_of, seen
from torch import Tensor, nn
from trained_mlp import EVERY, STEPS, Series, plain, trained

from toposcope.integrity import diagnose

MATRIX, BIAS, NORM = "3.weight", "3.bias", "4.weight"
BEGIN = STEPS // 2

CHANGES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "sign": (lambda w: -w, "opposite sign"),
    "rows": (
        lambda w: w[torch.randperm(len(w), generator=torch.Generator().manual_seed(0))],
        "rows are in another order",
    ),
    "columns": (
        lambda w: w[:, torch.randperm(w.shape[1], generator=torch.Generator().manual_seed(0))],
        "columns are in another order",
    ),
    "transposed": (lambda w: w.T.contiguous(), "transposed"),
    "fresh": (lambda w: w.std() * torch.randn(w.shape, generator=torch.Generator().manual_seed(0)), "other values"),
}


def changed(series: Series, name: str, change: Callable[[Tensor], Tensor], steps: range) -> Series:
    return {s: w | {name: change(w[name]) if s in steps else w[name]} for s, w in series.items()}


def _decayed(step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    optimizer.param_groups[0]["lr"] = 3e-3 * (1 - step / STEPS)


@cache
def decaying() -> Series:
    return trained(_decayed)


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("begin", [BEGIN, STEPS - 2 * EVERY])
def test_a_matrix_replaced_for_good(kind: str, begin: int) -> None:
    change, words = CHANGES[kind]
    (finding,) = faults(seen(changed(plain(), MATRIX, change, range(begin, STEPS + 1))))
    assert (finding.check, finding.steps, finding.layer) == ("break", (begin,), MATRIX)
    assert words in finding.message
    assert "fetch or save it again" in finding.message


@pytest.mark.parametrize("kind", CHANGES)
def test_a_matrix_replaced_at_the_last_step(kind: str) -> None:
    series = changed(plain(), MATRIX, CHANGES[kind][0], range(STEPS, STEPS + 1))
    assert faults_of(series) == [("off path", (STEPS,), MATRIX)]


def test_a_matrix_that_soon_loses_its_first_values() -> None:
    """Small matrices do at high learning rates: half of them in one interval, all in the next, then little."""
    series = dict(plain())
    steps = list(series)
    later = series[steps[2]][MATRIX]
    generator = torch.Generator().manual_seed(0)
    first, other = (later.std() * torch.randn(later.shape, generator=generator) for _ in range(2))
    for step, value in ((steps[0], first), (steps[1], 0.5 * first + 0.87 * other)):
        series[step] = series[step] | {MATRIX: value}
    assert [finding for finding in faults_of(series) if finding[2] == MATRIX] == []


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_a_matrix_scaled_a_little_for_good(factor: float) -> None:
    begin = STEPS - 3 * EVERY
    (finding,) = faults(seen(changed(decaying(), MATRIX, lambda w: factor * w, range(begin, STEPS + 1))))
    assert (finding.check, finding.steps, finding.layer) == ("break", (begin,), MATRIX)
    assert f"{factor:.2g}" in finding.message or f"{factor - 0.001:.3g}" in finding.message


@pytest.mark.parametrize("name", [BIAS, NORM])
@pytest.mark.parametrize("steps", [range(BEGIN, BEGIN + 1), range(BEGIN, STEPS + 1), range(STEPS, STEPS + 1)])
def test_a_stale_vector(name: str, steps: range) -> None:
    old = plain()[BEGIN - 5 * EVERY][name]
    found = faults_of(changed(plain(), name, lambda _: old, steps))
    assert found == [("still", tuple(s for s in plain() if s in steps), name)]


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
def test_a_first_checkpoint_of_fewer_digits(narrow: torch.dtype) -> None:
    series = dict(plain())
    series[0] = {name: tensor.to(narrow).float() for name, tensor in series[0].items()}
    assert faults_of(series) == [("rounded", (0,), "")] or [c for c, s, _ in faults_of(series) if s == (0,)] == [
        "rounded"
    ]


def test_a_run_in_half_precision_is_not_rounded() -> None:
    """Neither stored as it was trained, nor in single precision."""
    for wide in (torch.bfloat16, torch.float32):
        series = {s: {n: t.to(torch.bfloat16).to(wide) for n, t in w.items()} for s, w in plain().items()}
        assert faults_of(series) == []


def _kicked(step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    optimizer.param_groups[0]["lr"] = 3e-3 * (50 if BEGIN < step <= BEGIN + 10 else 1)


def _reset(step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    if step == BEGIN:
        optimizer.state.clear()


def _frozen(step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        if step > BEGIN and name.startswith(("0.", "1.")):
            weight.grad = None


def _thawed(step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        if step <= BEGIN and name.startswith(("0.", "1.")):
            weight.grad = None


def _restarted(step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    optimizer.param_groups[0]["lr"] = 3e-3 * (1 - step % 200 / 200)


def _wrong_data(step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    for weight in model.parameters():
        if BEGIN < step <= BEGIN + 5 and weight.grad is not None:
            weight.grad.neg_()


@pytest.mark.slow
@pytest.mark.parametrize("event", [_kicked, _reset, _frozen, _thawed, _restarted, _wrong_data])
@pytest.mark.parametrize("seed", repeated(range(2)))
def test_events_of_a_training_are_no_fault(event: Callable[..., None], seed: int) -> None:
    assert faults_of(trained(event, seed=seed)) == []


def test_frozen_layers_are_a_note() -> None:
    found = [finding for finding in diagnose(seen(trained(_frozen))) if finding.check == "frozen layer"]
    assert [(finding.severity, finding.steps[0]) for finding in found] == [("note", BEGIN)]


def test_one_matrix_of_a_layer_alone_does_not_freeze() -> None:
    old = plain()[BEGIN][MATRIX]
    found = faults_of(changed(plain(), MATRIX, lambda _: old, range(BEGIN, STEPS + 1)))
    assert [(check, layer) for check, _, layer in found] == [("still", MATRIX)]


PARTLY: dict[str, Callable[[Tensor], Tensor]] = {
    "heads": lambda w: torch.cat([w[12:24], w[:12], w[24:]]),
    "noise": lambda w: w + 0.8 * w.std() * torch.randn(w.shape, generator=torch.Generator().manual_seed(0)),
    "clipped": lambda w: w.clamp(-0.3 * w.std(), 0.3 * w.std()),
    "twice": lambda w: 2 * w,
}


@pytest.mark.parametrize("kind", PARTLY)
def test_a_matrix_that_alone_leaps_for_good(kind: str) -> None:
    """It keeps a good part of its values, so that its correlation with those before does not tell."""
    found = faults_of(changed(decaying(), MATRIX, PARTLY[kind], range(STEPS - 5 * EVERY, STEPS + 1)))
    assert found == [("break", (STEPS - 5 * EVERY,), MATRIX)]


def test_all_weights_halved_for_good() -> None:
    series = {s: {n: t / 2 if s >= BEGIN and t.dim() > 1 else t for n, t in w.items()} for s, w in decaying().items()}
    assert [(f.check, f.steps) for f in diagnose(seen(series))] == [("break", (BEGIN,))]


def mean(of: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([weights[name] for weights in of]).mean(0) for name in of[0]}


@pytest.mark.parametrize("count", [5, 8])
def test_an_average_at_the_end_is_no_fault(count: int) -> None:
    """Of the last ones, of which the very last is not kept; and an exponential one."""
    steps = list(plain())
    exponential = plain()[steps[0]]
    for weights in plain().values():
        exponential = {name: 0.7 * exponential[name] + 0.3 * tensor for name, tensor in weights.items()}
    for last in (mean([plain()[step] for step in steps[-count:]]), exponential):
        assert faults_of({**plain(), STEPS: last}) == []


def test_a_run_that_goes_on_from_a_mean_is_no_fault() -> None:
    """It moves on from there as it would have from where it was."""
    series, begin, old = decaying(), STEPS - 5 * EVERY, STEPS - 15 * EVERY
    now, merged = series[begin], mean([series[begin - EVERY], series[old]])
    later = {s: {n: t - now[n] + merged[n] for n, t in w.items()} for s, w in series.items() if s >= begin}
    assert faults_of(series | later) == []


@pytest.mark.parametrize("share", [0.5, 0.2, -0.5, -1.0])
@pytest.mark.parametrize("names", [[MATRIX], []], ids=["one matrix", "all tensors"])
def test_a_checkpoint_on_a_line_with_its_neighbours(share: float, names: list[str]) -> None:
    """Between them, or as far beyond one of them; which of the three it is, the line does not say."""
    line = (BEGIN - EVERY, BEGIN, BEGIN + EVERY)
    before, after = plain()[line[0]], plain()[line[2 if share > 0 else 1]]
    made = {n: torch.lerp(before[n], after[n], abs(share) + (share < 0)) for n in names or before}
    step = line[1 if share > 0 else 2]
    found = faults(seen({**plain(), step: plain()[step] | made}))
    assert [(f.check, f.steps) for f in found if "on a line" in f.message] == [("off path", line)]


@pytest.mark.parametrize("count", [2, 3])
def test_an_interpolated_stretch(count: int) -> None:
    steps = range(BEGIN, BEGIN + count * EVERY, EVERY)
    before, after = plain()[BEGIN - EVERY], plain()[steps.stop]
    line = {
        s: {n: torch.lerp(t, after[n], (k + 1) / (count + 1)) for n, t in before.items()} for k, s in enumerate(steps)
    }
    assert [(check, at) for check, at, _ in faults_of({**plain(), **line})] == [("off path", tuple(steps))]


@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize("names", [[MATRIX], []], ids=["one matrix", "all tensors"])
def test_a_copy_with_noise(lag: int, names: list[str]) -> None:
    old, generator = plain()[BEGIN - lag * EVERY], torch.Generator().manual_seed(0)
    copy = {n: old[n] + 1e-6 * old[n].std() * torch.randn(old[n].shape, generator=generator) for n in names or old}
    (finding,) = faults(seen({**plain(), BEGIN: plain()[BEGIN] | copy}))
    assert (finding.check, finding.steps) == ("still" if names else "duplicate", (BEGIN - lag * EVERY, BEGIN))


def test_movement_along_a_line_is_not_interpolated() -> None:
    start, end = plain()[0], plain()[STEPS]
    line = {s: {n: torch.lerp(t, end[n], s / STEPS) for n, t in start.items()} for s in plain()}
    assert not [f for f in diagnose(seen(line)) if "interpolated" in f.message]


def _quantised(w: Tensor, levels: int) -> Tensor:
    scale = w.abs().amax(1, keepdim=True) / levels
    return (w / scale).round() * scale


@pytest.mark.parametrize("levels", [127, 7])
@pytest.mark.parametrize("steps", [range(BEGIN, BEGIN + 1), range(3 * EVERY, STEPS + 1)])
def test_a_round_trip_through_few_bits(steps: range, levels: int) -> None:
    wrong = {s: {n: _quantised(t, levels) if t.dim() > 1 else t for n, t in w.items()} for s, w in plain().items()}
    found = faults(seen({s: wrong[s] if s in steps else w for s, w in plain().items()}))
    assert ("rounded", tuple(s for s in plain() if s in steps)) in [(f.check, f.steps) for f in found]
    assert [f for f in faults(seen(wrong)) if f.check == "rounded"] == []


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_pruning_is_one_note(share: float) -> None:
    masks = {n: t.abs() >= t.abs().quantile(share) for n, t in decaying()[BEGIN].items() if t.dim() > 1}
    pruned = {s: {n: t * masks.get(n, 1) for n, t in w.items()} if s >= BEGIN else w for s, w in decaying().items()}
    assert [(f.check, f.severity, f.steps) for f in diagnose(seen(pruned))] == [("dead layer", "note", (BEGIN,))]
