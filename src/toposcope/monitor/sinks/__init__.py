"""Sinks for the events of a monitor, one file each; other packages add theirs as entry points ``toposcope.sinks``."""
