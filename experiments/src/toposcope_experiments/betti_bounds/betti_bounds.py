"""How many components and holes the sublevel sets of a Pfaffian function can have at most.

A Pfaffian function is a polynomial in its variables and in a chain of functions, each of whose derivatives is a
polynomial in the variables, itself and those before it (Khovanskii 1991, "Fewnomials"). Length and degrees of the
chain bound the number of critical points, and this the topology (``experiments/docs/betti-bounds.md``).
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass

from toposcope.extend import ToposcopeError, as_count

PRECISION = 80
"""Decimal digits of the logarithms; the number of digits of a bound is exact up to some 10^70 of them."""


@dataclass(frozen=True)
class PfaffianFormat:
    """The format of a Pfaffian function of all of R^n.

    Attributes
    ----------
    n : int
        Variables: the weights.
    alpha : int
        Largest degree of the derivatives of the functions of the chain.
    beta : int
        Degree of the function in the variables and the chain.
    length : int
        Functions of the chain. Without any, the function is a polynomial and `alpha` is of no account.

    Raises
    ------
    ToposcopeError
        If a count is no whole number, or out of range.
    """

    n: int
    alpha: int
    beta: int
    length: int

    def __post_init__(self) -> None:
        for name, minimum in (("n", 1), ("length", 0), ("beta", 1), ("alpha", 1 if self.length else 0)):
            object.__setattr__(self, name, as_count(getattr(self, name), name, minimum))


@dataclass(frozen=True)
class BettiBound:
    """A bound too large to be written out.

    Attributes
    ----------
    log, log10 : float
        Its natural and its decimal logarithm.
    digits : int
        How many digits it has.
    """

    log: float
    log10: float
    digits: int


def betti_bound(form: PfaffianFormat) -> BettiBound:
    """Bound the sum of the Betti numbers of {f < c}, for every c, of a Pfaffian function that is bounded below.

    With D = max(alpha + beta - 1, 1), the bound is

        2^(length (length - 1) / 2) D^n (n (D - 1) + min(n, length) alpha + 1)^length.

    It also bounds the number of basins, over all levels together and on any plane of the weights, and that of the
    nondegenerate critical points.

    Parameters
    ----------
    form : PfaffianFormat

    Returns
    -------
    BettiBound

    Raises
    ------
    ToposcopeError
        If `form` is another type, or its bound has 10^69 digits or more, which are not counted exactly.

    Notes
    -----
    O(1). Source: Khovanskii's bound of the nondegenerate solutions of n Pfaffian equations, applied to the gradient of
    ``f + e |x - a|^2`` (Morse theory); the constants are explicit. It holds for {f <= c} where c is a regular value.

    Examples
    --------
    >>> from toposcope_experiments.betti_bounds.network_formats import mlp_format
    >>> betti_bound(PfaffianFormat(n=1, alpha=0, beta=4, length=0))  # a polynomial of degree 4: 3 critical points
    BettiBound(log=1.0986122886681098, log10=0.47712125471966244, digits=1)
    >>> betti_bound(mlp_format([2, 3, 1], samples=10)).digits
    197
    """
    if not isinstance(form, PfaffianFormat):
        raise ToposcopeError(f"form: expected a PfaffianFormat, as mlp_format returns it, got {type(form).__name__}")
    n, length, alpha = form.n, form.length, form.alpha if form.length else 0
    degree = max(alpha + form.beta - 1, 1)
    with decimal.localcontext(prec=PRECISION) as context:
        base = decimal.Decimal(n * (degree - 1) + min(n, length) * alpha + 1)
        halved = length * (length - 1) // 2
        log10 = halved * decimal.Decimal(2).log10() + n * decimal.Decimal(degree).log10() + length * base.log10()
        if log10.adjusted() >= PRECISION - 11:
            raise ToposcopeError(
                f"form: its bound has some 10^{log10.adjusted()} digits, beyond those that are counted exactly; give "
                "smaller sizes"
            )
        log = log10 * decimal.Decimal(10).ln()
        context.prec = PRECISION - 10  # the sum may be a unit in the last place below that of a power of ten
        return BettiBound(float(log), float(log10), int(+log10) + 1)
