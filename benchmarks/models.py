"""The main job on models of real size: `toposcope measure` with default probes, on random weights.

    python benchmarks/models.py [--quick]

Safetensors checkpoints are written in the shapes of GPT-2 small, without its embedding and with it (which is its head
too), and of a model of a thousand million parameters. The command runs in a process of its own, on one worker and on
two. Kernels are compiled beforehand, by measuring a small checkpoint.
"""

import json
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter

import polars as pl
import torch
from safetensors.torch import save_file

from bench import Column, alone, command, show, write

Row = dict[str, object]
Shapes = Mapping[str, tuple[int, int]]

GPT2 = {"attn.c_attn": (768, 2304), "attn.c_proj": (768, 768), "mlp.c_fc": (768, 3072), "mlp.c_proj": (3072, 768)}
NEOX = {
    "attention.query_key_value": (6144, 2048),
    "attention.dense": (2048, 2048),
    "mlp.dense_h_to_4h": (8192, 2048),
    "mlp.dense_4h_to_h": (2048, 8192),
}
SPREAD = 0.02
"""Standard deviation of the weights."""

COLUMNS = (
    Column("model", "model"),
    Column("layers", "layers"),
    Column("parameters measured", "parameters"),
    Column("workers", "workers"),
    Column("seconds", "seconds"),
    Column("said beforehand", "said"),
    Column("layers whose H1 is of landmarks", "landmarks"),
    Column("peak memory of the largest process, MB", "megabytes"),
)


@command("models", "a few small layers", None)
def main(quick: bool, out: Path) -> None:
    """Measure models and write the results."""
    gpt2, neox = blocks("transformer.h", GPT2, 12), blocks("gpt_neox.layers", NEOX, 16)
    models: list[tuple[str, Shapes, Sequence[int]]] = [
        ("GPT-2 small, 12 blocks", gpt2, (1, 2)),
        ("GPT-2 small, 12 blocks and the tied head", {**gpt2, "transformer.wte.weight": (50257, 768)}, (1, 2)),
        ("1B, 16 blocks", neox, (2,)),
    ]
    if quick:
        models = [("small", blocks("transformer.h", {"attn.c_proj": (96, 96)}, 2), (1, 2))]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        warm = checkpoint(Path(folder) / "warm", {"transformer.h.0.mlp.c_fc.weight": (1100, 64)})
        measure(warm, 2)
        for name, shapes, workers in models:
            path = checkpoint(Path(folder) / "model", shapes)
            rows += [{"model": name, **measured(path, shapes, n)} for n in workers]
            path.unlink()
    show(rows, COLUMNS, "The main job")
    facts = {
        "command": "toposcope measure FILE --workers N --out TABLE, default probes, float32 weights",
        "seconds": "of the whole command, once; kernels compiled beforehand",
        "weights": f"normal, standard deviation {SPREAD}",
    }
    write("models", out, facts, {"The main job": (rows, COLUMNS)}, ("toposcope", "numpy", "numba", "torch"))


def blocks(prefix: str, shapes: Shapes, count: int) -> dict[str, tuple[int, int]]:
    """Return the weights of blocks, by name."""
    return {f"{prefix}.{k}.{name}.weight": shape for k in range(count) for name, shape in shapes.items()}


def checkpoint(path: Path, shapes: Shapes) -> Path:
    """Write random weights."""
    generator = torch.Generator().manual_seed(0)
    weights = {name: SPREAD * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    path = path.with_suffix(".safetensors")
    save_file(weights, path, metadata={"format": "pt"})
    return path


def measured(path: Path, shapes: Shapes, workers: int) -> Row:
    """Measure a model in a new process, and tell what it took."""
    seconds, said, landmarks, kilobytes = alone(measure, path, workers)
    return {
        "layers": len(shapes),
        "parameters": f"{sum(m * n for m, n in shapes.values()) / 1e6:.0f} M",
        "workers": workers,
        "seconds": f"{seconds:.0f}",
        "said": said,
        "landmarks": landmarks,
        "megabytes": round(kilobytes / 1000),
    }


def measure(path: Path, workers: int) -> tuple[float, str, int, int]:
    """Run the command; return seconds, what it said they would be, layers with landmarks, and the peak in kB."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.parquet"
        command = [str(Path(sys.executable).with_name("toposcope")), "measure", str(path), "--workers", str(workers)]
        begin = perf_counter()
        done = subprocess.run([*command, "--out", str(table)], capture_output=True, text=True, check=True)
        seconds = perf_counter() - begin
        flagged = pl.read_parquet(table).filter(pl.col("flag") == "landmarks")
        layers = flagged.filter(pl.col("layer") != "network")["layer"].n_unique()
    said = re.search(r"measure: begun, (.*) to do", done.stderr)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return seconds, said.group(1) if said else json.dumps(done.stderr), layers, peak


if __name__ == "__main__":
    main()
