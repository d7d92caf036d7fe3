"""Forecasts of the final loss, scaling laws, decisions. Logs, arrays and frames in, numbers and frames out."""
