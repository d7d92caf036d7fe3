"""What the ranks of one training do together, at steps that all of them know: none waits for another in vain."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toposcope.errors import ToposcopeError
from toposcope.monitor.budget import Clock, Meter
from toposcope.monitor.gathering import Copy, all_arrive, data_parallel, gather
from toposcope.monitor.parameters import layout, watched
from toposcope.monitor.quantities import Pending, Quantities

if TYPE_CHECKING:
    from torch.nn import Module

START_SECONDS = 30.0
"""Time within which every rank must have attached its monitor."""
END_SECONDS = 10.0
"""Time within which every rank must have closed its monitor for the last step to be measured."""

_numbers = count()


class Together:
    """The parameters of a model, measured by all ranks that hold a part of it, or a copy.

    The leader decides. Only it has probes, a budget and a study; the others are each a `Following`.

    Parameters
    ----------
    model : torch.nn.Module
    """

    def __init__(self, model: "Module") -> None:
        self.parameters = watched(model)
        try:
            self.layers = {layer.name: layer for layer in layout(model)}
        except ToposcopeError:  # without matrices there are norms and the log all the same
            self.layers = {}
        self._quantities = Quantities(self.parameters, list(self.layers.values()), data_parallel(model))
        self.is_leader = self._quantities.is_leader
        self._number = next(_numbers)
        self._has_left = False

    def begin(self) -> None:
        """Wait for the other ranks' monitors. Replicas without one are not compared.

        Raises
        ------
        ToposcopeError
            If parts of the model are on a rank that has none.
        """
        if self._n_ranks > 1 and not all_arrive(f"{self._number}/begin", self._n_ranks, START_SECONDS):
            self.part()
            if self._quantities.is_sharded:
                raise ToposcopeError("the model is sharded, and not every rank has a monitor; make one on all of them")

    @property
    def is_sharded(self) -> bool:
        """Whether parts of the model are on several ranks."""
        return self._quantities.is_sharded

    @property
    def _n_ranks(self) -> int:
        return 1 if self._has_left else self._quantities.n_ranks

    def decide(self, measure: bool) -> bool:
        """Return whether this step is measured, as the leader wants it."""
        if self._n_ranks == 1:
            return measure
        with self._parting():
            return bool(self._quantities.agree([int(measure)])[0])

    def before(self) -> None:
        """Copy weights before a step that is measured; replicas leave that to the leader."""
        if self.is_leader or self._quantities.is_sharded:
            self._quantities.before()

    def after(self, *, gradients: bool = True) -> Pending:
        """Measure a step (see `Quantities.after`)."""
        with self._parting():
            return self._quantities.after(gradients=gradients)

    def copies(self, wanted: Collection[str] | None, keeps: Callable[[], bool]) -> Iterator[tuple[str, Copy | None]]:
        """Yield a copy of one layer after another, as the leader wants them; the iterator must be used up.

        Parameters
        ----------
        wanted : collection of str or None
            The layers; None if the leader cannot say which.
        keeps : callable
            Whether the next one is kept on this rank; else None is yielded in its place. Sharded layers are gathered
            all the same.
        """
        if not self._quantities.is_sharded:
            yield from ((name, gather(self.parameters[name], keep=keeps())) for name in wanted or ())
            return
        with self._parting():
            bits = self._quantities.agree([int(name in (wanted or ())) for name in self.layers], stop=wanted is None)
        error: Exception | None = None
        for name in (name for name, bit in zip(self.layers, bits, strict=True) if bit):
            copy = None
            try:
                copy = gather(self.parameters[name], keep=error is None and keeps())
            except Exception as caught:  # noqa: BLE001 - raised once all ranks have done their part
                error = caught
            yield name, copy
        if error is not None:
            raise error

    def ends(self, status: str) -> bool:
        """Return whether the last step is measured; nothing is done together after it."""
        if not self._quantities.is_sharded:
            self.part()
            return self.is_leader
        if self._has_left or status != "complete":
            return False
        return all_arrive(f"{self._number}/end", self._quantities.n_ranks, END_SECONDS)

    @property
    def must_leave(self) -> bool:
        """Whether other ranks wait for this one at the next due step."""
        return self._n_ranks > 1

    def leave(self) -> None:
        """At a due step, before the optimizer's: let the others know that this rank cannot go on."""
        if self.must_leave:
            with suppress(ToposcopeError):
                self._quantities.agree([0], stop=True)
            self.part()

    def part(self) -> None:
        """Do nothing together any more."""
        self._has_left = True
        self._quantities.part()

    def _parting(self) -> "_Parting":
        return _Parting(self)


class _Parting:
    """Whatever is raised within, the other ranks know: this one need not tell them."""

    def __init__(self, together: Together) -> None:
        self._together = together

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._together.part()


class Following:
    """A rank that is not the leader: it does its part, and keeps nothing.

    It has the methods of `Running`, and must call those of `Together` in the same order, or both wait in vain.

    Parameters
    ----------
    together : Together
    clock : callable
    """

    def __init__(self, together: Together, clock: Clock) -> None:
        self.together = together
        self.meter = Meter(clock)
        self._is_measured = False

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Leave it to the leader."""

    def saved(self, path: Path, step: int) -> None:
        """Do nothing: the leader examines checkpoints."""

    def count_step(self) -> None:
        """Leave it to the leader."""

    def before_step(self) -> None:
        """Do this rank's part before a due step."""
        self._is_measured = self.together.decide(False)
        if self._is_measured:
            self.together.before()

    def measure(self, step: int, interval: int) -> None:
        """Do this rank's part after a due step."""
        if self._is_measured:
            self._is_measured = False
            self._measure(gradients=True)

    def measure_at_end(self, step: int) -> None:
        """Do this rank's part before the first step."""
        self._measure_at_end()

    def finish(self, step: int, status: str) -> None:
        """Do this rank's part after the last step."""
        if self.together.ends(status):
            self._measure_at_end()

    def _measure_at_end(self) -> None:
        self.together.after(gradients=False)  # the leader takes the time of the second
        self._measure(gradients=False)

    def _measure(self, *, gradients: bool) -> None:
        self.together.after(gradients=gradients)
        for _ in self.together.copies((), lambda: False):
            pass
