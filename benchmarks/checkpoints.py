"""Checkpoints: listing a series and reading its weights, beside safetensors, torch and a bare sequential read.

    python benchmarks/checkpoints.py [--quick]

Every contestant must first find the same tensors, or the same bytes. The files are made anew and removed.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

import click
import numpy as np
import torch
from rich.progress import track
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from bench import Column, command, interleaved, ratio, show, write
from result_files import Spread
from toposcope.checkpoints import series

Row = dict[str, object]
Shapes = dict[str, tuple[int, ...]]
Listing = list[tuple[str, tuple[int, ...]]]

BUFFER = 1 << 22
"""Bytes the bare read asks for at a time, into one buffer; it is fastest so."""
VOCABULARY = 50304
SHARDS = 4

LISTED = (
    Column("format", "format"),
    Column("tensors", "tensors"),
    Column("contestant", "contestant"),
    Column("its s / 1000 tensors", "theirs"),
    Column("toposcope s / 1000 tensors", "ours"),
    Column("toposcope / contestant", "ratio"),
)
READ = (
    Column("work", "work"),
    Column("files", "files"),
    Column("bare, MB/s", "theirs"),
    Column("toposcope, MB/s", "ours"),
    Column("time of toposcope / bare", "ratio"),
)


@command("checkpoints", "few and small checkpoints, 3 repeats")
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure how long the layers of a series take to list, and what reading and hashing costs above the bare bytes.

    The contestants are sampled in turn. Every ratio is that of neighbouring samples, and in brackets stand the lowest
    and the highest.
    """
    repeats = 3 if quick else repeats
    count, width, blocks = (8, 256, 2) if quick else (154, 2048, 6)
    with tempfile.TemporaryDirectory(prefix="toposcope-bench-") as folder:
        listed = listing(Path(folder), count, repeats)
        read, size = reading(Path(folder), width, blocks, repeats)
    tables = {"Listing every layer of a series": (listed, LISTED), "Reading a sharded checkpoint": (read, READ)}
    for title, (rows, columns) in tables.items():
        show(rows, columns, title)
    facts = {
        "samples": f"{repeats} of each contestant in turn; median (lowest-highest)",
        "series": f"{count} checkpoints of a GPT-NeoX of 12 blocks with tiny matrices, opened and listed anew each "
        "time: names, roles, shapes, dtypes, no data; the others list names, shapes and dtypes of each file",
        "checkpoint": f"{size / 1e6:.0f} MB of bfloat16 matrices in {SHARDS} safetensors files",
        "bare": f"the same bytes in the order of the files, {BUFFER >> 20} MiB at a time into one buffer",
        "read": "every byte is touched: summed as 64-bit words; toposcope reads layer by layer",
        "hash": "SHA-256 of every byte; toposcope hashes each tensor, dtype and shape with it",
        "cached, cold": "files in the page cache, and files dropped from it before each sample",
    }
    write("checkpoints", out, facts, tables, ("toposcope", "numpy", "torch", "safetensors"))


def neox_shapes(width: int, blocks: int, vocabulary: int) -> Shapes:
    """Return every tensor of a GPT-NeoX, by name."""
    shapes: Shapes = {
        "gpt_neox.embed_in.weight": (vocabulary, width),
        "gpt_neox.final_layer_norm.weight": (width,),
        "gpt_neox.final_layer_norm.bias": (width,),
        "embed_out.weight": (vocabulary, width),
    }
    for k in range(blocks):
        block = f"gpt_neox.layers.{k}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes |= {f"{block}.{norm}.weight": (width,), f"{block}.{norm}.bias": (width,)}
        for name, rows, columns in (
            ("attention.query_key_value", 3 * width, width),
            ("attention.dense", width, width),
            ("mlp.dense_h_to_4h", 4 * width, width),
            ("mlp.dense_4h_to_h", width, 4 * width),
        ):
            shapes |= {f"{block}.{name}.weight": (rows, columns), f"{block}.{name}.bias": (rows,)}
    return shapes


def random_weights(shapes: Shapes) -> dict[str, Tensor]:
    """Make bfloat16 weights, always the same."""
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator).to(torch.bfloat16) for name, shape in shapes.items()}


def save_sharded(folder: Path, weights: dict[str, Tensor], n_shards: int) -> list[Path]:
    """Write a model folder as transformers does; return its shards."""
    folder.mkdir(parents=True)
    names = list(weights)
    bounds = np.linspace(0, len(names), n_shards + 1).astype(int)
    shard_of: dict[str, str] = {}
    for k in range(n_shards):
        shard = f"model-{k + 1:05d}-of-{n_shards:05d}.safetensors"
        part = names[bounds[k] : bounds[k + 1]]
        save_file({name: weights[name] for name in part}, folder / shard, metadata={"format": "pt"})
        shard_of |= dict.fromkeys(part, shard)
    index = {"metadata": {}, "weight_map": shard_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return sorted(folder.glob("*.safetensors"))


def listing(folder: Path, count: int, repeats: int) -> list[Row]:
    """Time the listing of a series in three formats beside the library of each."""
    weights = random_weights(neox_shapes(4, 12, 16))
    kinds: dict[str, tuple[str, Callable[[Path], Listing], str]] = {
        "safetensors": ("step{}.safetensors", _safetensors_listing, "safetensors safe_open"),
        "safetensors, 2 shards": ("step{}", _safetensors_listing, "safetensors safe_open"),
        "torch file": ("step{}.pt", _torch_listing, "torch.load(mmap=True)"),
    }
    rows: list[Row] = []
    for kind, (name, theirs, contestant) in track(kinds.items(), description="listing"):
        place = folder / f"series of {kind}"
        place.mkdir()
        for k in range(count):
            path = place / name.format(1000 * k)
            if kind == "torch file":
                torch.save(weights, path)
            elif path.suffix:
                save_file(weights, path)
            else:
                save_sharded(path, weights, 2)
        listers = {"theirs": partial(theirs, place), "ours": partial(_our_listing, place)}
        found = {key: sorted(lister()) for key, lister in listers.items()}
        if found["theirs"] != found["ours"]:
            raise click.ClickException(f"{kind}: {contestant} does not agree with toposcope; nothing was timed")
        tensors = count * len(weights)
        seconds = interleaved(listers, repeats)
        taken = {key: [1000 * s / tensors for s in values] for key, values in seconds.items()}
        rows.append(
            {
                "format": kind,
                "tensors": f"{count} x {len(weights)}",
                "contestant": contestant,
                "theirs": Spread.of(taken["theirs"]),
                "ours": Spread.of(taken["ours"]),
                "ratio": ratio(taken["ours"], taken["theirs"]),
            }
        )
    return rows


def reading(folder: Path, width: int, blocks: int, repeats: int) -> tuple[list[Row], int]:
    """Time reading and hashing of one checkpoint beside a bare read; return the bytes it holds too."""
    shapes: Shapes = {n: shape for n, shape in neox_shapes(width, blocks, VOCABULARY).items() if len(shape) == 2}
    place = folder / "step1000"
    files = save_sharded(place, random_weights(shapes), SHARDS)
    size = sum(end - begin for begin, end in map(_data_of, files))
    works: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "read": (partial(bare_sum, files), partial(our_sum, place)),
        "hash": (partial(bare_hash, files), partial(our_hash, place)),
    }
    if bare_sum(files) != our_sum(place):
        raise click.ClickException("the bare read does not agree with toposcope; nothing was timed")
    rows: list[Row] = []
    for state in ("cached", "cold") if hasattr(os, "posix_fadvise") else ("cached",):
        for work, (bare, ours) in track(works.items(), description=f"reading, {state}"):
            before = partial(_drop, files) if state == "cold" else _nothing
            taken = _samples({"bare": bare, "ours": ours}, repeats, before)
            rows.append(
                {
                    "work": work,
                    "files": state,
                    "theirs": Spread.of([size / 1e6 / s for s in taken["bare"]]),
                    "ours": Spread.of([size / 1e6 / s for s in taken["ours"]]),
                    "ratio": ratio(taken["ours"], taken["bare"]),
                }
            )
    return rows, size


def bare_sum(files: Sequence[Path]) -> int:
    """Sum the weights as 64-bit words, read in the order of the files."""
    return sum(int(part.view(np.uint64).sum()) for part in _parts(files)) % 2**64


def our_sum(place: Path) -> int:
    """Sum the weights as 64-bit words, read layer by layer."""
    total = 0
    for layer in series(place)[0].layers():
        total += int(layer.read_narrow().view(np.uint64).sum())
    return total % 2**64


def bare_hash(files: Sequence[Path]) -> str:
    """Hash the weights, read in the order of the files."""
    digest = hashlib.sha256()
    for part in _parts(files):
        digest.update(part.data)
    return digest.hexdigest()


def our_hash(place: Path) -> str:
    """Hash every tensor."""
    return series(place)[0].content_hash()


def _parts(files: Sequence[Path]) -> Iterator[np.ndarray]:
    """Read the data of files a part at a time, into one buffer."""
    buffer = np.empty(BUFFER, np.uint8)
    for path in files:
        begin, _ = _data_of(path)
        with path.open("rb", buffering=0) as file:
            file.seek(begin)
            while count := file.readinto(buffer.data):
                yield buffer[:count]


def _data_of(path: Path) -> tuple[int, int]:
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little"), path.stat().st_size


def _our_listing(place: Path) -> Listing:
    return [(entry.name, entry.shape) for c in series(place) for entry in (c.layers(), c.entries)[1]]


def _safetensors_listing(place: Path) -> Listing:
    found: Listing = []
    for path in sorted(place.rglob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                part = file.get_slice(name)
                part.get_dtype()
                found.append((name, tuple(part.get_shape())))
    return found


def _torch_listing(place: Path) -> Listing:
    found: Listing = []
    for path in sorted(place.iterdir()):
        weights = torch.load(path, mmap=True, weights_only=True)
        found += [(name, tuple(tensor.shape)) for name, tensor in weights.items()]
    return found


def _samples(
    contestants: dict[str, Callable[[], object]], repeats: int, before: Callable[[], None]
) -> dict[str, list[float]]:
    """Time contestants in turn, after something that is not timed."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            before()
            begin = perf_counter()
            run()
            seconds[name].append(perf_counter() - begin)
    return seconds


def _drop(files: Sequence[Path]) -> None:
    """Have the system forget what it keeps of files in memory."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _nothing() -> None:
    pass


if __name__ == "__main__":
    main()
