"""SQLite databases that others may have written: only tables are read, whose size that of the file bounds."""

import sqlite3

SCHEMA_VERSION = "8"  # of a study's store


def refuse_views(connection: sqlite3.Connection) -> None:
    """Refuse a database with views, which can be endless."""
    view = connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchone()
    if view is not None:
        raise sqlite3.DatabaseError(f"{str(view[0])[:40]!r} is a view, and may be endless; only tables are read")


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Return whether the database has a table."""
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return bool(connection.execute(query, (name,)).fetchone())


def refuse_schema(connection: sqlite3.Connection) -> None:
    """Refuse the store of a study whose schema is not read."""
    facts = dict(connection.execute("SELECT key, value FROM meta")) if has_table(connection, "meta") else {}
    version = facts.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        writer = f"toposcope {facts['toposcope']}" if "toposcope" in facts else "another version of toposcope"
        raise sqlite3.DatabaseError(
            f"written by {writer} with schema version {version}; this one reads {SCHEMA_VERSION}"
        )
