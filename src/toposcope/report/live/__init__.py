"""Serves the report's page while a study grows.

The server reads the database with `sqlite3` alone; short-lived processes make the charts and the analyses.
"""
