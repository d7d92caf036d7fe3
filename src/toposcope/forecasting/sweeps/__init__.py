"""Which runs of a sweep can stop."""
