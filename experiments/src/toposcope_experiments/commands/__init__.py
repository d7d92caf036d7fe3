"""The commands of the experiments: one file each, without logic."""
