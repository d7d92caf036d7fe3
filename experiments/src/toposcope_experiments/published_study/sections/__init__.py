"""What the published study adds to a report."""
