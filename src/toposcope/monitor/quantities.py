"""What a step of training did to every parameter, taken on the training thread in one small tensor."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from enum import IntEnum, auto
from math import isfinite, sqrt
from typing import TYPE_CHECKING

from toposcope.checkpoints import Layer
from toposcope.errors import ToposcopeError
from toposcope.monitor.gathering import Copy, rank
from toposcope.monitor.norms import distances, has_nonzero, nonfinite, norms, precision
from toposcope.monitor.shards import Sharding, Slots, as_placed, local

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter
    from torch.nn.parallel import DistributedDataParallel

NETWORK = "network"
GROUPS = 4
"""About so many due steps measure the update of every parameter once: more than its share of the weights is never
copied, unless one parameter is larger."""


class _Column(IntEnum):
    """What is summed over ranks, for each parameter."""

    WEIGHT = 0
    GRADIENT = auto()
    BEFORE = auto()
    UPDATE = auto()
    NONFINITE = auto()
    NONFINITE_GRADIENTS = auto()
    GRADIENTS = auto()
    ACTIVE = auto()


SQUARES = (_Column.WEIGHT, _Column.GRADIENT, _Column.BEFORE, _Column.UPDATE)
COMPARED = {"weight_norm": _Column.WEIGHT, "gradient_norm": _Column.GRADIENT}
"""By what ranks that should have the same weights are compared."""


class Quantities:
    """Norms and counts of the parameters of a model, step by step.

    All ranks that hold a part of the model make the same calls at the same steps: their parts are added up in one
    reduction. A rank that cannot go on says so when the ranks `agree` next. Where no parameter is a DTensor, nothing
    is communicated, except that replicas are compared.

    Parameters
    ----------
    parameters : mapping of str to Parameter
        See `toposcope.monitor.parameters.watched`.
    layers : sequence of Layer
        The matrices among them, of which dead units are counted.
    replicated : DistributedDataParallel, optional
        The wrapper of a model of which every rank has its own; all ranks then measure, and are compared.
    """

    def __init__(
        self,
        parameters: "Mapping[str, Parameter]",
        layers: Sequence[Layer],
        replicated: "DistributedDataParallel | None" = None,
    ) -> None:
        self._names, self._parameters = list(parameters), list(parameters.values())
        self._sharding = Sharding(self._parameters)
        self._counts = [self._sharding.counts(parameter) for parameter in self._parameters]
        place = {name: k for k, name in enumerate(self._names)}
        self._units = {place[layer.name]: int(layer.transposed) for layer in layers}
        self._slots = {k: Slots(self._parameters[k], units) for k, units in self._units.items()}
        self._groups = _groups(self._parameters)
        self._turn = 0
        self._copied: dict[int, Tensor] = {}
        self._error: Exception | None = None
        self._replicated = replicated
        self._last_compared: Copy | None = None
        self._length = len(_Column) * len(self._names) + sum(slots.count for slots in self._slots.values())
        self._is_counting = self._sharding.is_sharded
        """Whether non-finite numbers are counted on a GPU, where that takes longer than the norms."""

    def before(self) -> None:
        """Copy the parameters whose turn it is, before the optimizer's step."""
        group = self._groups[self._turn % len(self._groups)] if self._groups else []
        self._turn += 1
        self._copied = {}  # frees those of a step that was not made
        try:
            self._copied = {k: local(self._parameters[k]).clone() for k in group}
        except Exception as error:  # noqa: BLE001 - raised by `after`, once the other ranks know
            self._error = error

    def after(self, *, gradients: bool = True) -> "Pending":
        """Measure the parameters, after the optimizer's step; nothing waits for a GPU unless they are sharded.

        Parameters
        ----------
        gradients : bool
            Whether the gradients are those of the last step.

        Raises
        ------
        ToposcopeError
            If parameters are sharded, on all ranks at once: one of them failed.
        """
        copied, self._copied = self._copied, {}
        error, self._error, vector = self._error, None, None
        if error is None:
            try:
                vector = self._measured(copied, gradients=gradients)
            except Exception as caught:  # noqa: BLE001 - raised below, once the other ranks know
                error = caught
        total, compared = self._exchanged(vector, error)
        if error is not None:
            raise error
        return Pending(self, total, list(copied), compared)

    @property
    def is_sharded(self) -> bool:
        """Whether several ranks hold the parameters together."""
        return self._sharding.is_sharded

    @property
    def n_ranks(self) -> int:
        """How many ranks measure together."""
        import torch.distributed as dist

        if self._sharding.mesh is not None:
            return self._sharding.mesh.size()
        return 1 if self._replicated is None else dist.get_world_size(self._replicated.process_group)

    @property
    def is_leader(self) -> bool:
        """Whether this rank decides, and keeps what is measured."""
        import torch.distributed as dist

        if self._sharding.is_sharded:
            return self._sharding.is_first
        return (rank() if self._replicated is None else dist.get_rank(self._replicated.process_group)) == 0

    def agree(self, decision: Sequence[int], *, stop: bool = False) -> list[int]:
        """Return what the leader decided; all ranks that measure together call this at the same steps.

        Parameters
        ----------
        decision : sequence of int
            Of one length on all ranks.
        stop : bool
            Whether this rank cannot go on.

        Raises
        ------
        ToposcopeError
            If a rank cannot go on: on all ranks at once, but the leader of replicas goes on alone.
        """
        import torch.distributed as dist

        leads = self.is_leader
        if not self._sharding.is_sharded and not self._is_comparing():
            if leads and not stop:
                return list(decision)
            raise ToposcopeError("the ranks are compared no longer: one of them cannot go on with measuring")
        own = self._zeros().new_tensor([*(decision if leads else [0] * len(decision)), int(stop)])
        if self._sharding.is_sharded:
            own = self._sharding.summed(own)
        elif self._replicated is not None:
            dist.all_reduce(own, group=self._replicated.process_group)
        *agreed, stopped = [int(number) for number in own.tolist()]
        if stopped and (self._sharding.is_sharded or stop or not leads):
            raise ToposcopeError(f"{stopped} of the ranks cannot go on with measuring")
        if stopped:
            self._replicated = None
        return agreed

    def part(self) -> None:
        """Compare this rank with its replicas no longer."""
        self._replicated = None

    def _is_comparing(self) -> bool:
        """Return whether this rank and its replicas are still compared; the same on all of them."""
        # With uneven inputs, a rank that has no more makes no step.
        if self._replicated is not None and self._replicated._join_config.enable:  # noqa: SLF001
            self._replicated = None
        if self._last_compared is not None and self._last_compared.tensor()[:, -1].any():
            self._replicated = None
        return self._replicated is not None

    def _zeros(self, *shape: int) -> "Tensor":
        import torch

        home = local(self._parameters[0]).device
        return torch.zeros(shape, device=home, dtype=precision(home))

    def _exchanged(self, vector: "Tensor | None", error: Exception | None) -> "tuple[Tensor, Tensor | None]":
        """Return the sum of a vector over ranks, and what replicas are compared by; None is from a rank that stops."""
        import torch

        stops = self._zeros(1) + (vector is None)
        own = self._zeros(self._length) if vector is None else vector
        if self._sharding.is_sharded:
            total = self._sharding.summed(torch.cat([own, stops]))
            if total[-1] > 0:
                raise ToposcopeError(f"{int(total[-1])} of the ranks cannot go on with measuring") from error
            return total, None
        return own, self._compared(torch.cat([own, stops]))

    def _compared(self, vector: "Tensor") -> "Tensor | None":
        """Return rank by rank the sums by which replicas are compared, and whether the rank stops."""
        import torch
        import torch.distributed as dist

        if not self._is_comparing() or self._replicated is None:
            return None
        group, n = self._replicated.process_group, len(self._parameters)
        sums = [vector[c * n : (c + 1) * n].sum() for c in COMPARED.values()]
        own = torch.stack([*sums, vector[-1]])
        found = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(found, own, group=group)
        table = torch.stack(found)
        self._last_compared = Copy(table)
        return table

    def _measured(self, copied: "dict[int, Tensor]", *, gradients: bool) -> "Tensor":
        """Return what this rank counts: a vector for each column, then the slots."""
        import torch

        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for device in {parameter.device.type for parameter in self._parameters}:
                stack.enter_context(torch.autocast(device, enabled=False))
            gradient = [self._gradient(k) if gradients else None for k in range(len(self._parameters))]
            columns = self._columns(gradient, copied)
            home = columns[0].device
            parts = [column.to(home, precision(home), non_blocking=True) for column in columns]
            parts += [self._slot_vector(k, gradient[k]) for k in self._slots if self._slots[k].count]
            return torch.cat(parts)

    def _gradient(self, k: int) -> "Tensor | None":
        """Return the gradient of a parameter, as it is sharded."""
        parameter = self._parameters[k]
        return None if parameter.grad is None else as_placed(parameter.grad, parameter)

    def _columns(self, gradients: "Sequence[Tensor | None]", copied: "dict[int, Tensor]") -> "list[Tensor]":
        """Return a vector for each column, of what this rank counts."""
        import torch

        zero = self._zeros()  # counts are rounded where the default dtype is bfloat16
        values: dict[_Column, dict[int, Tensor]] = {column: {} for column in _Column}
        counted = [k for k, counts in enumerate(self._counts) if counts]
        weights = {k: local(self._parameters[k]) for k in counted}
        grads = {k: local(g) for k in counted if (g := gradients[k]) is not None and not g.is_sparse}
        old = {k: tensor for k, tensor in copied.items() if k in weights}
        for column, tensors in ((_Column.WEIGHT, weights), (_Column.GRADIENT, grads), (_Column.BEFORE, old)):
            values[column] = dict(zip(tensors, norms(list(tensors.values())), strict=True))
        moved = distances(list(old.values()), [weights[k] for k in old])
        values[_Column.UPDATE] = dict(zip(old, moved, strict=True))
        for count, norm, tensors in (
            (_Column.NONFINITE, _Column.WEIGHT, weights),
            (_Column.NONFINITE_GRADIENTS, _Column.GRADIENT, grads),
        ):
            for k, tensor in tensors.items():
                on_cpu = tensor.device.type == "cpu"
                if (on_cpu and not values[norm][k].isfinite()) or (not on_cpu and self._is_counting):
                    values[count][k] = nonfinite(tensor)
        one = torch.ones_like(zero)
        values[_Column.GRADIENTS] = dict.fromkeys(grads, one)
        for k in self._units.keys() & grads.keys():
            if not self._slots[k].count:
                values[_Column.ACTIVE][k] = has_nonzero(grads[k], self._units[k]).sum()
        n = len(self._parameters)
        found = [torch.stack([values[column].get(k, zero).to(zero.device) for k in range(n)]) for column in _Column]
        return [v.to(precision(v.device)).square() if c in SQUARES else v for c, v in zip(_Column, found, strict=True)]

    def _slot_vector(self, k: int, gradient: "Tensor | None") -> "Tensor":
        """Return which units of a matrix have a gradient, as far as this rank's part says."""
        import torch

        slots, device = self._slots[k], local(self._parameters[0]).device
        vector = torch.zeros(slots.count, dtype=precision(device), device=device)
        if gradient is not None:
            active = has_nonzero(local(gradient), self._units[k])
            vector[slots.start : slots.start + len(active)] = active.to(vector.dtype)
        return vector

    def rows(self, table: "Tensor", updated: Sequence[int]) -> dict[str, dict[str, float]]:
        """Return the quantities by parameter and for the network; `table` is on the CPU."""
        n = len(self._names)
        columns = table[: len(_Column) * n].reshape(len(_Column), n).T.clone()
        at = len(_Column) * n
        for k, slots in self._slots.items():
            if slots.count:
                columns[k, _Column.ACTIVE] = (table[at : at + slots.count] > 0).sum()
                at += slots.count
        rows = {}
        for k, name in enumerate(self._names):
            rows[name] = self._row(columns[k].tolist(), k in updated)
            if k in self._units and "gradient_norm" in rows[name]:
                units = self._parameters[k].shape[self._units[k]]
                rows[name]["dead_units"] = 1 - float(columns[k, _Column.ACTIVE]) / units
        trainable = {k for k, parameter in enumerate(self._parameters) if parameter.requires_grad}
        rows[NETWORK] = self._row(columns.sum(dim=0).tolist(), bool(trainable) and trainable <= set(updated))
        return rows

    def _row(self, sums: Sequence[float], is_updated: bool) -> dict[str, float]:
        column = dict(zip(_Column, sums, strict=True))
        row = {"weight_norm": sqrt(column[_Column.WEIGHT])}
        counts = {"nonfinite": _Column.WEIGHT}
        if column[_Column.GRADIENTS] > 0:
            row["gradient_norm"] = sqrt(column[_Column.GRADIENT])
            counts["nonfinite_gradients"] = _Column.GRADIENT
        for name, squares in counts.items():
            count = column[_Column[name.upper()]]
            if count or isfinite(column[squares]):
                row[name] = count
            else:
                self._is_counting = True
        if is_updated:
            row["update_norm"] = sqrt(column[_Column.UPDATE])
            if column[_Column.BEFORE] > 0:
                row["update_ratio"] = sqrt(column[_Column.UPDATE] / column[_Column.BEFORE])
        return row


class Pending:
    """Quantities on their way from a GPU.

    Parameters
    ----------
    of : Quantities
    table : Tensor
    updated : sequence of int
        The parameters whose update was measured.
    compared : Tensor or None
        By which replicas are compared, a row a rank.
    """

    def __init__(self, of: Quantities, table: "Tensor", updated: Sequence[int], compared: "Tensor | None") -> None:
        self._of, self._updated = of, updated
        self._table, self._compared = Copy(table), None if compared is None else Copy(compared)

    def rows(self) -> dict[str, dict[str, float]]:
        """Return the quantities by parameter and for ``network``, as soon as they are there.

        ``weight_norm``, ``gradient_norm``, ``nonfinite``, ``nonfinite_gradients``, ``update_norm``, ``update_ratio``
        and, of matrices, ``dead_units``, the share of output units whose gradient is exactly 0. What was not measured
        is absent. On a GPU, non-finite numbers are counted from the second time on that there are any: the first time,
        the norm alone is not finite.
        """
        return self._of.rows(self._table.tensor(), self._updated)

    def ranks(self) -> dict[int, dict[str, float]]:
        """Return the norms of the whole network on each rank, if every rank has its own: they should be equal."""
        if self._compared is None:
            return {}
        return {
            place: dict(zip(COMPARED, map(sqrt, row[:-1]), strict=True))
            for place, row in enumerate(self._compared.tensor().tolist())
            if not row[-1]
        }


def _groups(parameters: "Sequence[Parameter]") -> list[list[int]]:
    """Return the trainable parameters in groups of at most a quarter of the model, or of one parameter."""
    sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    groups: list[list[int]] = []
    left: list[float] = []
    limit = max([sum(sizes) / GROUPS, *sizes])
    for k in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
        if not parameters[k].requires_grad:
            continue
        fits = next((g for g, room in enumerate(left) if room >= sizes[k]), None)
        if fits is None:
            fits = len(groups)
            groups.append([])
            left.append(limit)
        groups[fits].append(k)
        left[fits] -= sizes[k]
    return groups
