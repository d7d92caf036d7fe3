"""Commands that read weights do so without torch, whose import costs more than most of them."""

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch
from safetensors.torch import save_file
from small_studies import SHAPES

import toposcope as ts

STEPS = (0, 10)


def weights(seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def write(folder: Path, ending: str, dtype: torch.dtype) -> Path:
    folder.mkdir()
    for step in STEPS:
        tensors, path = weights(step, dtype), folder / f"step_{step}{ending}"
        if ending == ".safetensors":
            save_file(tensors, path)
        else:
            name = next(iter(tensors))
            torch.save({"model": tensors | {"tied.weight": tensors[name], "turned.weight": tensors[name].T}}, path)
    return folder


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command where torch cannot be imported, in no process."""
    forbidden = tmp_path / "forbidden"
    forbidden.mkdir(exist_ok=True)
    (forbidden / "torch.py").write_text("raise ImportError('torch is imported')\n")
    path = os.pathsep.join([str(forbidden), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    command = [sys.executable, "-c", "from toposcope.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False)


@pytest.mark.slow
def test_measure_needs_no_torch_and_gives_the_same(tmp_path: Path) -> None:
    names = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
    folders = [
        write(tmp_path / f"{name}{e}", e, dtype) for dtype, name in names.items() for e in (".safetensors", ".pt")
    ]
    out = tmp_path / "features.parquet"
    done = run(tmp_path, "measure", *map(str, folders), "--out", str(out), "--workers", "1")
    assert done.returncode == 0, done.stderr
    measured = pl.read_parquet(out)
    for folder in folders:
        assert measured.filter(run=folder.name).equals(ts.measure(folder)), folder.name


@pytest.mark.parametrize(("command", "ending"), [("layers", ".safetensors"), ("doctor", ".pt")])
def test_looking_needs_no_torch(command: str, ending: str, tmp_path: Path) -> None:
    done = run(tmp_path, command, str(write(tmp_path / "run", ending, torch.bfloat16)))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_worker_processes_need_no_torch(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", ".safetensors", torch.float32)
    done = run(tmp_path, "measure", str(folder), "--workers", "2", "--json")
    assert done.returncode == 0, done.stderr
