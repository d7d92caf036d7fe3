"""Serves the report's page while a study grows.

The server reads the database with `sqlite3` alone; a short-lived process makes the charts.
"""
