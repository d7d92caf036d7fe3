"""Neural persistence under regularisation, and as a criterion of early stopping (Rieck et al. 2019)."""
