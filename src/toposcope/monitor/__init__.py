"""Live training: the monitor, its adapters, its alerts and where it reports them."""
