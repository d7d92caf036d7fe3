"""The multi-power law: a forecaster that borrows the gain of a decay from siblings under three schedules."""
