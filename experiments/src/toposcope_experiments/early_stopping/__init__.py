"""Rules of early stopping, and what they save and cost."""
