"""Peak memory of measuring one large checkpoint, beside its largest tensor.

    python benchmarks/memory.py [--quick]

A sharded safetensors checkpoint in the shape of a GPT-NeoX is written, and ``toposcope measure`` is run on it in a
process of its own, with one worker. The same command on a small checkpoint gives what the interpreter and its
libraries take by themselves.
"""

import json
import re
import resource
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import torch
from safetensors.torch import save_file

import toposcope
from bench import Column, command, show, write

Row = dict[str, object]

PROBES = {
    "neural persistence": ["neural_persistence"],
    "controls": ["controls"],
    "both": ["neural_persistence", "controls"],
}
WORK = (("bfloat16", 2048, 26), ("float32", 2048, 11))
"""Number format, width and layers: about 3 GB each."""
QUICK = (("bfloat16", 256, 4), ("float32", 256, 4))
VOCABULARY = 50304

COLUMNS = (
    Column("checkpoint, GB", "gigabytes"),
    Column("dtype", "dtype"),
    Column("probes", "probes"),
    Column("largest tensor, MB", "largest"),
    Column("peak, MB", "peak"),
    Column("of it libraries, MB", "libraries"),
    Column("(peak - libraries) / largest", "ratio"),
    Column("asked: 1.5 x largest + 300, MB", "asked"),
    Column("seconds", "seconds"),
)


@command("memory", "small checkpoints", None)
def main(quick: bool, out: Path) -> None:
    """Measure and write the results."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        small = _checkpoint(Path(folder) / "small", "float32", 64, 2)
        for dtype, width, layers in QUICK if quick else WORK:
            large = _checkpoint(Path(folder) / dtype, dtype, width, layers)
            for name, probes in PROBES.items():
                rows.append({"dtype": dtype, "probes": name, **_compared(large, small, probes)})
            shutil.rmtree(large)
    facts = {"unit": "peak resident memory of a process of its own, one worker", "quick": quick}
    show(rows, COLUMNS, "Peak memory of measuring one checkpoint")
    write("memory", out, facts, {"Measuring one checkpoint": (rows, COLUMNS)}, ("torch", "numba", "toposcope"))


def _checkpoint(folder: Path, dtype: str, width: int, layers: int) -> Path:
    """Write a model folder: a shard for each block, one for the embedding, one for the head."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "attention.query_key_value": (3 * width, width),
        "attention.dense": (width, width),
        "mlp.dense_h_to_4h": (4 * width, width),
        "mlp.dense_4h_to_h": (width, 4 * width),
    }
    vocabulary = VOCABULARY if width >= 1024 else 4 * width
    shards: list[dict[str, tuple[int, int]]] = [
        {"gpt_neox.embed_in.weight": (vocabulary, width)},
        *({f"gpt_neox.layers.{k}.{name}.weight": shape for name, shape in shapes.items()} for k in range(layers)),
        {"embed_out.weight": (vocabulary, width)},
    ]
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        drawn = {n: torch.randn(s, generator=generator).mul_(0.02).to(getattr(torch, dtype)) for n, s in shard.items()}
        save_file(drawn, folder / file)
        weight_map |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def _compared(large: Path, small: Path, probes: list[str]) -> Row:
    """Measure a large checkpoint and a small one."""
    (checkpoint,) = toposcope.series(large)
    stored = sum(entry.n_bytes for entry in checkpoint.entries)
    largest = max(entry.n_bytes for entry in checkpoint.entries)
    libraries, _ = _peak(small, probes)
    peak, seconds = _peak(large, probes)
    return {
        "gigabytes": f"{stored / 1e9:.2f}",
        "largest": f"{largest / 1e6:.0f}",
        "peak": f"{peak / 1e6:.0f}",
        "libraries": f"{libraries / 1e6:.0f}",
        "ratio": f"{(peak - libraries) / largest:.2f}",
        "asked": f"{1.5 * largest / 1e6 + 300:.0f}",
        "seconds": f"{seconds:.0f}",
    }


def _peak(folder: Path, probes: list[str]) -> tuple[int, float]:
    """Return the peak resident bytes of measuring a checkpoint in a new process, and the seconds it took."""
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        return alone.submit(_measure, folder, probes).result()


def _measure(folder: Path, probes: list[str]) -> tuple[int, float]:
    begin = perf_counter()
    toposcope.measure(folder, probes=[{"name": name} for name in probes])
    return _highest(), perf_counter() - begin


def _highest() -> int:
    """Return the peak resident bytes of this process; where the system tells it, without those of its parent."""
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text("ascii"), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return 1024 * int(found[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
