"""One way to run many tasks: processes of this machine, or a Ray cluster. Results do not depend on which."""
