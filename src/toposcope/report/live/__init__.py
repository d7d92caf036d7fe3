"""The report's page, served while a study grows.

The server process reads the database with `sqlite3` alone; charts and analyses are made by processes that then exit.
"""
