"""What the probes need is compiled once on a machine, however many monitors begin."""

from pathlib import Path

import pytest

from toposcope.monitor import warm_up
from toposcope.monitor.monitor import DEFAULT_PROBES


def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(warm_up, "marker", lambda dtype: tmp_path / dtype)

    def compile_all(_probes: object, dtype: str) -> None:
        compiled.append(dtype)
        (tmp_path / dtype).touch()

    monkeypatch.setattr(warm_up, "warm_up", compile_all)
    for dtype in ("float32", "float32", "bfloat16"):
        warm_up.warm_up_once(DEFAULT_PROBES, dtype)
    assert compiled == ["float32", "bfloat16"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", warm_up.DTYPES)
def test_a_process_of_its_own_compiles_for_every_dtype(dtype: str) -> None:
    process = warm_up.in_background(DEFAULT_PROBES, dtype)
    assert process.wait() == 0
    assert warm_up.marker(dtype).exists()
