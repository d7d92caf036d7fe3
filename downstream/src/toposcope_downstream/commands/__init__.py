"""Commands of scores of tasks, one file each."""
