"""Few different values, rows that are copies or zero, vectors that stay: damaged, or meant so."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from sick_series import Series, Training, checks, faults, faults_of, seen

from toposcope.integrity import Finding, diagnose
from toposcope.integrity.finding import merged, merged_remarks

Change = Callable[[torch.Tensor], torch.Tensor]
STEPS = [0, *range(100, 1600, 100)]
BIAS = "gpt_neox.layers.0.attention.dense.bias"
MATRIX = "gpt_neox.layers.0.attention.dense.weight"
EMBEDDING = "gpt_neox.embed_in.weight"
MIDDLE, LATE = STEPS[7], STEPS[7:]


@cache
def healthy() -> Series:
    return Training(seed=11, steps=STEPS, layers=1, noise=0.1, drift=0.3).weights()


def changed(series: Series, steps: list[int], **tensors: torch.Tensor) -> Series:
    return {step: weights | tensors if step in steps else weights for step, weights in series.items()}


def at(steps: list[int], name: str, change: Change) -> Series:
    series = healthy()
    return {s: w | {name: change(w[name])} if s in steps else w for s, w in series.items()}


def grid(levels: int, dim: int | None = None, zero_point: bool = False) -> Change:
    """Round to even levels between the extremes, or zero and the largest, of all or of each row or column."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        low, high = ((f(tensor) if dim is None else f(tensor, dim, keepdim=True)) for f in (torch.amin, torch.amax))
        low = low if zero_point else -torch.maximum(-low, high)
        step = ((high if zero_point else -low) - low) / (levels - 1)
        return ((tensor - low) / step).round() * step + low

    return change


CODES: dict[str, Change] = {
    "int8": grid(255),
    "by rows": grid(255, 1),
    "by columns": grid(255, 0),
    "zero point": grid(256, None, zero_point=True),
    "4 bits": grid(15, 1),
    "3 bits": grid(7, 0, zero_point=True),
    "ternary": lambda t: t.sign() * (t.abs() > t.std()) * t.std(),
    "fp8": lambda t: t.mul(1000).to(torch.float8_e4m3fn).float() / 1000,
    "float16": lambda t: t.half().float(),
    "bfloat16": lambda t: t.bfloat16().float(),
    "24 bits": lambda t: (t.view(torch.int32) & ~255).view(torch.float32),
}


@pytest.mark.parametrize("code", CODES)
def test_few_different_values_by_any_code(code: str) -> None:
    for steps in ([MIDDLE], LATE):
        rounded = [f for f in faults(seen(at(steps, EMBEDDING, CODES[code]))) if f.check == "rounded"]
        assert [(f.steps, f.layer) for f in rounded] == [(tuple(steps), EMBEDDING)]
    assert faults_of(at(STEPS, EMBEDDING, CODES[code])) == []  # it may be so from the beginning to the end, or
    assert faults_of(at(STEPS[:1], EMBEDDING, CODES[code])) == []  # at the beginning


def test_a_frozen_part_may_be_rounded_and_a_training_go_on_in_bfloat16() -> None:
    half = [name for name in healthy()[0] if "layers.0.att" in name or "embed_in" in name]
    frozen = {name: healthy()[MIDDLE][name].bfloat16().float() for name in half}
    assert faults_of(changed(healthy(), LATE, **frozen)) == []
    narrow = {s: {n: t.bfloat16().float() if s in LATE else t for n, t in w.items()} for s, w in healthy().items()}
    assert ("rounded", "note") in [(f.check, f.severity) for f in diagnose(seen(narrow))]
    assert faults_of(narrow) == []


@pytest.mark.parametrize("count", [1, 3, 7])
def test_a_tensor_of_few_values_grows_by_any_factor_from_zero(count: int) -> None:
    gates = {s: torch.arange(1, count + 1) * 1e-5 * float(k) ** 3 for k, s in enumerate(STEPS)}
    series = {s: w | {"gates": gates[s]} for s, w in healthy().items()}
    assert faults_of(series) == []
    spiked = changed(series, [MIDDLE], gates=gates[MIDDLE] + 1e3 * torch.eye(count)[0])
    assert faults_of(spiked) == [("outlier", (MIDDLE,), "gates")]


def test_one_value_of_a_vector_may_outgrow_the_rest_from_zero() -> None:
    bias = {s: torch.eye(24)[3] * k / 10 + 1e-3 * k for k, s in enumerate(STEPS)}
    assert faults_of({s: w | {"logit_bias": bias[s]} for s, w in healthy().items()}) == []


def padded(k: int, weight: torch.Tensor) -> torch.Tensor:
    """Zero rows that leave zero together."""
    return torch.cat([weight, torch.full((22, 32), 0.01 * k)])


def merging(k: int, weight: torch.Tensor) -> torch.Tensor:
    """Rows that hardly differ, and after a while do not."""
    rows = healthy()[STEPS[k]][EMBEDDING][:1].repeat(22, 1)
    return torch.cat([weight, rows + (k < 8) * 3e-5 * torch.randn(22, 32, generator=torch.Generator().manual_seed(k))])


@pytest.mark.parametrize("rows", [padded, merging])
def test_rows_that_are_equal_are_not_quantised(rows: Callable[[int, torch.Tensor], torch.Tensor]) -> None:
    series = {s: w | {EMBEDDING: rows(k, w[EMBEDDING])} for k, (s, w) in enumerate(healthy().items())}
    assert faults_of(series) == []
    copied = series[MIDDLE][EMBEDDING].clone()
    copied[5] = copied[9]
    found = faults_of(changed(series, [MIDDLE], **{EMBEDDING: copied}))
    assert ("copied rows", (MIDDLE,), EMBEDDING) in found


def test_one_huge_matrix_makes_no_copies_of_other_steps() -> None:
    few = dict(list(healthy().items())[:10])
    step, first = list(few)[4], next(iter(few.values()))
    found = faults_of(changed(few, [step], **{MATRIX: 3e38 * first[MATRIX].sign()}))
    assert {steps for _, steps, _ in found} == {(step,)}


def test_blocks_that_stay_zero_are_pruned_and_the_end_of_a_file_is_lost() -> None:
    def zero(rows: slice = slice(None), columns: slice = slice(None)) -> Change:
        def change(tensor: torch.Tensor) -> torch.Tensor:
            new = tensor.clone()
            new[rows, columns] = 0
            return new

        return change

    for head in (zero(rows=slice(8, 16)), zero(columns=slice(0, 8))):
        assert checks(diagnose(seen(at(LATE, MATRIX, head)))) == [("dead layer", "note", (MIDDLE,))]
    for part, steps in (
        (zero(rows=slice(24, 32)), LATE),
        (zero(rows=slice(8, 16)), LATE[:1]),
        (zero(slice(3, 4)), LATE),
    ):
        assert ("dead layer", (MIDDLE,), MATRIX) in faults_of(at(steps, MATRIX, part))


@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize("count", [1, 3, len(LATE)])
def test_a_vector_that_stays_old_while_others_of_its_kind_move(lag: int, count: int) -> None:
    """One that stays to the end may be frozen, alone too."""
    old = healthy()[STEPS[7 - lag]][BIAS]
    still = [f for f in faults(seen(changed(healthy(), LATE[:count], **{BIAS: old}))) if f.check == "still"]
    if (lag, count) == (1, len(LATE)):
        assert not still
        return
    assert still
    assert {f.layer for f in still} == {BIAS}
    assert set(LATE[:count]) <= {step for f in still for step in f.steps}


def test_vectors_of_a_kind_may_be_frozen_together() -> None:
    """For longer than from one checkpoint to the next."""
    norms = {n: t for n, t in healthy()[MIDDLE].items() if "norm" in n}
    assert {check for check, *_ in faults_of(changed(healthy(), LATE[:2], **norms))} == {"still"}
    assert faults_of(changed(healthy(), LATE, **norms)) == []
    assert faults_of(changed(healthy(), LATE[:4], **norms)) == []


def test_the_same_words_about_several_tensors_steps_or_files_are_one() -> None:
    notes = [
        Finding("leap", "note", (k,), f"layers.{k}", f"layers.{k}: moves {k}.5 times at step {k}") for k in range(16)
    ]
    (one,) = merged(notes)
    assert one.steps == tuple(range(16))
    assert "15 times more (layers.1, layers.2, layers.3 and 12 more)" in one.message
    few = [Finding("leap", "fault", (k,), "", f"at step {k}") for k in range(3)]
    assert merged(few) == few
    said = merged_remarks([f"step {k}: a_{k}.pt also holds an optimizer" for k in range(16)] + ["one model of two"])
    assert said[1:] == ["one model of two"]
    assert said[0].startswith("step 0: a_0.pt also holds an optimizer (and so: ")


def test_parts_may_learn_in_turn_and_a_block_be_skipped() -> None:
    """Layers without a bias too; one matrix alone may not, as it would be if it were the checkpoint's before."""
    series = Training(seed=11, steps=STEPS, layers=2, noise=0.1, drift=0.3).weights()
    block = [name for name in series[0] if ".layers.1." in name]
    names, half = list(series[0]), len(series[0]) // 2
    for part in (names[:half], names[half:]):
        in_turn = {s: w | {n: series[STEPS[k - k % 2]][n] for n in part} for k, (s, w) in enumerate(series.items())}
        assert "still" not in {check for check, *_ in faults_of(in_turn)}
    for part, is_fault in ((block, False), (block[:3], True), ([MATRIX], True)):
        skipped = changed(series, [MIDDLE], **{n: series[STEPS[6]][n] for n in part})
        assert ("still" in {check for check, *_ in faults_of(skipped)}) == is_fault


def test_the_rate_may_end_at_zero() -> None:
    ended = {s: healthy()[min(s, MIDDLE)] for s in STEPS}
    assert faults_of(ended) == []
    assert [check for check, *_ in faults_of({s: healthy()[min(s, STEPS[-2])] for s in STEPS})] == ["duplicate"]
