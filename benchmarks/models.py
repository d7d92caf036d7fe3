"""The main job on models of real size: `toposcope measure` with default probes, on random weights.

    python benchmarks/models.py [--quick] [--large]

Safetensors checkpoints are written in the shapes of GPT-2 small, without its embedding and with it (which is its head
too), and of a model of a thousand million parameters; with --large also in those of Pythia-1.4B, in bfloat16, for which
a quarter of an hour more is needed. The command runs in a process of its own, on one worker and on two. Kernels are
compiled beforehand, by measuring a small checkpoint.
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

import click
import polars as pl
import torch
from safetensors.torch import save_file

from bench import Column, alone, command, show, write

Row = dict[str, object]
Shapes = Mapping[str, tuple[int, int]]
Model = tuple[str, Shapes, torch.dtype, Sequence[int]]
"""Its name, shapes and format, and with how many workers it is measured."""

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
    Column("of processors", "processor"),
    Column("said beforehand", "said"),
    Column("layers whose H1 is of landmarks", "landmarks"),
    Column("peak memory of the largest process, MB", "megabytes"),
)


@click.option("--large", is_flag=True, help="Measure a model of 1.4 billion parameters too.")
@command("models", "a few small layers", None)
def main(quick: bool, large: bool, out: Path) -> None:
    """Measure models and write the results."""
    gpt2, neox = blocks("transformer.h", GPT2, 12), blocks("gpt_neox.layers", NEOX, 16)
    models: list[Model] = [
        ("GPT-2 small, 12 blocks", gpt2, torch.float32, (1, 2)),
        (
            "GPT-2 small, 12 blocks and the tied head",
            gpt2 | {"transformer.wte.weight": (50257, 768)},
            torch.float32,
            (1, 2),
        ),
        ("1B, 16 blocks", neox, torch.float32, (2,)),
    ]
    if large:
        ends = dict.fromkeys(("gpt_neox.embed_in.weight", "embed_out.weight"), (50304, 2048))
        models.append(("Pythia-1.4B, bfloat16", blocks("gpt_neox.layers", NEOX, 24) | ends, torch.bfloat16, (1,)))
    if quick:
        models = [("small", blocks("transformer.h", {"attn.c_proj": (96, 96)}, 2), torch.float32, (1, 2))]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        warm = checkpoint(Path(folder) / "warm", {"transformer.h.0.mlp.c_fc.weight": (1100, 64)})
        measure(warm, 2)
        for name, shapes, dtype, workers in models:
            path = checkpoint(Path(folder) / "model", shapes, dtype)
            rows += [{"model": name, **measured(path, shapes, n)} for n in workers]
            path.unlink()
    show(rows, COLUMNS, "The main job")
    facts = {
        "command": "toposcope measure FILE --workers N --out TABLE, default probes",
        "seconds": "of the whole command, once, and of all its processors; kernels compiled beforehand",
        "weights": f"normal, standard deviation {SPREAD}",
    }
    write("models", out, facts, {"The main job": (rows, COLUMNS)}, ("toposcope", "numpy", "numba", "torch"))


def blocks(prefix: str, shapes: Shapes, count: int) -> dict[str, tuple[int, int]]:
    """Return the weights of blocks, by name."""
    return {f"{prefix}.{k}.{name}.weight": shape for k in range(count) for name, shape in shapes.items()}


def checkpoint(path: Path, shapes: Shapes, dtype: torch.dtype = torch.float32) -> Path:
    """Write random weights."""
    generator = torch.Generator().manual_seed(0)
    weights = {k: (SPREAD * torch.randn(shape, generator=generator)).to(dtype) for k, shape in shapes.items()}
    path = path.with_suffix(".safetensors")
    save_file(weights, path, metadata={"format": "pt"})
    return path


def measured(path: Path, shapes: Shapes, workers: int) -> Row:
    """Measure a model in a new process, and tell what it took."""
    seconds, processor, said, landmarks, kilobytes = alone(measure, path, workers)
    return {
        "layers": len(shapes),
        "parameters": f"{sum(m * n for m, n in shapes.values()) / 1e6:.0f} M",
        "workers": workers,
        "seconds": f"{seconds:.0f}",
        "processor": f"{processor:.0f}",
        "said": said,
        "landmarks": landmarks,
        "megabytes": round(kilobytes / 1000),
    }


def measure(path: Path, workers: int) -> tuple[float, float, str, int, int]:
    """Run the command; return its seconds, those of processors, what it said, layers with landmarks, and peak kB."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.parquet"
        command = [str(Path(sys.executable).with_name("toposcope")), "measure", str(path), "--workers", str(workers)]
        begin = perf_counter()
        done = subprocess.run([*command, "--out", str(table)], capture_output=True, text=True, check=True)
        seconds = perf_counter() - begin
        flagged = pl.read_parquet(table).filter(pl.col("flag") == "landmarks")
        layers = flagged.filter(pl.col("layer") != "network")["layer"].n_unique()
    said = re.search(r"measure: begun, (.*) to do", done.stderr)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime
    return seconds, processor, said.group(1) if said else json.dumps(done.stderr), layers, used.ru_maxrss


if __name__ == "__main__":
    main()
