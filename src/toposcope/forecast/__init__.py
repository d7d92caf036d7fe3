"""Forecasts of the final loss. Arrays and frames in, numbers and frames out; no files."""
