"""The local learning coefficient: the estimator, the probe `degeneracy` and its section."""
