"""What topology adds to a forecast."""
