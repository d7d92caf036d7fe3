"""Forecasters of the final loss, each in its own file, named for its law."""
