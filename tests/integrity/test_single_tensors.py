"""What is wrong with one tensor, or one value of it, while the rest of the checkpoint is right."""

import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from sick_series import Series, Training, faults, faults_of, seen

from toposcope.integrity import Finding, doctor, n_parameters

STEPS = [0, *range(100, 1600, 100)]
NORM = "gpt_neox.layers.0.input_layernorm.weight"
BIAS = "gpt_neox.layers.0.attention.dense.bias"
MATRIX = "gpt_neox.layers.0.attention.dense.weight"
EMBEDDING = "gpt_neox.embed_in.weight"


@cache
def healthy(dtype: torch.dtype = torch.float32) -> Series:
    return Training(seed=11, steps=STEPS, layers=1, noise=0.3, dtype=dtype).weights()


def changed(series: Series, steps: list[int], **tensors: torch.Tensor) -> Series:
    return {step: weights | tensors if step in steps else weights for step, weights in series.items()}


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [NORM, BIAS, MATRIX, EMBEDDING])
@pytest.mark.parametrize("size", [10.0, -1e3, 1e6, 1e20, -3e37])
def test_one_absurd_value(size: float, name: str, dtype: torch.dtype) -> None:
    series = healthy(dtype)
    for step in (0, 100, 700, STEPS[-1]):
        bad = series[step][name].clone()
        bad.view(-1)[7] = size
        assert faults_of({**series, step: series[step] | {name: bad}}) == [("outlier", (step,), name)]


def test_an_absurd_value_that_stays() -> None:
    series = {step: dict(weights) for step, weights in healthy().items()}
    for step in STEPS[5:]:
        bad = series[step][MATRIX].clone()
        bad[3, 5] = 1e6
        series[step][MATRIX] = bad
    (finding,) = faults(seen(series))
    assert (finding.check, finding.steps, finding.layer) == ("outlier", (STEPS[5],), MATRIX)
    assert "(3, 5)" in finding.message


def test_the_statistics_of_batch_norms_are_looked_at_and_are_no_parameters() -> None:
    """Moving averages of what the batches hold, which go on with the weights and scatter."""
    generator = torch.Generator().manual_seed(0)
    plain = {
        s: w | {f"bn.running_{k}": 1 + s / 1000 + 0.05 * torch.rand(24, generator=generator) for k in ("mean", "var")}
        for s, w in healthy().items()
    }
    assert faults_of(plain) == []
    for name, size in (("bn.running_mean", 1e3), ("bn.running_var", 3e37)):
        bad = plain[700][name].clone()
        bad[7] = size
        assert faults_of(changed(plain, [700], **{name: bad})) == [("outlier", (700,), name)]
    assert faults_of(changed(plain, [700], **{"bn.running_var": plain[200]["bn.running_var"]})) == [
        ("still", (700,), "bn.running_var")
    ]
    negative = changed(
        plain, [700], **{"bn.running_var": plain[700]["bn.running_var"] * torch.tensor([-1.0] + [1] * 23)}
    )
    assert ("non-finite", (700,), "bn.running_var") in faults_of(negative)
    counts = [n_parameters(seen({700: weights})[0]) for weights in (plain[700], healthy()[700])]
    assert counts[0] == counts[1]


def test_a_value_that_grows_is_no_fault() -> None:
    """As outlying dimensions of a norm's weight do, in step with the rest or ahead of it."""
    series = {step: dict(weights) for step, weights in healthy().items()}
    for k, step in enumerate(STEPS):
        large = series[step][NORM].clone()
        large[4] = 1 + 0.15 * k**1.5
        series[step][NORM] = large
    assert faults_of(series) == []


@pytest.mark.parametrize("name", [NORM, BIAS])
@pytest.mark.parametrize("steps", [[700], [STEPS[-1]], STEPS[6:]])
def test_a_vector_of_zeros(name: str, steps: list[int]) -> None:
    zero = torch.zeros_like(healthy()[0][name])
    assert ("dead layer", tuple(steps), name) in faults_of(changed(healthy(), steps, **{name: zero}))


def test_vectors_that_may_be_zero() -> None:
    """A bias that is never used, and norm weights that are added to 1."""
    series = {step: dict(weights) for step, weights in healthy().items()}
    for step, weights in series.items():
        for name in [n for n in weights if "norm" in n and n.endswith("weight")]:
            weights[name] = (weights[name] - 1) * (step > 0)
        weights[BIAS] = torch.zeros_like(weights[BIAS])
    assert faults_of(series) == []


def _saved(folder: Path) -> None:
    for step, weights in list(healthy().items())[:3]:
        state = {"optimizer": {"moments": torch.rand(100)}, "model_state_dict": weights}
        torch.save(state, folder / f"step_{step}.pt")


def _flipped(path: Path, record: str) -> None:
    """Flip the lowest bit of a number in the middle of a record."""
    with zipfile.ZipFile(path) as archive:
        info = next(i for i in archive.infolist() if i.filename.endswith(record))
    content = bytearray(path.read_bytes())
    begin = (
        info.header_offset
        + 30
        + sum(int.from_bytes(content[info.header_offset + k : info.header_offset + k + 2], "little") for k in (26, 28))
    )
    content[begin + info.file_size // 8 * 4] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("record", ["/data/0", "/data/3", "/data/7"])
def test_a_flipped_bit_in_a_torch_file(tmp_path: Path, record: str) -> None:
    """Of any record: weights, the state of an optimizer."""
    _saved(tmp_path)
    assert doctor(tmp_path, deep=True).findings == []
    _flipped(tmp_path / "step_100.pt", record)
    (finding,) = doctor(tmp_path, deep=True).findings
    assert (finding.check, finding.severity, finding.steps) == ("damaged", "fault", (100,))
    assert record.lstrip("/") in finding.message
    assert "CRC-32" in finding.message


def test_torch_files_without_checksums(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        _saved(tmp_path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert doctor(tmp_path, deep=True).findings == []


def test_findings_say_what_to_do() -> None:
    bad = healthy()[700][MATRIX].clone()
    bad[0, 0] = 1e3
    found: list[Finding] = faults(seen(changed(healthy(), [700], **{MATRIX: bad})))
    assert all("fetch or save" in finding.message for finding in found)
    assert np.all([MATRIX in finding.message for finding in found])
