"""Norms and counts of every parameter at one step, computed on the training thread into one small tensor."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from enum import IntEnum, auto
from math import isfinite, sqrt
from typing import TYPE_CHECKING

from toposcope.checkpoints import Layer
from toposcope.errors import ToposcopeError
from toposcope.monitor.norms import distances, has_nonzero, nonfinite, norms, precision
from toposcope.monitor.shards import Copy, Sharding, Slots, as_placed, local, rank
from toposcope.probes.feature import NETWORK

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter
    from torch.nn.parallel import DistributedDataParallel

N_GROUPS = 4
"""Parameters take turns in about this many groups: one due step measures the updates of one group, so that at most this
fraction of the weights is before at a time, or the largest parameter."""


class _Column(IntEnum):
    """Sums over ranks, for each parameter."""

    WEIGHT = 0
    GRADIENT = auto()
    BEFORE = auto()
    UPDATE = auto()
    NONFINITE = auto()
    NONFINITE_GRADIENTS = auto()
    GRADIENTS = auto()
    ACTIVE = auto()


SQUARES = (_Column.WEIGHT, _Column.GRADIENT, _Column.BEFORE, _Column.UPDATE)
COMPARED = {"weight_norm": _Column.WEIGHT, "gradient_norm": _Column.GRADIENT}  # norms by which replicas are compared


class Quantities:
    """Norms and counts of the parameters of a model, step by step.

    Calls are collective if the model is sharded: all ranks make the same calls at the same steps, and one reduction
    adds up their shards. A rank that fails tells the others when they next `agree`. Replicas communicate only to be
    compared.
    """

    def __init__(
        self,
        parameters: "Mapping[str, Parameter]",
        layers: Sequence[Layer],
        replicated: "DistributedDataParallel | None" = None,
        updated: Callable[[], Collection[int]] | None = None,
    ) -> None:
        self._names, self._parameters = list(parameters), list(parameters.values())
        self._sharding = Sharding(self._parameters)
        self.is_sharded = self._sharding.mesh is not None
        self._counts = [self._sharding.counts(parameter) for parameter in self._parameters]
        place = {name: k for k, name in enumerate(self._names)}
        self._units = {place[layer.name]: int(layer.transposed) for layer in layers}
        self._slots = {k: Slots(self._parameters[k], units) for k, units in self._units.items()}
        self._updated = updated
        self._trained, self._groups = list[int](), list[list[int]]()
        self._training = self.training_now()
        self.turn = 0
        """Number of steps whose updates were measured: it chooses the next group."""
        self._before: dict[int, Tensor] = {}
        self._error: Exception | None = None
        self._replicated = replicated
        self._last_compared: Copy | None = None
        self._length = len(_Column) * len(self._names) + sum(slots.count for slots in self._slots.values())
        self._is_counting = self.is_sharded
        """Whether to count non-finite values on a GPU, where that takes longer than the norms."""

    def before(self) -> None:
        """Copy the parameters whose turn it is, before the optimizer's step."""
        self._regroup()
        group = self._groups[self.turn % len(self._groups)] if self._groups else []
        self.turn += 1
        self._before = {}  # free the copies if the optimizer skipped its step
        try:
            self._before = {k: local(self._parameters[k]).clone() for k in group}
        except Exception as error:  # noqa: BLE001 - raised by `after`, once the other ranks have been told
            self._error = error

    def training_now(self) -> list[tuple[bool, bool]]:
        """Return of each parameter whether it requires a gradient, and whether the optimizer has it."""
        ids = None if self._updated is None else self._updated()
        return [(p.requires_grad, ids is None or id(p) in ids) for p in self._parameters]

    def training_changes(self, *, is_due: bool) -> dict[str, list[str]]:
        """Return what became of the training of parameters since the last call, with their names.

        The groups of the optimizer are looked at where `is_due`, since at every step that would take long.
        """
        before = self._training
        if not is_due and all(p.requires_grad is was for p, (was, _) in zip(self._parameters, before, strict=True)):
            return {}
        self._training = self.training_now()
        changes: dict[str, list[str]] = {}
        for name, old, new in zip(self._names, before, self._training, strict=True):
            if old != new and (new[0] or old[0]):
                changes.setdefault(_what_changed(old, new), []).append(name)
        return changes

    def _regroup(self) -> None:
        """Group the parameters that are trained now; some may have been frozen, or added to the optimizer, since."""
        trained = [k for k, now in enumerate(self.training_now()) if all(now)]
        if trained != self._trained:
            self._trained, self._groups = trained, _groups(self._parameters, trained)

    def after(self, *, gradients: bool = True) -> "PendingQuantities":
        """Measure the parameters after the optimizer's step, without waiting for a GPU unless they are sharded."""
        before, self._before = self._before, {}
        error, self._error, vector = self._error, None, None
        if error is None:
            try:
                vector = self._measured(before, gradients=gradients)
            except Exception as caught:  # noqa: BLE001 - raised below, once the other ranks have been told
                error = caught
        total, compared = self._exchanged(vector, error)
        if error is not None:
            raise error
        return PendingQuantities(self, total, list(before), compared)

    @property
    def n_ranks(self) -> int:
        """Number of ranks in the group."""
        import torch.distributed as dist

        if self._sharding.mesh is not None:
            return self._sharding.mesh.size()
        return 1 if self._replicated is None else dist.get_world_size(self._replicated.process_group)

    @property
    def is_leader(self) -> bool:
        """Whether this rank decides what is measured, and keeps the results."""
        import torch.distributed as dist

        if self.is_sharded:
            return self._sharding.is_first
        return (rank() if self._replicated is None else dist.get_rank(self._replicated.process_group)) == 0

    def agree(self, decision: Sequence[int], *, stop: bool = False) -> list[int]:
        """Return the leader's decision; a collective operation."""
        import torch.distributed as dist

        leads = self.is_leader
        if not self.is_sharded and not self._is_comparing():
            if leads and not stop:
                return list(decision)
            raise ToposcopeError("the monitor failed on one of the ranks, so they are no longer compared")
        own = self._zeros().new_tensor([*(decision if leads else [0] * len(decision)), int(stop)])
        if self.is_sharded:
            own = self._sharding.summed(own)
        elif self._replicated is not None:
            dist.all_reduce(own, group=self._replicated.process_group)
        *agreed, stopped = [int(number) for number in own.tolist()]
        if stopped and (self.is_sharded or stop or not leads):
            raise ToposcopeError(
                f"the monitor failed on {stopped} of the ranks; the message printed there names the cause"
            )
        if stopped:
            self._replicated = None
        return agreed

    def leave(self) -> None:
        """Stop comparing this rank with its replicas."""
        self._replicated = None

    def _is_comparing(self) -> bool:
        """Return whether replicas are still compared; all ranks get the same answer."""
        # With uneven inputs (Join), ranks that run out of batches make no more steps.
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
        """Return the sum of a vector over ranks, and the table of the replicas; pass None if this rank failed."""
        import torch

        stops = self._zeros(1) + (vector is None)
        own = self._zeros(self._length) if vector is None else vector
        if self.is_sharded:
            total = self._sharding.summed(torch.cat([own, stops]))
            if total[-1] > 0:
                raise ToposcopeError(
                    f"the monitor failed on {int(total[-1])} of the ranks; the message printed there names the cause"
                ) from error
            return total, None
        return own, self._compared(torch.cat([own, stops]))

    def _compared(self, vector: "Tensor") -> "Tensor | None":
        """Return a row for each rank: the sums by which replicas are compared, and whether the rank failed."""
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

    def _measured(self, before: "dict[int, Tensor]", *, gradients: bool) -> "Tensor":
        """Return the sums over this rank's shards: a vector for each column, then the slots."""
        import torch

        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for device in {parameter.device.type for parameter in self._parameters}:
                stack.enter_context(torch.autocast(device, enabled=False))
            gradient = [self._gradient(k) if gradients else None for k in range(len(self._parameters))]
            columns = self._columns(gradient, before)
            home = columns[0].device
            parts = [column.to(home, precision(home), non_blocking=True) for column in columns]
            parts += [self._slot_vector(k, gradient[k]) for k in self._slots if self._slots[k].count]
            return torch.cat(parts)

    def _gradient(self, k: int) -> "Tensor | None":
        """Return the gradient of a parameter, sharded as the parameter is; of a frozen one, it would be an old one."""
        parameter = self._parameters[k]
        if parameter.grad is None or not parameter.requires_grad:
            return None
        return as_placed(parameter.grad, parameter)

    def _columns(self, gradients: "Sequence[Tensor | None]", before: "dict[int, Tensor]") -> "list[Tensor]":
        """Return a vector for each column, over this rank's shards."""
        import torch

        zero = self._zeros()  # in the default dtype, possibly bfloat16, counts would be rounded
        values: dict[_Column, dict[int, Tensor]] = {column: {} for column in _Column}
        counted = [k for k, counts in enumerate(self._counts) if counts]
        weights = {k: local(self._parameters[k]) for k in counted}
        grads = {k: local(g) for k in counted if (g := gradients[k]) is not None and not g.is_sparse}
        old = {k: tensor for k, tensor in before.items() if k in weights}
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
        """Return which units of a matrix have a gradient in this rank's shard."""
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


class PendingQuantities:
    """Quantities of one step, whose copy from a GPU may not be complete yet."""

    def __init__(
        self, quantities: Quantities, table: "Tensor", updated: Sequence[int], compared: "Tensor | None"
    ) -> None:
        self._quantities, self._updated = quantities, updated
        self._table, self._compared = Copy(table), None if compared is None else Copy(compared)

    def rows(self) -> dict[str, dict[str, float]]:
        """Wait for the copy, and return the quantities by parameter and for ``network``.

        They are ``weight_norm``, ``gradient_norm``, ``nonfinite``, ``nonfinite_gradients``, ``update_norm``,
        ``update_ratio`` and, for matrices, ``dead_units``, the share of output units whose gradient is exactly 0.
        Quantities that were not measured are absent. On a GPU, non-finite values are counted only after a norm was not
        finite for the first time.
        """
        return self._quantities.rows(self._table.tensor(), self._updated)

    def ranks(self) -> dict[int, dict[str, float]]:
        """Return the norms of the network on each replica, which should be equal; empty without replicas."""
        if self._compared is None:
            return {}
        return {
            place: dict(zip(COMPARED, map(sqrt, row[:-1]), strict=True))
            for place, row in enumerate(self._compared.tensor().tolist())
            if not row[-1]
        }


def _what_changed(old: tuple[bool, bool], new: tuple[bool, bool]) -> str:
    """Return what became of a parameter whose training changed; `{}` stands for the step."""
    if not new[0]:
        return "frozen since step {} (requires_grad=False)"
    if not new[1]:
        return "not updated since step {}: in no group of the optimizer"
    return f"trained since step {{}} ({'added to the optimizer' if old[0] else 'requires_grad=True'})"


def _groups(parameters: "Sequence[Parameter]", trained: Sequence[int]) -> list[list[int]]:
    """Group the trained parameters, each group at most a quarter of the model or its largest parameter."""
    sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    groups: list[list[int]] = []
    left: list[float] = []
    limit = max([sum(sizes) / N_GROUPS, *sizes])
    for k in sorted(trained, key=lambda k: -sizes[k]):
        fits = next((g for g, room in enumerate(left) if room >= sizes[k]), None)
        if fits is None:
            fits = len(groups)
            groups.append([])
            left.append(limit)
        groups[fits].append(k)
        left[fits] -= sizes[k]
    return groups
