"""Collective operations of the ranks of one training. All ranks call them at the same steps, so that none deadlocks."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from toposcope.errors import ToposcopeError
from toposcope.monitor.budget import Clock, Meter
from toposcope.monitor.looks import Looks
from toposcope.monitor.parameters import choose, layout, watched
from toposcope.monitor.quantities import PendingQuantities, Quantities
from toposcope.monitor.shards import Copy, all_arrive, data_parallel, gather

if TYPE_CHECKING:
    from torch.nn import Module

START_SECONDS = 30.0  # time within which all ranks must attach their monitors
END_SECONDS = 10.0  # time within which all ranks must close their monitors for the last step to be measured

_numbers = count()


class RankGroup:
    """The ranks that hold a shard or a replica of a model, and measure its parameters together.

    Rank 0 of the group is the leader: it alone has probes, a budget and a study, and decides what is measured. The
    other ranks are each a `Follower`.
    """

    def __init__(
        self,
        model: "Module",
        optimized: Callable[[], Collection[int]],
        layers: str | Sequence[str] | None = None,
    ) -> None:
        self._model, self._known = model, {id(parameter) for parameter in model.parameters()}
        self.parameters = watched(model)
        # A model without matrices still has norms and a log.
        self.layers = {layer.name: layer for layer in choose(layout(model), layers)}
        self._quantities = Quantities(self.parameters, list(self.layers.values()), data_parallel(model), optimized)
        training = self._quantities.training_now
        self.is_leader, self.is_sharded = self._quantities.is_leader, self._quantities.is_sharded
        self.training_changes = self._quantities.training_changes
        # Each rank would see its own shards alone.
        self.looks = None if self.is_sharded else Looks(self.parameters, list(self.layers.values()), training)
        self._number = next(_numbers)
        self._has_left = False

    def begin(self) -> None:
        """Wait until all ranks have attached a monitor. If some have none, replicas are not compared."""
        if self._n_ranks > 1 and not all_arrive(f"{self._number}/begin", self._n_ranks, START_SECONDS):
            self.leave()
            if self.is_sharded:
                raise ToposcopeError(
                    "the model is sharded, but not every rank attached a monitor; create and attach one on each"
                )

    def resume(self, n_measured: int) -> None:
        """Go on with the updates of parameters as after so many measured ones; the leader's number counts."""
        if self.is_sharded and self._n_ranks > 1:
            with self._leaving_on_error():
                (n_measured,) = self._quantities.agree([n_measured])
        self._quantities.turn = n_measured

    @property
    def _n_ranks(self) -> int:
        return 1 if self._has_left else self._quantities.n_ranks

    def new_parameters(self) -> list[str]:
        """Return the names of parameters that were added or replaced since the monitor was attached."""
        if self.is_sharded:  # FSDP2 exchanges parameters while it gathers them
            return []
        return [name for name, parameter in self._model.named_parameters() if id(parameter) not in self._known]

    def decide(self, measure: bool) -> bool:
        """Return the leader's decision whether to measure this step."""
        if self._n_ranks == 1:
            return measure
        with self._leaving_on_error():
            return bool(self._quantities.agree([int(measure)])[0])

    def before(self) -> None:
        """Copy weights before a measured step; of replicas, only the leader does."""
        if self.is_leader or self.is_sharded:
            self._quantities.before()

    def after(self, *, gradients: bool = True) -> PendingQuantities:
        """Measure a step (see `Quantities.after`)."""
        with self._leaving_on_error():
            return self._quantities.after(gradients=gradients)

    def copies(self, wanted: Collection[str] | None, keeps: Callable[[], bool]) -> Iterator[tuple[str, Copy | None]]:
        """Yield copies of the layers that the leader wants, one at a time. The iterator must be exhausted."""
        if not self.is_sharded:
            yield from ((name, gather(self.parameters[name], keep=keeps())) for name in wanted or ())
            return
        with self._leaving_on_error():
            bits = self._quantities.agree([int(name in (wanted or ())) for name in self.layers], stop=wanted is None)
        error: Exception | None = None
        for name in (name for name, bit in zip(self.layers, bits, strict=True) if bit):
            copy = None
            try:
                copy = gather(self.parameters[name], keep=error is None and keeps())
            except Exception as caught:  # noqa: BLE001 - raised below, once all ranks have gathered every layer
                error = caught
            yield name, copy
        if error is not None:
            raise error

    def ends(self, status: str) -> bool:
        """Return whether to measure the last step; it is the last collective operation."""
        if not self.is_sharded:
            self.leave()
            return self.is_leader
        if self._has_left or status != "complete":
            return False
        return all_arrive(f"{self._number}/end", self._quantities.n_ranks, END_SECONDS)

    @property
    def has_others(self) -> bool:
        """Whether other ranks will wait for this one at the next due step."""
        return self._n_ranks > 1

    def notify_failure(self) -> None:
        """Tell the other ranks, before the optimizer's step of a due step, that this rank stops measuring."""
        if self.has_others:
            with suppress(ToposcopeError):
                self._quantities.agree([0], stop=True)
            self.leave()

    def leave(self) -> None:
        """Take part in no further collective operation."""
        self._has_left = True
        self._quantities.leave()

    @contextmanager
    def _leaving_on_error(self) -> Iterator[None]:
        """Leave the group if a collective operation raises: it raises on the other ranks too."""
        try:
            yield
        except BaseException:
            self.leave()
            raise


def _do_nothing(*_: Any, **__: Any) -> None:
    """Do nothing: the leader does it."""


class Follower:
    """A rank that is not the leader: it takes part in collective operations, keeps no results, and else does nothing.

    It has the methods of `MonitoredRun`, and must call those of `RankGroup` in the same order, or the ranks deadlock.
    """

    def __init__(self, ranks: RankGroup, clock: Clock) -> None:
        self.ranks = ranks
        self.meter = Meter(clock)
        self._is_measured = False

    log = saved = write = count_step = begin_look = end_look = staticmethod(_do_nothing)

    def resume(self) -> None:
        """Take part in going on where the run was interrupted."""
        self.ranks.resume(0)

    def before_step(self) -> None:
        """Take part in preparing the measurement of a due step."""
        self._is_measured = self.ranks.decide(False)
        if self._is_measured:
            self.ranks.before()

    def measure(self, step: int, interval: int) -> None:
        """Take part in measuring a due step."""
        if self._is_measured:
            self._is_measured = False
            self._measure(gradients=True)

    def measure_at_end(self, step: int, *, is_extra: bool = False) -> None:
        """Take part in measuring the first or the last step."""
        self._measure_at_end()

    def finish(self, step: int, status: str) -> None:
        """Take part in measuring the last step."""
        if self.ranks.ends(status):
            self._measure_at_end()

    def _measure_at_end(self) -> None:
        self.ranks.after(gradients=False)  # the leader times the second call
        self._measure(gradients=False)

    def _measure(self, *, gradients: bool) -> None:
        self.ranks.after(gradients=gradients)
        for _ in self.ranks.copies((), lambda: False):
            pass
