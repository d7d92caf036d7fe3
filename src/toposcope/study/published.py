"""What a publication claims of its runs, so that a study can set its own numbers beside it."""

import msgspec


class Law(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A published power law in the number of parameters.

    Attributes
    ----------
    exponent, r_squared : float
        Of least squares between logarithms.
    rho, p : float, optional
        Spearman of the quantity with the number of parameters.
    """

    exponent: float
    r_squared: float
    rho: float | None = None
    p: float | None = None


class Trace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Published values of one run at some of its steps.

    Attributes
    ----------
    steps : list of int
    values : dict of list of float
        By quantity: ``np_mean``, ``H0.total`` and so on.
    """

    steps: list[int]
    values: dict[str, list[float]]

    def __post_init__(self) -> None:
        for quantity, values in self.values.items():
            if len(values) != len(self.steps):
                raise ValueError(f"{quantity} has {len(values)} values for {len(self.steps)} steps")


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Published numbers; a report sets ours beside them.

    Quantities are ``np_mean``, ``H0.total``, ``H1.total``, ``loss``.

    Attributes
    ----------
    source : str
        Where they were published.
    final_loss : dict of float
        By run; of one last batch.
    correlations : dict of dict of float
        By quantity, then by run: Spearman with the loss of one batch.
    intervals : dict of dict of (float, float)
        By quantity, then by run: bootstrap interval of the correlation.
    prediction_errors : dict of dict of float
        By forecaster (``loss_only``, ``tda_only``, ``combined``), then by fraction of training (``0.2``): mean absolute
        error of the final loss over runs, in nats.
    largest_change, diminishing_returns : dict of int
        Step by run.
    scaling : dict of Law
        By quantity, of final values.
    traces : dict of Trace
        By run.
    """

    source: str = ""
    final_loss: dict[str, float] = {}
    correlations: dict[str, dict[str, float]] = {}
    intervals: dict[str, dict[str, tuple[float, float]]] = {}
    prediction_errors: dict[str, dict[str, float]] = {}
    largest_change: dict[str, int] = {}
    diminishing_returns: dict[str, int] = {}
    scaling: dict[str, Law] = {}
    traces: dict[str, Trace] = {}
