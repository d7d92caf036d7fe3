"""Pushing a statistic of the weights up or down while a network trains: a gradient at a fixed share of the loss's."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn

from toposcope.extend import ToposcopeError
from toposcope_experiments.interventions.matrix_statistics import MatrixStatistic, Paired, find_statistic


@dataclass(frozen=True)
class Pushed:
    """What one push did, of each run."""

    value: Tensor  # of the statistic before the update, mean over the matrices; NaN where the pairing is a kept one
    norm: Tensor  # of what was added to the gradients
    loss_norm: Tensor  # of the loss gradients of the same matrices
    cosine: Tensor  # between the two; 0 where one of them is 0


class BatchedPush:
    """Adds the gradient of a statistic, the mean over a run's matrices, to the loss gradients of several runs."""

    def __init__(self, statistics: Sequence[MatrixStatistic], refresh: int) -> None:
        self.statistics, self.refresh = statistics, refresh
        self._pairings: list[Paired] = []
        self._age = 0

    def forget(self) -> None:
        """Find new pairings at the next call."""
        self._age = 0

    def add(self, matrices: Sequence[Tensor], gradients: Sequence[Tensor], shares: Tensor) -> Pushed:
        """Change the loss gradients, each of shape (runs, m, n), in place.

        Shares are those of the norm of all of a run's loss gradients; above 0 an update then raises the statistic.
        """
        # Where updates are made there are often no gradients, and around training there is autocast.
        with torch.enable_grad(), torch.autocast(shares.device.type, enabled=False):
            leaves = [matrix.detach().float().requires_grad_() for matrix in matrices]
            is_new = self._age == 0
            if is_new:
                self._pairings = [s.pair(leaf.detach()) for s, leaf in zip(self.statistics, leaves, strict=True)]
            self._age = (self._age + 1) % self.refresh
            each = zip(self.statistics, leaves, self._pairings, strict=True)
            value = torch.stack([statistic.value(leaf, pairing) for statistic, leaf, pairing in each]).mean(0)
            slopes = torch.autograd.grad(value.sum(), leaves)
        # Along a kept pairing it is a bound of the statistic only.
        return add_at_share(slopes, gradients, shares, value.detach() if is_new else torch.full_like(shares, torch.nan))


@torch.no_grad()
def add_at_share(slopes: Sequence[Tensor], gradients: Sequence[Tensor], shares: Tensor, value: Tensor) -> Pushed:
    """Add a direction to gradients, against its sign, so that its norm is a share of theirs."""
    loss_norm = _inner(gradients, gradients).sqrt()
    slope_norm = _inner(slopes, slopes).sqrt()
    there = (slope_norm > 0) & slope_norm.isfinite() & loss_norm.isfinite()
    divisor = torch.where(there, slope_norm, torch.ones_like(slope_norm))
    factors = torch.where(there, -shares * loss_norm / divisor, torch.zeros_like(divisor))
    products = _inner(slopes, gradients) * -shares.sign()
    for slope, gradient in zip(slopes, gradients, strict=True):
        # A run that has diverged has slopes that are no numbers, and 0 times these is none either.
        gradient.add_((torch.nan_to_num(slope) * factors[:, None, None]).to(gradient.dtype))
    both = there & (loss_norm > 0)
    cosine = torch.where(both, products / divisor / torch.where(both, loss_norm, torch.ones_like(loss_norm)), 0.0)
    return Pushed(value, factors.abs() * slope_norm.nan_to_num(), loss_norm, cosine)


def _inner(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """Return the inner product over all matrices of each run, shape (runs,)."""
    return torch.stack([(a.float() * b).sum((1, 2)) for a, b in zip(first, second, strict=True)]).sum(0)


class TopologyPush:
    """Pushes a statistic of a model's weight matrices up or down: call it between backward and the optimizer's step.

    It adds ``lambda * gradient of the statistic`` to the gradients, so that its norm is a fixed share of that of the
    loss gradient of the same matrices; the user's optimizer does the rest.

    Parameters
    ----------
    model : nn.Module or iterable of parameters
        Of a module, the weights of its linear layers that are not frozen are pushed, rows as points, but for those tied
        to an embedding. A parameter of shape (runs, m, n) holds the matrices of several runs.
    statistic : str
        A name of `STATISTICS`: ``"scale_free_h0"``, ``"neural_persistence"``, ``"scale_free_h1"``, or a plain
        quantity to compare with: ``"pairwise_spread"``, ``"effective_rank"``, ``"nearest_neighbour_spread"``.
    direction : +1 or -1
        Up or down.
    share : float
        Norm of what is added over that of the loss gradient.
    refresh : int
        Steps for which a pairing is kept. Over 5 steps for H0 and 20 for neural persistence the gradient keeps a
        median cosine of .94 and .99 with the exact one; more, or any for H1, warns.

    Raises
    ------
    ToposcopeError
        For an unknown statistic, a number out of range, or a model without a weight matrix, with one that is computed
        from other parameters (weight norm), or sharded.

    Notes
    -----
    The share is one of the gradients as they are at the call: with gradient accumulation, call it once, before the
    step; gradients may be clipped before or after. Under a ``GradScaler`` the share is the same, and the norms that are
    logged are those of scaled gradients unless ``unscale_`` comes first; where gradients are infinite nothing is added.
    Every process of ``DistributedDataParallel`` adds the same. In bfloat16 what is added has a cosine of .996 with what
    was meant, at a share of .02: gradients are rounded.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from toposcope_experiments.interventions import TopologyPush
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    >>> push = TopologyPush(model, "scale_free_h0", direction=+1, share=0.2)
    >>> for _ in range(20):
    ...     optimizer.zero_grad()
    ...     (model(torch.randn(32, 8)) ** 2).mean().backward()
    ...     _ = push()
    ...     optimizer.step()
    >>> push.table().columns
    ['step', 'run', 'value', 'change', 'norm', 'loss_norm', 'cosine']
    >>> bool(push.table()["change"][-1] > 0)
    True
    """

    def __init__(
        self,
        model: nn.Module | Iterable[Tensor],
        statistic: str = "scale_free_h0",
        *,
        direction: int = 1,
        share: float = 0.02,
        refresh: int = 1,
    ) -> None:
        found = find_statistic(statistic)
        _check_options(direction, share, refresh)
        if warning := refresh_warning(statistic, refresh):
            warnings.warn(warning, stacklevel=2)
        self.parameters = linear_weights(model) if isinstance(model, nn.Module) else _matrices(model)
        _check_matrices(self.parameters)
        self.share = direction * share
        self._push = BatchedPush([found] * len(self.parameters), refresh)
        self._log: list[Pushed] = []

    def __call__(self) -> Pushed:
        """Add to the gradients, and log what was added."""
        matrices, gradients = [], []
        for name, (parameter, is_transposed) in self.parameters.items():
            if parameter.grad is None:
                when = "call this between backward and the step, and push what trains at every step only"
                raise ToposcopeError(f"{name} has no gradient; {when}")
            matrices.append(_rows_as_points(parameter.detach(), is_transposed))
            gradients.append(_rows_as_points(parameter.grad, is_transposed))
        shares = torch.full((len(matrices[0]),), self.share, device=matrices[0].device)
        pushed = self._push.add(matrices, gradients, shares)
        self._log.append(pushed)
        return pushed

    def table(self) -> pl.DataFrame:
        """Return what each call did: a row for each call and run.

        ``value`` is the statistic before the call and ``change`` the logarithm of its ratio to the first; both are null
        where a pairing was kept, since the statistic is not known then.
        """
        if not self._log:
            raise ToposcopeError("nothing was pushed yet; call the push between backward and the step")
        columns = {name: torch.stack([getattr(each, name) for each in self._log]).cpu() for name in _LOGGED}
        changes = (columns["value"] / columns["value"][:1]).log()
        steps, runs = torch.meshgrid(*(torch.arange(n) for n in changes.shape), indexing="ij")
        named = {"step": steps + 1, "run": runs, "value": columns.pop("value"), "change": changes, **columns}
        return pl.DataFrame({name: values.flatten().numpy() for name, values in named.items()}).fill_nan(None)


_LOGGED = ("value", "norm", "loss_norm", "cosine")


def _check_options(direction: Any, share: Any, refresh: Any) -> None:
    if direction not in (1, -1):
        raise ToposcopeError(f"direction is {direction!r}; it must be +1 (up) or -1 (down)")
    if not isinstance(share, (int, float)) or not 0 <= share < math.inf:
        raise ToposcopeError(f"share is {share!r}; it must be a finite number of at least 0")
    if not isinstance(refresh, Integral) or refresh < 1:
        raise ToposcopeError(f"refresh is {refresh!r}; it must be a whole number of at least 1")


def refresh_warning(statistic: str, refresh: int) -> str:
    """Say that a pairing is kept for too many steps to give the gradient; nothing if it is not."""
    found = find_statistic(statistic)
    if not found.is_topological or refresh <= found.max_refresh:
        return ""
    limit = f"up to {found.max_refresh} steps" if found.max_refresh > 1 else "one step"
    return (
        f"refresh = {refresh}: a pairing of the {found.title} may be used for {limit}; kept for longer, the push "
        "is no longer along the gradient"
    )


def linear_weights(model: nn.Module) -> dict[str, tuple[Tensor, bool]]:
    """Return the weights of linear layers, but for those that are embeddings too, and whether outputs are columns."""
    seen = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    found: dict[str, tuple[Tensor, bool]] = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        is_transposed = type(module).__name__ == "Conv1D"  # of transformers, for GPT-2
        if not (isinstance(module, nn.Linear) or is_transposed) or not isinstance(weight, Tensor):
            continue
        if weight.requires_grad and id(weight) not in seen:
            found[f"{name}.weight".lstrip(".")] = weight, is_transposed
        seen.add(id(weight))
    return found


def _matrices(given: Any) -> dict[str, tuple[Tensor, bool]]:
    if not isinstance(given, Iterable):
        raise ToposcopeError(f"model is of type {type(given).__name__}; give a module, or the matrices to push")
    distinct = {id(matrix): matrix for matrix in given}.values()
    return {f"matrix {k}": (matrix, False) for k, matrix in enumerate(distinct)}


def _check_matrices(parameters: dict[str, tuple[Any, bool]]) -> None:
    if not parameters:
        raise ToposcopeError("there is no weight matrix to push; give a model with linear layers, or its matrices")
    n_runs: dict[int, str] = {}
    for name, (matrix, _) in parameters.items():
        if not isinstance(matrix, Tensor) or matrix.ndim not in (2, 3):
            got = f"shape {tuple(matrix.shape)}" if isinstance(matrix, Tensor) else type(matrix).__name__
            raise ToposcopeError(f"{name} is no matrix, but {got}; give matrices only, or the whole model")
        if hasattr(matrix, "full_tensor"):
            raise ToposcopeError(f"{name} is sharded over processes; whole matrices are needed, as DDP has them")
        if not matrix.is_leaf:
            raise ToposcopeError(
                f"{name} is computed from other parameters, as by weight norm; give matrices that train"
            )
        n_runs.setdefault(len(matrix) if matrix.ndim == 3 else 1, name)
    if len(n_runs) > 1:
        raise ToposcopeError(f"{' and '.join(n_runs.values())} are of {' and '.join(map(str, n_runs))} runs")


def _rows_as_points(matrix: Tensor, is_transposed: bool) -> Tensor:
    """Return a view of the shape (runs, m, n)."""
    turned = matrix.mT if is_transposed else matrix
    return turned if turned.ndim == 3 else turned[None]
