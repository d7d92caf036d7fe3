"""Which runs of a sweep can stop: rules compared on sweeps that they were not made on."""
