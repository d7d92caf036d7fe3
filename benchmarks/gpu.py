"""A GPU: neural persistence of all weights of a large model against a copy of them, and a large tree against the CPU.

    python benchmarks/gpu.py [--quick]

Results must first equal those of the CPU on smaller problems. Without a GPU it says so and ends.
"""

from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import torch
from rich.progress import track
from torch import Tensor

import matrices
from bench import AGAINST, Column, against, command, milliseconds, ratio, show, write
from result_files import Spread
from toposcope import neural_persistence, rips

Row = dict[str, object]

SHAPES = ((15_360, 5120), (5120, 5120), (20_480, 5120), (5120, 20_480))
LAYERS = 36
POINTS, DIMENSION = 50_304, 512

MODEL = (
    Column("weights", "weights"),
    Column("gigabytes", "gigabytes"),
    Column("copy, s", "copy"),
    Column("neural persistence, s", "ours"),
    Column("neural persistence / copy", "ratio"),
    Column("ms a matrix", "each"),
)


@command("gpu", "one layer, a small cloud, 3 repeats")
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure neural persistence and a Euclidean tree on a GPU.

    The contestants are sampled in turn. Every ratio is that of neighbouring samples, and in brackets stand the lowest
    and the highest.
    """
    if not torch.cuda.is_available():
        print("no GPU: nothing to measure")
        return
    n_layers, n_points, repeats = (1, 4000, 3) if quick else (_layers_that_fit(), POINTS, repeats)
    check_small_problems()
    kinds = {"normal": normal, "heavy-tailed": heavy_tailed}
    of_model = [model(name, draw, n_layers, repeats) for name, draw in kinds.items()]
    tables: dict[str, tuple[list[Row], tuple[Column, ...]]] = {
        "Neural persistence of the weights of Pythia-12b's shapes, bfloat16": (of_model, MODEL),
        "H0 of a cloud": (tree(n_points, 1), AGAINST),
    }
    for title, (rows, columns) in tables.items():
        show(rows, columns, title)
    facts = {
        "gpu": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        "samples": f"{repeats} of each contestant in turn, the tree 1; median (lowest-highest)",
        "weights": f"{n_layers} layers of {', '.join(f'{m} x {n}' for m, n in SHAPES)}, all on the GPU; standard "
        "normal, or Student's t of 3 degrees of freedom",
        "copy": "the same matrices, one after another, into one buffer on the GPU",
        "cloud": f"{n_points} standard normal points in {DIMENSION} dimensions, float32, on the GPU or on the host",
    }
    write("gpu", out, facts, tables, ("toposcope", "numpy", "numba", "torch"))


def _layers_that_fit() -> int:
    """Return how many layers leave a tenth of the free memory, at most all."""
    free, _ = torch.cuda.mem_get_info()
    return max(1, min(LAYERS, int(0.9 * free) // (2 * sum(m * n for m, n in SHAPES))))


def check_small_problems() -> None:
    """Compare with the CPU."""
    cases = [("Gaussian", matrices.gaussian(768, 1024)), *matrices.hard_cases(768, 1024)]
    for name, W in track(cases, description="against the CPU"):
        for dtype in (torch.float32, torch.bfloat16):
            tensor = torch.from_numpy(W).to(dtype)
            if not np.array_equal(neural_persistence(tensor.cuda()).deaths, neural_persistence(tensor).deaths):
                raise click.ClickException(f"{name}, {dtype}: the GPU does not agree with the CPU; nothing was timed")


def normal(m: int, n: int) -> Tensor:
    """Draw standard normal weights."""
    return torch.randn((m, n), device="cuda").bfloat16()


def heavy_tailed(m: int, n: int) -> Tensor:
    """Draw weights from Student's t distribution of 3 degrees of freedom."""
    squares = torch.zeros((m, n), device="cuda")
    for _ in range(3):
        squares += torch.randn((m, n), device="cuda").square_()
    return (torch.randn((m, n), device="cuda") / (squares / 3).sqrt()).bfloat16()


def model(name: str, draw: Callable[[int, int], Tensor], n_layers: int, repeats: int) -> Row:
    """Time all layers against a copy of them."""
    torch.manual_seed(0)
    layers = [draw(m, n) for _ in range(n_layers) for m, n in SHAPES]
    buffer = torch.empty(max(layer.numel() for layer in layers), dtype=torch.bfloat16, device="cuda")

    def copy() -> None:
        for layer in layers:
            buffer[: layer.numel()].copy_(layer.view(-1))
        torch.cuda.synchronize()

    def measure() -> None:
        for layer in layers:
            neural_persistence(layer)

    taken = milliseconds({"copy": copy, "ours": measure}, repeats)
    return {
        "weights": name,
        "gigabytes": round(sum(layer.nbytes for layer in layers) / 1e9, 1),
        "copy": Spread.of([ms / 1000 for ms in taken["copy"]]),
        "ours": Spread.of([ms / 1000 for ms in taken["ours"]]),
        "ratio": ratio(taken["ours"], taken["copy"]),
        "each": Spread.of([ms / len(layers) for ms in taken["ours"]]),
    }


def tree(n_points: int, repeats: int) -> list[Row]:
    """Time the Euclidean minimum spanning tree on the GPU and on the CPU."""
    points = torch.randn((n_points, DIMENSION), generator=torch.Generator().manual_seed(0))
    on_gpu = points.cuda()
    return against(
        f"{n_points} points, {DIMENSION} dimensions",
        lambda: rips(on_gpu, max_dimension=0)[0].pairs[:, 1],
        {"toposcope on the CPU": lambda: rips(points, max_dimension=0)[0].pairs[:, 1]},
        repeats,
        (1 - 1e-12, 1 + 1e-12),
    )


if __name__ == "__main__":
    main()
