"""Names of the quantities that publications report."""

STEP = "step"  # in place of a quantity: the correlation of the step with the loss
FORECASTERS = ("loss_only", "tda_only", "combined")  # those of the published study
NAMES = {
    "np_mean": "Mean neural persistence",
    "H0.total": "H0 total",
    "H1.total": "H1 total",
    "H1.entropy": "H1 entropy",
    "effective_rank": "Effective rank",
    "top_eigenvalue": "Top eigenvalue",
}


def chart_name(prefix: str, quantity: str) -> str:
    """Return the name of the chart of a quantity."""
    return f"{prefix}-{quantity.lower().replace('.', '-').replace('_', '-')}"
