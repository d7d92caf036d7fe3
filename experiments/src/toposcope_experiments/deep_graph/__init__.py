"""Deep graph persistence of chains of layers, measured as a probe."""
