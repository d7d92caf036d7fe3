"""Continue a run, or begin a larger one."""
