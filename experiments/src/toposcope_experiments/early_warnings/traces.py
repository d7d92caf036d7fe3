"""What was recorded of each run, step by step, and its files: the one interface of the population and its referee."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save

from toposcope.extend import ToposcopeError, Vector, write_bytes

QUIET = "quiet"
NETWORK = "network"
TRACES = ".traces.safetensors"  # how the names of files of traces end


@dataclass(frozen=True)
class Quantity:
    """A quantity of one run, by place: value ``k`` is of the weights and the batch of step ``k * cadence``."""

    cadence: int  # steps between two measurements
    values: NDArray[np.float32]  # shape (n, places)
    places: tuple[str, ...]  # the network or a layer, a column each
    cost: float  # CPU seconds of one measurement of one run, all places together


@dataclass(frozen=True)
class Trace:
    """A run: its loss at every step, before the update of that step, and what else was measured.

    A run ends early at its first loss that is not finite, which is its last.
    """

    run: str
    kind: str  # of trouble; `QUIET` for none
    variant: str  # of model and optimizer
    seed: int
    planted: int | None  # first step whose update or batch is tampered with; None where trouble arises by itself
    steps: int
    loss: Vector  # shape (steps,), nats
    quantities: Mapping[str, Quantity]


class _Quantity(msgspec.Struct):
    cadence: int
    places: tuple[str, ...]
    cost: float


class _Trace(msgspec.Struct):
    run: str
    kind: str
    variant: str
    seed: int
    planted: int | None
    quantities: dict[str, _Quantity]


def write_traces(path: Path, traces: Sequence[Trace]) -> None:
    """Write traces into one safetensors file, whole or not at all."""
    described, tensors = [], {}
    for i, trace in enumerate(traces):
        kept = {name: _Quantity(q.cadence, q.places, q.cost) for name, q in trace.quantities.items()}
        described.append(_Trace(trace.run, trace.kind, trace.variant, trace.seed, trace.planted, kept))
        tensors[f"{i}.loss"] = np.ascontiguousarray(trace.loss, dtype=np.float64)
        for name, quantity in trace.quantities.items():
            tensors[f"{i}.{name}"] = np.ascontiguousarray(quantity.values, dtype=np.float32)
    write_bytes(path, save(tensors, metadata={"traces": msgspec.json.encode(described).decode()}))


def read_traces(folder: Path) -> Iterator[Trace]:
    """Yield the traces of all files of a folder, one at a time, in the order of the files' names."""
    paths = sorted(folder.glob(f"*{TRACES}"))
    if not paths:
        raise ToposcopeError(f"{folder}: holds no traces (*{TRACES}); train the population first")
    for path in paths:
        try:
            with safetensors.safe_open(path, "np") as file:
                for i, each in enumerate(msgspec.json.decode(file.metadata()["traces"], type=list[_Trace])):
                    yield _read(file, i, each)
        except (OSError, safetensors.SafetensorError, KeyError, TypeError, msgspec.MsgspecError) as error:
            raise ToposcopeError(f"{path}: cannot be read as traces ({error}); remove it to train again") from error


def _read(file: Any, i: int, described: _Trace) -> Trace:
    loss = file.get_tensor(f"{i}.loss")
    quantities = {
        name: Quantity(kept.cadence, file.get_tensor(f"{i}.{name}"), kept.places, kept.cost)
        for name, kept in described.quantities.items()
    }
    d = described
    return Trace(d.run, d.kind, d.variant, d.seed, d.planted, len(loss), loss, quantities)
