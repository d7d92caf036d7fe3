"""How training frameworks call a monitor, one a file."""
