"""Callbacks for training frameworks, one file each."""
