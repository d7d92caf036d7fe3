"""Scaling laws of size and tokens, and plans by them."""
