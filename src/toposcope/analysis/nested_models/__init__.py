"""What topology adds to forecasts of a run's end: nested models and their controls (docs/methods/between-runs.md)."""
