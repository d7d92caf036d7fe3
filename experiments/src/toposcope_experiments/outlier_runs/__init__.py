"""Runs that stand apart from their replicates: analysis, chart and section."""
