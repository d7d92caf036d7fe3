"""Run many tasks: worker processes of this machine, or a Ray cluster. Results do not depend on which."""
