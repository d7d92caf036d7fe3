"""What topology adds between runs, beyond what is known of them without it."""
