"""Pushes on topology while a network trains, against placebos: whether the loss follows."""
