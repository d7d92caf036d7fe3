"""Looks at whether each parameter has a gradient and moves, between measurements and for a small part of their cost."""

from collections.abc import Callable, Mapping, Sequence
from math import gcd, prod
from typing import TYPE_CHECKING

from toposcope.checkpoints import Layer
from toposcope.monitor.events import Looked
from toposcope.monitor.norms import has_nonzero
from toposcope.monitor.shards import Copy

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter

SAMPLE = 256  # weights of a matrix whose step is looked at; cosines of random directions have a deviation of 1/16
LOOKS_A_PLAN = 100  # looks in the planned steps, at most: several see a dead block within 5% of these
LOOKS_A_DOUBLING = 35  # while the steps double, at most, so that early steps and runs without a plan are looked at


def interval(step: int, last_step: int | None) -> int:
    """Return the number of steps to the next look."""
    return max(1, min(step // LOOKS_A_DOUBLING, (last_step or step * LOOKS_A_PLAN) // LOOKS_A_PLAN))


class Looks:
    """Looks at the parameters of a model that is not sharded; `training` returns of each whether it is trained now."""

    def __init__(
        self,
        parameters: "Mapping[str, Parameter]",
        layers: Sequence[Layer],
        training: Callable[[], Sequence[tuple[bool, bool]]],
    ) -> None:
        self._parameters, self._training = parameters, training
        self._units = {layer.name: int(layer.transposed) for layer in layers}
        self._strides = {name: _stride(parameters[name].shape) for name in self._units}
        self._matrices, self._others = list[str](), list[str]()  # that are trained now
        self._before: Tensor | None = None

    @property
    def is_prepared(self) -> bool:
        """Whether `before` was called for the step in progress."""
        return self._before is not None

    def before(self) -> None:
        """Copy some weights of each matrix, before the optimizer's step."""
        trained = [name for name, now in zip(self._parameters, self._training(), strict=True) if all(now)]
        self._matrices = [name for name in trained if name in self._units]
        self._others = [name for name in trained if name not in self._units]
        self._before = self._samples(self._parameters)

    def after(self, step: int) -> "PendingLook":
        """Look after the optimizer's step that was prepared, without waiting for a GPU."""
        import torch

        before, self._before = self._before, None
        assert before is not None
        with torch.no_grad():
            found = ((name, self._parameters[name].grad) for name in (*self._matrices, *self._others))
            gradients = {name: g.detach() for name, g in found if g is not None}
            dense = {name: g for name, g in gradients.items() if not g.is_sparse}
            others = [name for name in self._others if name in dense]
            largest = torch._foreach_norm([dense[name] for name in others], float("inf")) if others else ()  # noqa: SLF001
            active = dict(zip(others, largest, strict=True))
            active |= {
                name: has_nonzero(dense[name], self._units[name]).sum() for name in self._matrices if name in dense
            }
            known = {name: torch.ones(()) for name in gradients.keys() - dense.keys()}
            names = (*self._matrices, *self._others)
            none = torch.zeros(1, device=before.device)
            counts = [active.get(n, known.get(n, none)).to(none.device, none.dtype).reshape(1) for n in names]
            moved, slopes = self._samples(self._parameters) - before, self._samples(dense)
            sizes = moved.norm(dim=1) * slopes.norm(dim=1)
            table = torch.cat([none[:0], *counts, (moved != 0).sum(1), (moved * slopes).sum(1), sizes])
        units = [self._parameters[name].shape[self._units[name]] for name in self._matrices]
        return PendingLook(step, names, units, Copy(table))

    def _samples(self, tensors: "Mapping[str, Tensor]") -> "Tensor":
        """Return some elements of each matrix, a row each, on the device of the first parameter; 0 of absent ones."""
        import torch

        home = next(iter(self._parameters.values())).device
        rows = torch.zeros(len(self._matrices), SAMPLE, device=home)
        for row, name in zip(rows, self._matrices, strict=True):
            if name in tensors:
                sample = tensors[name].detach().reshape(-1)[:: self._strides[name]][:SAMPLE]
                row[: len(sample)] = sample
        return rows


def _stride(shape: Sequence[int]) -> int:
    """Return the distance of sampled weights, by which they are of all rows and columns."""
    stride = max(1, prod(shape) // SAMPLE)
    while gcd(stride, shape[-1]) > 1:
        stride -= 1
    return stride


class PendingLook:
    """A look whose copy from a GPU may not be complete: names of matrices, then of others, and units of the first."""

    def __init__(self, step: int, names: Sequence[str], units: Sequence[int], table: Copy) -> None:
        self.step, self._names, self._units, self._table = step, names, units, table

    def event(self) -> Looked:
        """Wait for the copy, and return what was seen."""
        table, n = self._table.tensor().tolist(), len(self._units)
        active, (changed, products, sizes) = table[: len(self._names)], (table[k - 3 * n :][:n] for k in (0, n, 2 * n))
        return Looked(
            self.step,
            gradients=dict(zip(self._names, (a > 0 for a in active), strict=True)),
            dead_units={x: 1 - a / u for x, a, u in zip(self._names, active, self._units, strict=False) if a},
            changed={x: c / SAMPLE for x, c, s in zip(self._names, changed, sizes, strict=False)},
            cosines={x: p / s for x, p, s in zip(self._names, products, sizes, strict=False) if s},
        )
