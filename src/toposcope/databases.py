"""SQLite databases that others may have written: only tables are read, whose size that of the file bounds."""

import sqlite3


def refuse_views(connection: sqlite3.Connection) -> None:
    """Refuse a database with views, which can be endless.

    Raises
    ------
    sqlite3.DatabaseError
        If there is a view.
    """
    view = connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchone()
    if view is not None:
        raise sqlite3.DatabaseError(f"{str(view[0])[:40]!r} is a view, and may be endless; only tables are read")
