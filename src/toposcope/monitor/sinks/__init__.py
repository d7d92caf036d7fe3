"""Where a monitor passes events on to, one a file; each also from another package, by ``toposcope.sinks``."""
