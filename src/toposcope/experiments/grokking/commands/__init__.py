"""The command of the experiment."""
